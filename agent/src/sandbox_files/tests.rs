//! Sandboxes that try to lead their readers out.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use meseta_resources::AgentId;

use super::*;

struct World {
    dir: tempfile::TempDir,
    sandbox: PathBuf,
    sandboxes: Sandboxes,
}

const VIRTUAL: &str = "/frameworks/F/executors/E/runs/latest";
const SECRET: &[u8] = b"secret outside";

fn world() -> World {
    let dir = tempfile::tempdir().expect("a directory");
    let work_dir = dir.path().join("work");
    let runs = work_dir.join("slaves/S0/frameworks/F/executors/E/runs");
    let sandbox = runs.join("c1");
    std::fs::create_dir_all(sandbox.join("sub")).expect("a sandbox");
    symlink("c1", runs.join("latest")).expect("a link");
    std::fs::write(sandbox.join("stdout"), b"hello\n").expect("a file");
    std::fs::write(sandbox.join("sub/deep"), b"deep").expect("a file");
    std::fs::write(dir.path().join("secret"), SECRET).expect("a file");
    std::fs::write(work_dir.join("secret"), SECRET).expect("a file");
    let agent = AgentId::new("S0").expect("an id");
    World {
        sandboxes: Sandboxes::new(Layout::new(&work_dir), Some(agent)),
        sandbox,
        dir,
    }
}

fn read(world: &World, path: &str) -> Result<Vec<u8>, FilesError> {
    world.sandboxes.read(path, 0, None).map(|chunk| chunk.data)
}

#[test]
fn real_and_virtual_paths_are_equivalent() {
    let world = world();
    let real = world.sandbox.join("stdout");
    for path in [
        &format!("{VIRTUAL}/stdout") as &str,
        "/frameworks/F/executors/E/runs/c1/stdout",
        "/framework/F/executor/E/latest/stdout",
        "frameworks/F/executors/E/runs/latest//stdout",
        real.to_str().expect("text"),
    ] {
        assert_eq!(read(&world, path).expect(path), b"hello\n", "{path}");
    }
}

#[test]
fn outside_files_have_no_path() {
    let world = world();
    let outside = world.dir.path().join("secret");
    for path in [
        "",
        "/",
        "/etc/passwd",
        "/frameworks",
        "/frameworks/F/executors/E/runs",
        "/frameworks/../executors/E/runs/latest/stdout",
        "/frameworks/F/executors/E/runs/../../../../../../../secret",
        "/frameworks/F/executors/E/runs/latest/../../../../../../../secret",
        "/frameworks/F/executors/E/runs/latest/sub/../../c1/stdout",
        "/frameworks/F/executors/E/runs/nosuch/stdout",
        outside.to_str().expect("text"),
    ] {
        let refused = read(&world, path);
        assert!(
            matches!(refused, Err(FilesError::NotFound)),
            "{path}: {refused:?}"
        );
    }
}

#[test]
fn links_lead_nowhere_but_within() {
    let world = world();
    let up = "../".repeat(8);
    for (name, target) in [
        ("absolute", world.dir.path().join("secret")),
        ("relative", PathBuf::from(format!("{up}secret"))),
        ("magic", PathBuf::from("/proc/self/root/etc/passwd")),
        ("folder", world.dir.path().to_owned()),
        ("self", PathBuf::from("self")),
    ] {
        symlink(target, world.sandbox.join(name)).expect("a link");
    }
    symlink("sub/deep", world.sandbox.join("within")).expect("a link");
    for path in [
        "absolute",
        "relative",
        "magic",
        "folder/secret",
        "self",
        "folder",
    ] {
        let refused = read(&world, &format!("{VIRTUAL}/{path}"));
        assert!(
            matches!(refused, Err(FilesError::NotFound)),
            "{path}: {refused:?}"
        );
    }
    let within = read(&world, &format!("{VIRTUAL}/within")).expect("a link within");
    assert_eq!(within, b"deep");
    // Listing shows the links themselves, not their targets.
    let listed = world.sandboxes.list(VIRTUAL).expect("a listing");
    let link = listed
        .iter()
        .find(|entry| entry.path.ends_with("/absolute"))
        .expect("an entry");
    assert!(link.mode_text().starts_with('l'));
    assert!(world.sandboxes.list(&format!("{VIRTUAL}/folder")).is_err());
}

