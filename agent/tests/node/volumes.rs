//! Volumes on the real kernel: mounted for their container only, writable or not, and unmounted with it.

use std::collections::BTreeMap;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{TaskFailed, TaskFinished, TaskKilled};
use meseta_proto::mesos::v1::volume::source::{Type as SourceType, sandbox_path};
use meseta_tests::kernel::mounts_like;

use crate::Test;
use crate::executors::custom;
use crate::harness::{Link, World, by, fixed_port, framework_id, pid_of, scalar, shell, wait_for};

pub(crate) const TESTS: &[Test] = tests![
    root(volumes_are_mounted_and_keep_data),
    root(host_and_sandbox_volumes_are_mounted),
    root(group_volumes_are_shared_within_group),
    root(volumes_change_under_running_executor),
];

/// The agent's disk is all reserved for the role.
const RESOURCES: &str = "--resources=cpus:4;mem:1024;disk(dev):1024";

fn volume(id: &str, container_path: &str, mode: pb::volume::Mode) -> pb::Resource {
    pb::Resource {
        reservations: vec![pb::resource::ReservationInfo {
            r#type: Some(pb::resource::reservation_info::Type::Static.into()),
            role: Some("dev".to_owned()),
            ..pb::resource::ReservationInfo::default()
        }],
        disk: Some(Box::new(pb::resource::DiskInfo {
            persistence: Some(pb::resource::disk_info::Persistence {
                id: id.to_owned(),
                principal: None,
            }),
            volume: Some(pb::Volume {
                container_path: container_path.to_owned(),
                mode: mode.into(),
                ..pb::Volume::default()
            }),
            ..pb::resource::DiskInfo::default()
        })),
        ..scalar("disk", 64.0)
    }
}

fn writable(id: &str, container_path: &str) -> pb::Resource {
    volume(id, container_path, pb::volume::Mode::Rw)
}

/// An agent with the volume `v`.
fn with_volume() -> (World, Link) {
    let (world, mut link) = World::registered(&[RESOURCES]);
    create(&world, &mut link);
    (world, link)
}

fn create(world: &World, link: &mut Link) {
    world.send(
        link,
        ToAgent::ApplyOperation(wire::ApplyOperation {
            framework_id: Some(framework_id()),
            operation: pb::offer::Operation {
                r#type: Some(pb::offer::operation::Type::Create.into()),
                create: Some(pb::offer::operation::Create {
                    volumes: vec![writable("v", "data")],
                }),
                ..pb::offer::Operation::default()
            },
            operation_uuid: pb::Uuid { value: vec![7; 16] },
            resource_version_uuid: None,
        }),
    );
    let told = loop {
        match world.next(link) {
            FromAgent::OperationUpdate(update) => break update,
            FromAgent::Pong(_) => {}
            other => panic!("not of an operation: {other:?}"),
        }
    };
    let state = told.status.state();
    assert_eq!(state, pb::OperationState::OperationFinished, "{told:?}");
    world.send(
        link,
        ToAgent::AcknowledgeOperation(wire::AcknowledgeOperation {
            operation_uuid: told.operation_uuid,
            status_uuid: told.status.uuid.expect("a uuid").value,
        }),
    );
    // Durable, so that no restarted agent reports it again.
    wait_for("the agent to forget the operation", || {
        let told = world.call(&serde_json::json!({"type": "GET_OPERATIONS"}));
        let told = told.json();
        let left = told["get_operations"]["operations"].as_array();
        left.is_none_or(Vec::is_empty).then_some(())
    });
}

