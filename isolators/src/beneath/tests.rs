//! Obstacles that a folder's owner may put in the way before each call, and one race.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::*;

/// A folder, and a folder beside it that no operation may touch.
fn place() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let (inside, outside) = (dir.path().join("inside"), dir.path().join("outside"));
    fs::create_dir(&inside).expect("made");
    fs::create_dir(&outside).expect("made");
    fs::write(outside.join("file"), "theirs").expect("written");
    (dir, inside, outside)
}

fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    result.err()?.raw_os_error().map(Errno::from_raw)
}

fn write(output: &OutputFile, text: &str) {
    let written = nix::unistd::write(&output.file, text.as_bytes());
    assert_eq!(written, Ok(text.len()));
}

#[test]
fn output_appends_to_owners_plain_file() {
    let (_dir, inside, _) = place();
    let folder = Folder::open(&inside).expect("opened");
    let open = || folder.output_file(OsStr::new("out"), None, OFlag::O_APPEND);
    let first = open().expect("made");
    assert_eq!(first.bytes, 0);
    write(&first, "one ");
    let again = open().expect("there");
    assert_eq!(again.bytes, 4);
    write(&again, "two");
    let path = inside.join("out");
    assert_eq!(fs::read_to_string(&path).expect("read"), "one two");
    let mode = fs::metadata(&path).expect("there").mode() & 0o7777;
    assert_eq!(mode, OUTPUT_MODE);
}

#[test]
fn opening_output_refuses_non_plain_files() {
    let (_dir, inside, outside) = place();
    let folder = Folder::open(&inside).expect("opened");
    symlink(outside.join("file"), inside.join("link")).expect("linked");
    symlink(outside.join("new"), inside.join("dangling")).expect("linked");
    fs::hard_link(outside.join("file"), inside.join("hard")).expect("linked");
    nix::unistd::mkfifo(&inside.join("fifo"), Mode::S_IRWXU).expect("made");
    fs::create_dir(inside.join("folder")).expect("made");
    let _socket = std::os::unix::net::UnixListener::bind(inside.join("socket")).expect("bound");
    for (name, expected) in [
        ("link", Errno::ELOOP),
        ("dangling", Errno::ELOOP),
        ("hard", Errno::EMLINK),
        ("fifo", Errno::EINVAL),
        ("folder", Errno::EISDIR),
        ("socket", Errno::EINVAL),
    ] {
        let opened = folder.output_file(OsStr::new(name), None, OFlag::empty());
        assert_eq!(errno(opened), Some(expected), "{name}");
    }
    // With a reader a pipe could be opened, but it is still not a file.
    let _reader = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(inside.join("fifo"))
        .expect("opened");
    let opened = folder.output_file(OsStr::new("fifo"), None, OFlag::empty());
    assert_eq!(errno(opened), Some(Errno::EINVAL));
    assert!(!outside.join("new").exists());
    // Another user's file keeps its owner, even with one name only.
    let stranger = Some((fs::metadata(&inside).expect("there").uid() + 1, 0));
    fs::write(inside.join("plain"), "").expect("written");
    let opened = folder.output_file(OsStr::new("plain"), stranger, OFlag::empty());
    assert_eq!(errno(opened), Some(Errno::EPERM));
}

#[test]
fn no_path_leads_out() {
    let (_dir, inside, outside) = place();
    let folder = Folder::open(&inside).expect("opened");
    symlink(&outside, inside.join("away")).expect("linked");
    symlink("../outside", inside.join("relative")).expect("linked");
    for path in ["away", "relative", "..", "../outside", "/", "away/x"] {
        assert!(folder.folder(Path::new(path)).is_err(), "{path}");
        assert!(
            folder.enter_all(Path::new(path), 0o755, None).is_err(),
            "{path}"
        );
        let _ = folder.remove(&Path::new(path).join("file"));
    }
    assert!(outside.join("file").exists());
    symlink(&inside, inside.parent().expect("one").join("linked")).expect("linked");
    assert!(Folder::open(&inside.with_file_name("linked")).is_err());
}

#[test]
fn new_folder_gets_exact_mode() {
    let (_dir, inside, _) = place();
    let folder = Folder::open(&inside).expect("opened");
    fs::create_dir(inside.join("old")).expect("made");
    fs::set_permissions(inside.join("old"), fs::Permissions::from_mode(0o700)).expect("set");
    folder
        .enter_all(Path::new("old/./new"), 0o777, None)
        .expect("made");
    let mode = |path: &str| fs::metadata(inside.join(path)).expect("there").mode() & 0o7777;
    assert_eq!((mode("old"), mode("old/new")), (0o700, 0o777));
    let again = folder.make_folder(OsStr::new("old"), 0o755, None);
    assert_eq!(errno(again), Some(Errno::EEXIST));
}

