//! Attacks by a task of an ordinary user: it gets no rights over other users, their files, or the agent's own, and does
//! not block the fetches of other frameworks.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished};
use meseta_proto::mesos::v1::capability_info::Capability;
use meseta_proto::mesos::v1::task_status::Reason;

use crate::Test;
use crate::executors::custom;
use crate::harness::{Link, World, by, framework, patience, scalar, shell, with_uri};

pub(crate) const TESTS: &[Test] = tests![
    root(user_gets_no_capability_over_others),
    root(granted_capabilities_are_limited_to_grantees),
    root(host_paths_resolve_with_users_rights),
    root(local_files_are_fetched_as_user),
    silent_fetches_block_only_their_framework,
];

const NOBODY: u32 = 65534;

fn nobodys(task: pb::TaskInfo) -> pb::TaskInfo {
    by("nobody", task)
}

fn mesos_container(
    linux: Option<pb::LinuxInfo>,
    volumes: Vec<pb::Volume>,
) -> Option<Box<pb::ContainerInfo>> {
    Some(Box::new(pb::ContainerInfo {
        r#type: pb::container_info::Type::Mesos.into(),
        linux_info: linux,
        volumes,
        ..pb::ContainerInfo::default()
    }))
}

fn asking(one: Capability) -> Option<pb::CapabilityInfo> {
    let capabilities = vec![one.into()];
    Some(pb::CapabilityInfo { capabilities })
}

/// The reason in the next terminal update, of a refused launch.
fn refused(world: &World, link: &mut Link) -> String {
    loop {
        // The end of an executor is reported too.
        let last = world.update_besides(link);
        if meseta_agent::core::is_terminal(last.state) {
            assert_eq!(last.state(), TaskFailed, "{last:?}");
            assert_eq!(last.reason(), Reason::ContainerLaunchFailed, "{last:?}");
            return last.message().to_owned();
        }
    }
}

fn finishes(world: &World, link: &mut Link, task: pb::TaskInfo) {
    world.run_to(link, task, TaskFinished);
}

fn effective(one: Capability) -> pb::LinuxInfo {
    pb::LinuxInfo {
        effective_capabilities: asking(one),
        ..pb::LinuxInfo::default()
    }
}

fn user_gets_no_capability_over_others() {
    let (world, mut link) = World::registered(&[]);
    let older = pb::LinuxInfo {
        capability_info: asking(Capability::Setuid),
        ..pb::LinuxInfo::default()
    };
    let bounding = pb::LinuxInfo {
        bounding_capabilities: asking(Capability::Setuid),
        ..pb::LinuxInfo::default()
    };
    let asked = [
        ("effective", effective(Capability::Setuid)),
        ("files", effective(Capability::DacOverride)),
        ("older", older),
        ("bounding", bounding),
    ];
    let expect = |message: String, id: &str| {
        let named = if id == "files" {
            "CAP_DAC_OVERRIDE"
        } else {
            "CAP_SETUID"
        };
        for part in [named, "--granted_capabilities"] {
            assert!(message.contains(part), "{id}: {message}");
        }
    };
    for (id, linux) in asked {
        let mut task = nobodys(shell(id, "true"));
        task.container = mesos_container(Some(linux), Vec::new());
        world.run(&link, task);
        expect(refused(&world, &mut link), id);
    }
    let linux = || Some(effective(Capability::Setuid));
    // Root's tasks may request the same as before, and capabilities without outside effects are free for everybody.
    let mut task = shell("roots", "true");
    task.container = mesos_container(linux(), Vec::new());
    finishes(&world, &mut link, task);
    let bits = "grep -q 'CapEff:.0*400$' /proc/self/status";
    let mut task = nobodys(shell("ports", bits));
    task.container = mesos_container(Some(effective(Capability::NetBindService)), Vec::new());
    finishes(&world, &mut link, task);
    // An executor of the framework's own.
    let mut task = by("nobody", custom("executors", "json"));
    let executor = task.executor.as_mut().expect("an executor");
    executor.container = mesos_container(linux(), Vec::new());
    world.run_in_executor(&link, task, true);
    expect(refused(&world, &mut link), "executors");
    // A task of a group.
    let mut task = nobodys(shell("groups", "true"));
    task.container = mesos_container(linux(), Vec::new());
    world.run_group(&link, vec![task]);
    expect(refused(&world, &mut link), "groups");
}

fn granted_capabilities_are_limited_to_grantees() {
    let grants = r#"{"grants": [
        {"users": ["nobody"], "capabilities": ["SETUID"]},
        {"roles": ["dev"], "capabilities": ["CHOWN"]},
        {"users": ["daemon"], "capabilities": ["KILL"]}
    ]}"#;
    let (world, mut link) = World::registered(&[&format!("--granted_capabilities={grants}")]);
    let task = |id: &str, one, command: &str| {
        let mut task = nobodys(shell(id, command));
        task.container = mesos_container(Some(effective(one)), Vec::new());
        task
    };
    let has = |bits: &str| {
        format!(
            "for set in Inh Prm Eff Bnd Amb; do grep -q \"Cap$set:.0*{bits}$\" /proc/self/status || exit 1; done"
        )
    };
    let user = task("user", Capability::Setuid, &has("80"));
    finishes(&world, &mut link, user);
    let role = task("role", Capability::Chown, &has("1"));
    finishes(&world, &mut link, role);
    world.run(&link, task("others", Capability::Kill, "true"));
    let message = refused(&world, &mut link);
    assert!(message.contains("CAP_KILL"), "{message}");
    // A task without a request gets none.
    let none = nobodys(shell("unasked", &has("")));
    finishes(&world, &mut link, none);
}