fn data(world: &World) -> String {
    let file = world.work_dir().join("volumes/roles/dev/v/file");
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Checks that the machine sees no mounts of the agent.
fn machine_is_clean(world: &World) {
    let mounts = mounts_like(&world.work_dir().display().to_string());
    assert!(mounts.is_empty(), "{mounts:?}");
}

fn holding(mut task: pb::TaskInfo, resource: pb::Resource) -> pb::TaskInfo {
    task.resources.push(resource);
    task
}

fn finishes(world: &World, link: &mut Link, task: pb::TaskInfo) {
    world.run_to(link, task, TaskFinished);
}

fn fails(world: &World, link: &mut Link, task: pb::TaskInfo, complaint: &str) {
    let message = world.run_refused(link, task);
    assert!(message.contains(complaint), "{message}");
}

fn volumes_are_mounted_and_keep_data() {
    let (world, mut link) = with_volume();
    let write = "echo kept > data/file && grep -q \"$PWD/data \" /proc/self/mountinfo";
    let task = holding(shell("writes", write), writable("v", "data"));
    finishes(&world, &mut link, task);
    assert_eq!(data(&world), "kept\n");
    machine_is_clean(&world);
    let read = "cat a/b/file && ! touch a/b/other && ! rm a/b/file && test -f a/b/file";
    let only_read = volume("v", "a/b", pb::volume::Mode::Ro);
    finishes(&world, &mut link, holding(shell("reads", read), only_read));
    assert_eq!(data(&world), "kept\n");
    // The volume belongs to its user, here `nobody`.
    let text = "id -un | grep -qx nobody && touch data/new && rm data/new";
    let task = by("nobody", shell("nobodys", text));
    finishes(&world, &mut link, holding(task, writable("v", "data")));
    // Over a folder of the host, for this container only.
    let place = world.dir.path().join("place");
    std::fs::create_dir(&place).expect("made");
    let place = place.display().to_string();
    let there = format!("test \"$(cat {place}/file)\" = kept");
    let task = holding(shell("there", &there), writable("v", &place));
    finishes(&world, &mut link, task);
    assert_eq!(std::fs::read_dir(&place).expect("read").count(), 0);
    for (path, complaint) in [
        ("../data", "give a relative path that stays in the sandbox"),
        ("/no/such/place", "it must exist"),
        ("/proc/sys", "nothing can be mounted there"),
    ] {
        let task = shell(&format!("bad-{}", path.len()), "true");
        let task = holding(task, writable("v", path));
        fails(&world, &mut link, task, complaint);
    }
    assert_eq!(data(&world), "kept\n");
    machine_is_clean(&world);
}

fn mesos_container(volumes: Vec<pb::Volume>) -> Option<Box<pb::ContainerInfo>> {
    Some(Box::new(pb::ContainerInfo {
        r#type: pb::container_info::Type::Mesos.into(),
        volumes,
        ..pb::ContainerInfo::default()
    }))
}

fn sandbox_volume(kind: sandbox_path::Type, path: &str, container_path: &str) -> pb::Volume {
    pb::Volume {
        container_path: container_path.to_owned(),
        mode: pb::volume::Mode::Rw.into(),
        source: Some(pb::volume::Source {
            r#type: Some(SourceType::SandboxPath.into()),
            sandbox_path: Some(pb::volume::source::SandboxPath {
                r#type: Some(kind.into()),
                path: path.to_owned(),
            }),
            ..pb::volume::Source::default()
        }),
        ..pb::Volume::default()
    }
}

fn host_and_sandbox_volumes_are_mounted() {
    let (world, mut link) = World::registered(&[]);
    let made = |name: &str| {
        let path = world.dir.path().join(name);
        std::fs::create_dir(&path).expect("made");
        path.display().to_string()
    };
    let (source, place) = (made("source"), made("place"));
    std::fs::write(format!("{source}/file"), "of the machine\n").expect("written");
    let host = |path: String, container_path: &str, mode: pb::volume::Mode| pb::Volume {
        container_path: container_path.to_owned(),
        host_path: Some(path),
        mode: mode.into(),
        ..pb::Volume::default()
    };
    let command = format!(
        "cat folder/file one && ! touch folder/new && touch more/new && echo mine > {place}/x && cat own/x"
    );
    let mut task = shell("sees", &command);
    task.container = mesos_container(vec![
        host(source.clone(), "folder", pb::volume::Mode::Ro),
        host(source.clone(), "more", pb::volume::Mode::Rw),
        host(format!("{source}/file"), "one", pb::volume::Mode::Ro),
        sandbox_volume(sandbox_path::Type::Self_, "own", &place),
    ]);
    finishes(&world, &mut link, task);
    assert!(std::path::Path::new(&source).join("new").exists());
    assert_eq!(std::fs::read_dir(&place).expect("read").count(), 0);
    machine_is_clean(&world);
    let mut task = shell("blind", "true");
    let nowhere = host("/no/such/path".to_owned(), "here", pb::volume::Mode::Rw);
    task.container = mesos_container(vec![nowhere]);
    let complaint = "in HOST_PATH volume does not exist";
    fails(&world, &mut link, task, complaint);
}

fn group_volumes_are_shared_within_group() {
    let (world, mut link) = with_volume();
    let writer = "echo kept > data/file && echo said > common/word && exec sleep 1000";
    let mut writer = holding(shell("writer", writer), writable("v", "data"));
    let parent = sandbox_path::Type::Parent;
    writer.container = mesos_container(vec![sandbox_volume(parent, "shared", "common")]);
    let reader = "until test -s seen/file && test -s word/word; do sleep 0.05; done; cat seen/file word/word; exit 7";
    let mut reader = shell("reader", reader);
    reader.container = mesos_container(vec![
        sandbox_volume(parent, "data", "seen"),
        sandbox_volume(parent, "shared", "word"),
    ]);
    world.run_group(&link, vec![writer, reader]);
    let mut ended = BTreeMap::new();
    while ended.len() < 2 {
        let status = world.update(&mut link);
        if meseta_agent::core::is_terminal(status.state) {
            ended.insert(status.task_id.value.clone(), status.state());
        }
    }
    // The reader saw both, and its failure ended the writer.
    assert_eq!(ended["reader"], TaskFailed);
    assert_eq!(ended["writer"], TaskKilled);
    assert_eq!(data(&world), "kept\n");
    machine_is_clean(&world);
}

fn volumes_change_under_running_executor() {
    let (mut world, mut link) = World::registered(&[RESOURCES, &fixed_port()]);
    create(&world, &mut link);
    let pid = pid_of(&world.running_in_executor(&mut link, custom("a", "json"), true));
    let mounts = || std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).unwrap_or_default();
    assert!(!mounts().contains("/volumes/roles/"));
    let late = holding(custom("b", "json"), writable("v", "late"));
    world.running_in_executor(&mut link, late, false);
    assert!(mounts().contains("/late "), "{}", mounts());
    // The machine sees an empty folder, and the container sees the volume.
    let sandbox = world.sandbox();
    let inside = format!("/proc/{pid}/root{}/late", sandbox.display());
    std::fs::write(format!("{inside}/file"), "kept\n").expect("written");
    assert_eq!(data(&world), "kept\n");
    let late = std::fs::read_dir(sandbox.join("late")).expect("read");
    assert_eq!(late.count(), 0);
    machine_is_clean(&world);

    world.signal_agent(rustix::process::Signal::KILL);
    (link, _) = world.start_again();
    assert!(mounts().contains("/late "), "{}", mounts());
    world.end(&mut link, "b");
    wait_for("the volume's place to go", || {
        (!mounts().contains("/late ")).then_some(())
    });
    wait_for("its folder to go", || {
        (!sandbox.join("late").exists()).then_some(())
    });
    assert_eq!(data(&world), "kept\n");
    // Over a folder of the host only once, for any number of later tasks.
    let place = world.dir.path().join("place");
    std::fs::create_dir(&place).expect("made");
    let place = place.display().to_string();
    let over = holding(custom("c", "json"), writable("v", &place));
    world.running_in_executor(&mut link, over, false);
    world.running_in_executor(&mut link, custom("d", "json"), false);
    let times = || mounts().matches(&format!(" {place} ")).count();
    assert_eq!(times(), 1, "{}", mounts());
    world.end(&mut link, "c");
    wait_for("the volume to go from there", || {
        (times() == 0).then_some(())
    });
    world.end(&mut link, "d");
    world.end(&mut link, "a");
}