#[test]
fn removal_handles_deep_trees_without_links() {
    let (_dir, inside, outside) = place();
    let tree = inside.join("a/tree");
    fs::create_dir_all(&tree).expect("made");
    symlink(&outside, tree.join("link")).expect("linked");
    fs::hard_link(outside.join("file"), tree.join("hard")).expect("linked");
    // Deeper than paths, descriptors and a thread's stack allow.
    let mut at = Folder::open(&tree).expect("opened");
    for level in 0..20_000 {
        if level % 1000 == 0 {
            at.create(OsStr::new("file"), 0o644, None, OFlag::empty())
                .expect("made");
        }
        at = at.make_folder(OsStr::new("d"), 0o700, None).expect("made");
    }
    drop(at);
    let folder = Folder::open(&inside).expect("opened");
    std::thread::scope(|scope| {
        let small = std::thread::Builder::new().stack_size(256 << 10);
        let removed = small.spawn_scoped(scope, || folder.remove(Path::new("a/tree")));
        let removed = removed.expect("a thread").join().expect("no panic");
        removed.expect("removed");
    });
    folder.remove(Path::new("a/tree")).expect("gone already");
    folder.remove(Path::new("no/such")).expect("never there");
    assert_eq!(fs::read_dir(inside.join("a")).expect("read").count(), 0);
    assert_eq!(
        fs::read_to_string(outside.join("file")).expect("there"),
        "theirs"
    );
    // A link itself is removed.
    symlink(&outside, inside.join("link")).expect("linked");
    folder.remove(Path::new("link")).expect("removed");
    assert!(!inside.join("link").exists() && outside.join("file").exists());
}

/// A thread swaps a folder for a link and back as fast as it can, while files are made and removed below the folder.
#[test]
fn swapped_symlink_never_escapes_the_root() {
    let (_dir, inside, outside) = place();
    let folder = Folder::open(&inside).expect("opened");
    fs::create_dir(inside.join("real")).expect("made");
    symlink(&outside, inside.join("link")).expect("linked");
    let over = AtomicBool::new(false);
    let mut entered = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = RenameFlags::RENAME_EXCHANGE;
            while !over.load(Ordering::Relaxed) {
                let (real, link) = (inside.join("real"), inside.join("link"));
                let at = nix::fcntl::AT_FDCWD;
                let swapped = nix::fcntl::renameat2(at, &real, at, &link, exchange);
                assert_eq!(swapped, Ok(()));
            }
        });
        // The other thread may stand still while the link is there.
        let (mut tries, began) = (0, Instant::now());
        while tries < 5_000 || (entered == 0 && began.elapsed() < Duration::from_secs(60)) {
            tries += 1;
            let Ok(real) = folder.enter(OsStr::new("real"), 0o755, None) else {
                continue;
            };
            entered += 1;
            let name = OsStr::new("file");
            let made = real.output_file(name, None, OFlag::empty()).expect("made");
            write(&made, "ours");
            let _ = folder.remove(Path::new("real/file"));
        }
        over.store(true, Ordering::Relaxed);
    });
    assert!(entered > 0);
    assert_eq!(
        fs::read_to_string(outside.join("file")).expect("there"),
        "theirs"
    );
}