#[test]
fn linked_sandbox_is_not_followed() {
    let world = world();
    let runs = world.sandbox.parent().expect("the runs");
    symlink(world.dir.path(), runs.join("c2")).expect("a link");
    let refused = read(&world, "/frameworks/F/executors/E/runs/c2/secret");
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn only_regular_files_are_read() {
    let world = world();
    let fifo = world.sandbox.join("fifo");
    let mode = Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, mode, 0).expect("a fifo");
    assert!(matches!(
        read(&world, &format!("{VIRTUAL}/fifo")),
        Err(FilesError::NotAFile)
    ));
    assert!(matches!(
        read(&world, &format!("{VIRTUAL}/sub")),
        Err(FilesError::IsDirectory)
    ));
    assert!(matches!(
        read(&world, VIRTUAL),
        Err(FilesError::IsDirectory)
    ));
    let listed = world.sandboxes.list(&format!("{VIRTUAL}/stdout"));
    assert!(
        matches!(listed, Err(FilesError::NotDirectory)),
        "{listed:?}"
    );
}

#[test]
fn reads_stop_at_file_and_limit() {
    let world = world();
    let size = usize::try_from(READ_BYTES_MAX).expect("small") * 2 + 10;
    std::fs::write(world.sandbox.join("big"), vec![b'x'; size]).expect("a file");
    let path = format!("{VIRTUAL}/big");
    let length = |offset, length| {
        let chunk = world.sandboxes.read(&path, offset, length).expect("a read");
        let (told, data) = (chunk.size, chunk.data);
        assert_eq!(told, u64::try_from(size).expect("small"));
        data.len()
    };
    let most = usize::try_from(READ_BYTES_MAX).expect("small");
    assert_eq!(length(0, None), most);
    assert_eq!(length(0, Some(u64::MAX)), most);
    assert_eq!(length(READ_BYTES_MAX * 2, None), 10);
    assert_eq!(length(READ_BYTES_MAX * 2 + 10, None), 0);
    assert_eq!(length(u64::MAX, None), 0);
    assert_eq!(length(3, Some(5)), 5);
}

#[test]
fn file_id_survives_rename() {
    let world = world();
    let id = |name: &str| {
        let chunk = world.sandboxes.read(&format!("{VIRTUAL}/{name}"), 0, None);
        chunk.expect("a read").file_id
    };
    let before = id("stdout");
    assert_eq!(id("stdout"), before);
    let (from, to) = (world.sandbox.join("stdout"), world.sandbox.join("stdout.1"));
    std::fs::rename(&from, &to).expect("renamed");
    std::fs::write(&from, b"newer").expect("a file");
    assert_eq!(id("stdout.1"), before);
    assert_ne!(id("stdout"), before);
    // A new file has another id, even with the inode number of a removed one.
    std::fs::remove_file(&to).expect("removed");
    std::fs::write(&to, b"another").expect("a file");
    assert_ne!(id("stdout.1"), before);
}