fn host_volume(path: &Path, container_path: &str) -> pb::Volume {
    pb::Volume {
        container_path: container_path.to_owned(),
        host_path: Some(path.display().to_string()),
        mode: pb::volume::Mode::Rw.into(),
        ..pb::Volume::default()
    }
}

fn mode(path: &Path, bits: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(bits)).expect("permissions");
}

/// A folder of root's only, with a file that everybody could read elsewhere.
fn secret(world: &World) -> PathBuf {
    let folder = world.dir.path().join("secret");
    std::fs::create_dir(&folder).expect("made");
    mode(&folder, 0o700);
    let file = folder.join("word");
    std::fs::write(&file, "secret\n").expect("written");
    mode(&file, 0o644);
    file
}

/// A folder that belongs to `nobody`.
fn nobodys_folder(world: &World) -> PathBuf {
    let folder = world.dir.path().join("nobodys");
    std::fs::create_dir(&folder).expect("made");
    chown(&folder, Some(NOBODY), Some(NOBODY)).expect("given away");
    folder
}

fn host_paths_resolve_with_users_rights() {
    let (world, mut link) = World::registered(&[]);
    let word = secret(&world);
    let own = nobodys_folder(&world);
    std::fs::write(own.join("file"), "own\n").expect("written");
    symlink(&word, own.join("link")).expect("linked");
    let task = |id: &str, path: &Path| {
        let mut task = nobodys(shell(id, "cat seen"));
        task.container = mesos_container(None, vec![host_volume(path, "seen")]);
        task
    };
    for (id, path) in [("behind", word.clone()), ("through", own.join("link"))] {
        world.run(&link, task(id, &path));
        let message = refused(&world, &mut link);
        assert!(message.contains("in HOST_PATH volume"), "{message}");
        assert!(message.contains("ermission denied"), "{message}");
    }
    finishes(&world, &mut link, task("own", &own.join("file")));
    // The agent's own folders are mounted for nobody, including root's tasks.
    let inside = world.work_dir().join("meta");
    let mut roots = shell("roots", "true");
    roots.container = mesos_container(None, vec![host_volume(&inside, "seen")]);
    world.run(&link, roots);
    let message = refused(&world, &mut link);
    assert!(message.contains("the agent's own"), "{message}");
}

fn local_files_are_fetched_as_user() {
    let (world, mut link) = World::registered(&[]);
    let word = secret(&world);
    let own = nobodys_folder(&world);
    symlink(&word, own.join("link")).expect("linked");
    symlink("/proc/self/status", own.join("status")).expect("linked");
    for (id, path, why) in [
        ("behind", word.clone(), "ermission denied"),
        ("through", own.join("link"), "ermission denied"),
        ("agent", "/proc/self/status".into(), "/proc"),
        ("linked", own.join("status"), "/proc"),
        ("kernel", "/sys/kernel/uevent_seqnum".into(), "/sys"),
    ] {
        let task = nobodys(shell(id, "true"));
        world.run(&link, with_uri(task, path.display().to_string(), false));
        let message = refused(&world, &mut link);
        assert!(message.contains(why), "{id}: {message}");
    }
}

/// Accepts connections and never answers; they are closed when this is dropped.
struct Silent {
    port: u16,
    taken: std::sync::mpsc::Receiver<TcpStream>,
}

impl Silent {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (told, taken) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if told.send(stream).is_err() {
                    return;
                }
            }
        });
        Self { port, taken }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/file", self.port)
    }
}

/// More than the agent's limit of concurrent fetches.
const MANY: usize = 24;

fn silent_fetches_block_only_their_framework() {
    let (world, mut link) = World::registered(&[]);
    let silent = Silent::new();
    for number in 0..MANY {
        let mut task = shell(&format!("silent-{number}"), "true");
        task.resources = vec![scalar("cpus", 0.01)];
        world.run(&link, with_uri(task, silent.url(), false));
    }
    // As many as the limit allows.
    let first = silent.taken.recv_timeout(patience());
    let _first = first.expect("a fetch has begun");
    // Another framework's fetch is not delayed.
    let file = world.dir.path().join("file");
    std::fs::write(&file, "text\n").expect("written");
    let other = || pb::FrameworkId {
        value: "framework-2".to_owned(),
    };
    let framework = pb::FrameworkInfo {
        id: Some(other()),
        ..framework()
    };
    let path = file.display().to_string();
    let quick = with_uri(shell("quick", "test -s file"), path, false);
    world.run_of(&link, framework, quick, true);
    loop {
        let update = world.unacknowledged_update(&mut link);
        assert_eq!(update.status.task_id.value, "quick", "{update:?}");
        world.acknowledge_of(&link, other(), &update.status);
        if meseta_agent::core::is_terminal(update.status.state) {
            assert_eq!(update.status.state(), TaskFinished, "{update:?}");
            break;
        }
    }
    // A fetching and a waiting launch both end when they are killed, although no data arrives.
    for number in [0, MANY - 1] {
        let id = format!("silent-{number}");
        assert_eq!(world.end(&mut link, &id).task_id.value, id);
    }
    let mut rest = silent.taken.try_iter().collect::<Vec<_>>();
    // Ends the remaining launches as well.
    for stream in &mut rest {
        let _ = stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    }
}