/// A process that fills one folder again and again, and an entry that nobody can remove, do not prevent the removal of the
/// rest.
#[test]
fn stubborn_entries_leave_the_rest_removable() {
    let (_dir, inside, _) = place();
    let folder = Folder::open(&inside).expect("opened");
    let tree = inside.join("tree");
    let over = AtomicBool::new(false);
    for name in ["a", "b", "filled/d", "y", "z"] {
        let deep = tree.join(name).join("deep");
        fs::create_dir_all(&deep).expect("made");
        fs::write(deep.join("file"), "text").expect("written");
    }
    let error = std::thread::scope(|scope| {
        let (filled, over) = (tree.join("filled"), &over);
        let (told, begun) = std::sync::mpsc::channel();
        scope.spawn(move || {
            for number in 0_u64.. {
                let _ = fs::create_dir_all(&filled);
                let _ = fs::write(filled.join(number.to_string()), "");
                if number == 100 {
                    told.send(()).expect("listened to");
                }
                if over.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        begun.recv().expect("told");
        let removed = folder.remove(Path::new("tree"));
        over.store(true, Ordering::Relaxed);
        removed.err()
    });
    let others = ["a", "b", "y", "z"].map(|name| tree.join(name).exists());
    assert_eq!(others, [false; 4], "{error:?}");
    folder
        .remove(Path::new("tree"))
        .expect("nobody fills it any more");
    assert!(!tree.exists());
}

/// Each removed name changes the file that has all the others.
#[test]
fn removes_all_hard_links_at_once() {
    let (_dir, inside, _) = place();
    let tree = inside.join("tree");
    let file = tree.join("file");
    fs::create_dir(&tree).expect("made");
    fs::write(&file, "text").expect("written");
    for number in 0..LATE_MAX + 1_000 {
        fs::hard_link(&file, tree.join(number.to_string())).expect("linked");
    }
    let folder = Folder::open(&inside).expect("opened");
    folder.remove(Path::new("tree")).expect("removed");
    assert!(!tree.exists());
}

/// Regression: on a machine that started with its clock a day ahead, one removal removed only a few thousand entries of a
/// tree.
#[test]
fn future_timestamps_do_not_delay_removal() {
    let (_dir, inside, _) = place();
    fs::write(inside.join("file"), "text").expect("written");
    for number in 0..LATE_MAX + 1_000 {
        fs::create_dir(inside.join(format!("d{number}"))).expect("made");
        fs::hard_link(inside.join("file"), inside.join(format!("f{number}"))).expect("linked");
    }
    let folder = Folder::open(&inside).expect("opened");
    let top = folder.step_into(".").expect("opened");
    let a_day_ago = || {
        let (seconds, nanoseconds) = now();
        (seconds - 86_400, nanoseconds)
    };
    let mut removal = Removal::new(&top, a_day_ago, &|| true);
    removal.empty_top().expect("read");
    removal.into_result(Ok(())).expect("nothing is left");
    assert_eq!(fs::read_dir(&inside).expect("there").count(), 0);
}

#[test]
fn tree_removal_can_be_split() {
    let (_dir, inside, _) = place();
    let mut deep = inside.join("tree");
    for level in 0..DEPTH_MAX + 8 {
        deep.push(format!("d{level}"));
        fs::create_dir_all(&deep).expect("made");
        fs::write(deep.join("file"), "text").expect("written");
    }
    let folder = Folder::open(&inside).expect("opened");
    let mut pieces = 0;
    let one_piece = || {
        let progress = folder.remove_while(Path::new("tree"), &|| false);
        progress.expect("removed")
    };
    while let RemovalProgress::Stopped(failure) = one_piece() {
        assert!(failure.is_none(), "{failure:?}");
        pieces += 1;
        assert!(pieces < 1_000, "each takes something away");
    }
    assert!(pieces > DEPTH_MAX, "{pieces}");
    assert!(!inside.join("tree").exists());
    assert!(matches!(one_piece(), RemovalProgress::Done));
}

/// Regression: the removal forgot the failed entry and tried again at once.
#[test]
fn stopped_removal_names_remaining_entries() {
    let (_dir, inside, _) = place();
    let folder = Folder::open(&inside).expect("opened");
    let mut removal = Removal::new(&folder, now, &|| false);
    removal.left = 1;
    removal.failure = Some(Errno::EIO.into());
    let RemovalProgress::Stopped(Some(failure)) = removal.stopped() else {
        panic!("it was stopped, and something is left");
    };
    assert!(failure.to_string().starts_with("1 entries are left"));
}

#[test]
fn concurrent_entering_creates_folder_once() {
    let (_dir, inside, _) = place();
    let folder = Folder::open(&inside).expect("opened");
    let folder = &folder;
    for round in 0..200 {
        let shared = format!("shared-{round}");
        std::thread::scope(|scope| {
            for own in ["a", "b", "c", "d"] {
                let shared = OsStr::new(&shared);
                scope.spawn(move || {
                    let entered = folder.enter(shared, 0o711, None).expect("entered");
                    entered
                        .make_folder(OsStr::new(own), 0o750, None)
                        .expect("made");
                });
            }
        });
        let made = fs::metadata(inside.join(&shared)).expect("there");
        assert_eq!(made.mode() & 0o7777, 0o711);
    }
}