#[test]
fn swapped_link_leaks_nothing() {
    // For more reads set MESETA_RACE_READS=100000.
    let asked = std::env::var("MESETA_RACE_READS").ok();
    let reads: usize = asked.and_then(|text| text.parse().ok()).unwrap_or(20_000);
    let world = world();
    let name = world.sandbox.join("turn");
    let (file, link) = (world.sandbox.join("f"), world.sandbox.join("l"));
    let secret = world.dir.path().join("secret");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                swap(&name, &file, &link, &secret);
            }
        });
        for _ in 0..reads {
            if let Ok(data) = read(&world, &format!("{VIRTUAL}/turn")) {
                assert_ne!(data, SECRET);
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

fn swap(name: &Path, file: &Path, link: &Path, secret: &Path) {
    std::fs::write(file, b"mine").expect("a file");
    std::fs::rename(file, name).expect("a swap");
    symlink(secret, link).expect("a link");
    std::fs::rename(link, name).expect("a swap");
}

fn reader_of(users: &[&str]) -> Approver {
    let acls = serde_json::json!({
        "permissive": false,
        "access_sandboxes": [{"principals": {"values": ["p"]}, "users": {"values": users}}],
    });
    let acls = meseta_access::Acls::parse(&acls.to_string()).expect("rules");
    meseta_access::Authorizer::new(acls, true).approver(Some("p".to_owned()))
}

/// The owners of files on disk decide, not the user of the current run: other runs of the executor, and tasks of a
/// group, may have other users.
#[test]
fn files_are_read_by_owner() {
    let world = world();
    if !rustix::process::geteuid().is_root() {
        return;
    }
    const NOBODY: u32 = 65_534;
    let own = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), None).expect("given");
    let set_mode = |path: &Path, mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("a mode");
    };
    let inner = world.sandbox.join("containers/roots");
    std::fs::create_dir_all(inner.join("open")).expect("folders");
    set_mode(&world.sandbox.join("containers"), 0o755);
    set_mode(&inner, 0o750);
    set_mode(&inner.join("open"), 0o755);
    for file in ["containers/roots/stdout", "containers/roots/open/stdout"] {
        std::fs::write(world.sandbox.join(file), b"root's").expect("a file");
    }
    for theirs in [
        "",
        "sub",
        "stdout",
        "sub/deep",
        "containers/roots/open/stdout",
    ] {
        own(&world.sandbox.join(theirs));
    }
    symlink("containers/roots/open", world.sandbox.join("short")).expect("a link");
    let by = |users: &[&str]| world.sandboxes.clone().read_by(reader_of(users), None);
    let path = |beneath: &str| format!("{VIRTUAL}/{beneath}");
    let allowed = |users: &[&str], beneath: &str| match by(users).read(&path(beneath), 0, None) {
        Ok(_) => true,
        Err(FilesError::Forbidden(_)) => false,
        Err(error) => panic!("{beneath}: {error:?}"),
    };
    let listed = |users: &[&str], beneath: &str| match by(users).list(&path(beneath)) {
        Ok(_) => true,
        Err(FilesError::Forbidden(_)) => false,
        Err(error) => panic!("{beneath}: {error:?}"),
    };
    for file in ["stdout", "sub/deep"] {
        assert!(allowed(&["nobody"], file), "{file}");
        assert!(!allowed(&["root"], file), "{file}");
    }
    for file in [
        "containers/roots/stdout",
        "containers/roots/open/stdout",
        "short/stdout",
    ] {
        assert!(!allowed(&["nobody"], file), "{file}");
        assert!(allowed(&["nobody", "root"], file), "{file}");
    }
    assert!(listed(&["nobody"], "") && listed(&["nobody"], "containers"));
    for folder in ["containers/roots", "containers/roots/open", "short"] {
        assert!(!listed(&["nobody"], folder), "{folder}");
        assert!(listed(&["nobody", "root"], folder), "{folder}");
    }
    // A reader without the right to read the sandbox learns neither its contents nor whether it exists.
    for missing in [path("nosuch"), VIRTUAL.replace("latest", "nosuch")] {
        let refused = by(&["root"]).read(&missing, 0, None);
        assert!(
            matches!(refused, Err(FilesError::Forbidden(_))),
            "{refused:?}"
        );
    }
}

/// Regression: a permitted client was refused if it read before the launch had made the sandbox.
#[test]
fn unmade_sandbox_belongs_to_launch_user() {
    let world = world();
    let of_nobody = |users: &[&str]| {
        let sandboxes = world.sandboxes.clone();
        sandboxes.read_by(reader_of(users), Some("nobody".to_owned()))
    };
    for path in [VIRTUAL.replace("latest", "c2"), VIRTUAL.replace('E', "E2")] {
        let absent = of_nobody(&["nobody"]).read(&format!("{path}/stdout"), 0, None);
        assert!(matches!(absent, Err(FilesError::NotFound)), "{absent:?}");
        let refused = of_nobody(&["other"]).read(&format!("{path}/stdout"), 0, None);
        assert!(
            matches!(refused, Err(FilesError::Forbidden(_))),
            "{refused:?}"
        );
    }
    if rustix::process::geteuid().is_root() {
        // For an existing sandbox only its owner counts.
        let refused = of_nobody(&["nobody"]).read(&format!("{VIRTUAL}/stdout"), 0, None);
        assert!(
            matches!(refused, Err(FilesError::Forbidden(_))),
            "{refused:?}"
        );
    }
}

/// Regression: a path of a megabyte, most of it slashes, was repeated for each of ten thousand entries.
#[test]
fn listing_is_bounded_for_long_paths() {
    let world = world();
    let many = world.sandbox.join("many");
    std::fs::create_dir(&many).expect("a folder");
    for number in 0..100 {
        std::fs::write(many.join(number.to_string()), b"").expect("a file");
    }
    let listed = |slashes: usize| {
        let path = format!("{}{VIRTUAL}/many", "/".repeat(slashes));
        let entries = world.sandboxes.list(&path).expect("listed");
        let bytes: usize = entries.iter().map(|entry| entry.path.len()).sum();
        assert!(bytes <= LISTED_BYTES_MAX, "{slashes}: {bytes}");
        entries.len()
    };
    assert_eq!(listed(0), 100);
    assert_eq!(listed(1 << 20), 15);
}
