//! Volumes that are refused before a launch, the places of volumes, and attacks of a sandbox's owner.

use std::os::unix::fs::symlink;

use meseta_resources::{AgentId, ExecutorId, FrameworkId};

use super::*;

fn run() -> RunKey {
    RunKey {
        agent: AgentId::new("S0").expect("valid"),
        framework: FrameworkId::new("F").expect("valid"),
        executor: ExecutorId::new("e").expect("valid"),
        container: ContainerId::new("c").expect("valid"),
    }
}

fn disk(id: &str, container_path: &str, mode: pb::volume::Mode) -> pb::Resource {
    pb::Resource {
        name: "disk".to_owned(),
        r#type: pb::value::Type::Scalar.into(),
        scalar: Some(pb::value::Scalar { value: 10.0 }),
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
        ..pb::Resource::default()
    }
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

/// A work directory with a sandbox in it.
struct Fixture {
    _dir: tempfile::TempDir,
    layout: Layout,
    host_paths: Arc<HostPaths>,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().canonicalize().expect("there"));
        fs::create_dir_all(layout.sandbox(&run()).join("containers/in")).expect("made");
        let data = layout.work_dir().join("volumes/roles/dev");
        fs::create_dir_all(data.join("v")).expect("made");
        fs::create_dir_all(data.join("w")).expect("made");
        Self {
            _dir: dir,
            layout,
            host_paths: Arc::default(),
        }
    }

    fn plan(&self, volumes: Vec<pb::Volume>) -> LaunchPlan {
        let container = ContainerId::new("c").expect("valid");
        LaunchPlan {
            run: run().into(),
            container: container.child("in").expect("valid"),
            subject: Subject::Nested(
                pb::TaskInfo {
                    container: Some(Box::new(pb::ContainerInfo {
                        r#type: pb::container_info::Type::Mesos.into(),
                        volumes,
                        ..pb::ContainerInfo::default()
                    })),
                    ..pb::TaskInfo::default()
                }
                .into(),
            ),
            user: "root".to_owned(),
            role: None,
            demand: meseta_isolators::Demand::default(),
            resources: meseta_resources::Resources::default(),
            volumes: Vec::new(),
            parent_volumes: Vec::new(),
        }
    }

    fn context(&self, plan: &LaunchPlan, mounts: bool) -> VolumeContext {
        VolumeContext {
            root: self.layout.sandbox(&plan.run),
            inside: inside(&plan.container),
            mounts,
            host_paths: self.host_paths.clone(),
            mount_disks: Arc::default(),
        }
    }

    fn provide(&self, plan: &LaunchPlan, mounts: bool) -> Result<Vec<MountStep>, String> {
        let context = self.context(plan, mounts);
        of_plan(&self.layout, plan)
            .and_then(|volumes| provide(&context, &volumes, None))
            .map_err(|error| meseta_daemon::error_chain::chain(&error))
    }

    fn inner(&self, path: &str) -> PathBuf {
        self.layout.sandbox(&run()).join("containers/in").join(path)
    }
}

fn source(step: &MountStep) -> (PathBuf, bool) {
    match &step.action {
        MountAction::Bind {
            source, writable, ..
        } => {
            let root = source.beneath.clone().unwrap_or_default();
            (root.join(&source.path), *writable)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn volume_is_mounted_at_its_path() {
    let fixture = Fixture::new();
    let mut plan = fixture.plan(Vec::new());
    plan.volumes = vec![
        disk("v", "./a/data", pb::volume::Mode::Rw),
        disk("w", "b", pb::volume::Mode::Ro),
    ];
    let steps = fixture.provide(&plan, true).expect("provided");
    let data = fixture.layout.work_dir().join("volumes/roles/dev");
    let sources: Vec<_> = steps.iter().map(source).collect();
    assert_eq!(sources, [(data.join("v"), true), (data.join("w"), false)]);
    assert_eq!(steps[0].path, Path::new("containers/in/a/data"));
    assert!(fixture.inner("a/data").is_dir() && fixture.inner("b").is_dir());
}

#[test]
fn without_mounts_a_link_stands_in() {
    let fixture = Fixture::new();
    let mut plan = fixture.plan(vec![sandbox_volume(sandbox_path::Type::Parent, "s", "s")]);
    plan.volumes = vec![disk("v", "a/data", pb::volume::Mode::Rw)];
    assert_eq!(fixture.provide(&plan, false), Ok(Vec::new()));
    fs::write(fixture.inner("a/data/file"), "text").expect("written");
    let data = fixture.layout.work_dir().join("volumes/roles/dev/v/file");
    assert_eq!(fs::read_to_string(data).expect("read"), "text");
    fs::write(fixture.inner("s/file"), "text").expect("written");
    assert!(fixture.layout.sandbox(&run()).join("s/file").is_file());
    // Once more, as for the next task of the same executor.
    assert_eq!(fixture.provide(&plan, false), Ok(Vec::new()));
}

#[test]
fn shared_volume_of_group_is_found() {
    let fixture = Fixture::new();
    let mut plan = fixture.plan(vec![
        sandbox_volume(sandbox_path::Type::Parent, "data", "one"),
        sandbox_volume(sandbox_path::Type::Parent, "data/sub", "two"),
        sandbox_volume(sandbox_path::Type::Parent, "plain", "three"),
        sandbox_volume(sandbox_path::Type::Self_, "own", "/tmp"),
    ]);
    plan.parent_volumes = vec![disk("v", "data", pb::volume::Mode::Rw)];
    let steps = fixture.provide(&plan, true).expect("provided");
    let sources: Vec<_> = steps.iter().map(|step| source(step).0).collect();
    let data = fixture.layout.work_dir().join("volumes/roles/dev/v");
    let outer = fixture.layout.sandbox(&run());
    let expected = [
        data.clone(),
        data.join("sub"),
        outer.join("plain"),
        outer.join("containers/in/own"),
    ];
    assert_eq!(sources, expected);
    assert!(expected.iter().all(|path| path.is_dir()));
}

#[test]
fn invalid_volumes_are_refused() {
    let fixture = Fixture::new();
    let long = "b/".repeat(2_048);
    let parent = |path, at| sandbox_volume(sandbox_path::Type::Parent, path, at);
    let own = |path, at| sandbox_volume(sandbox_path::Type::Self_, path, at);
    let host = |path: &str, at: &str| pb::Volume {
        container_path: at.to_owned(),
        host_path: Some(path.to_owned()),
        mode: pb::volume::Mode::Rw.into(),
        ..pb::Volume::default()
    };
    let secret = pb::Volume {
        source: Some(pb::volume::Source {
            r#type: Some(SourceType::Secret.into()),
            ..pb::volume::Source::default()
        }),
        ..parent("a", "b")
    };
    for (volumes, complaint) in [
        (vec![parent("../a", "b")], "does not stay in the sandbox"),
        (vec![parent("/a", "b")], "does not stay in the sandbox"),
        (vec![parent("a", "../b")], "relative path that stays"),
        (vec![parent("a", "")], "relative path that stays"),
        (vec![parent("a", ".")], "relative path that stays"),
        (vec![own("a", "b")], "'container_path' is relative"),
        (vec![host("a", "b")], "'container_path' is relative"),
        (
            vec![parent("a", "b/d"), parent("c", "b.d"), parent("c", "b")],
            "volume b/d and volume b would hide each other",
        ),
        (
            vec![parent("a", "b"), parent("c", "b.d"), parent("c", "./b")],
            "volume b and volume ./b would hide each other",
        ),
        (
            vec![parent("a", &long)],
            "its path has 4096 bytes, more than 4095",
        ),
        (
            vec![parent(&long, "a")],
            "its path has 4096 bytes, more than 4095",
        ),
        (
            vec![parent("a", "b"), parent("c", "b/d")],
            "hide each other",
        ),
        (
            vec![parent("a", "/proc/sys")],
            "nothing can be mounted there",
        ),
        (vec![parent("a", "/sys")], "nothing can be mounted there"),
        (vec![parent("a", "/")], "nothing can be mounted there"),
        (
            vec![parent("a", "/proc/self/root")],
            "nothing can be mounted there",
        ),
        (vec![parent("a", "/no/such/place")], "it must exist"),
        (vec![host("/no/such/place", "b")], "does not exist"),
        (
            vec![host("/etc/passwd", "/tmp")],
            "a file can be mounted on a file",
        ),
        (vec![secret], "volumes of type SECRET are not supported"),
    ] {
        let error = fixture
            .provide(&fixture.plan(volumes), true)
            .expect_err(complaint);
        assert!(error.contains(complaint), "{complaint}: {error}");
    }
    for (volume, complaint) in [
        (host("/tmp", "b"), "needs namespaces/mnt"),
        (parent("a", "/tmp"), "needs namespaces/mnt"),
    ] {
        let error = fixture
            .provide(&fixture.plan(vec![volume]), false)
            .expect_err(complaint);
        assert!(error.contains(complaint), "{complaint}: {error}");
    }
}

fn host_volume(path: &Path, at: &str) -> pb::Volume {
    pb::Volume {
        container_path: at.to_owned(),
        host_path: Some(path.display().to_string()),
        mode: pb::volume::Mode::Rw.into(),
        ..pb::Volume::default()
    }
}

#[test]
fn host_paths_need_operator_permission() {
    let mut fixture = Fixture::new();
    let machine = tempfile::tempdir().expect("a directory");
    let machine = machine.path().canonicalize().expect("there");
    let (listed, other) = (machine.join("listed"), machine.join("other"));
    fs::create_dir_all(listed.join("in")).expect("made");
    fs::create_dir(&other).expect("made");
    symlink(&other, listed.join("out")).expect("linked");
    symlink(listed.join("in"), other.join("back")).expect("linked");
    let own = vec![fixture.layout.work_dir().to_owned()];
    fixture.host_paths = Arc::new(HostPaths::new(Some(vec![listed.clone()]), own));
    let provide = |path: &Path| fixture.provide(&fixture.plan(vec![host_volume(path, "b")]), true);
    // The real path decides, and is mounted.
    for path in [listed.join("in"), other.join("back")] {
        let steps = provide(&path).expect("allowed");
        let MountAction::Bind { source, .. } = &steps[0].action else {
            panic!("{steps:?}");
        };
        let expected = MountSource {
            beneath: None,
            path: listed.join("in"),
            by_user: true,
        };
        assert_eq!(*source, expected);
    }
    for path in [&other, &listed.join("out"), &machine] {
        let error = provide(path).expect_err("not listed");
        assert!(error.contains("--allowed_host_paths"), "{error}");
    }
    let error = provide(&fixture.layout.sandbox(&run())).expect_err("the agent's");
    assert!(error.contains("the agent's own"), "{error}");
    // A path that leads through a process is refused.
    let error = provide(Path::new("/proc/self/root/etc")).expect_err("a process's");
    assert!(error.contains("in HOST_PATH volume"), "{error}");
}

#[test]
fn links_in_a_sandbox_lead_nowhere() {
    let fixture = Fixture::new();
    let precious = fixture.layout.work_dir().join("precious");
    fs::create_dir(&precious).expect("made");
    let sandbox = fixture.layout.sandbox(&run());
    symlink(&precious, sandbox.join("link")).expect("linked");
    symlink(&precious, fixture.inner("link")).expect("linked");
    let parent = |path, at| sandbox_volume(sandbox_path::Type::Parent, path, at);
    for volume in [
        parent("link", "a"),
        parent("link/sub", "a"),
        parent("a", "link"),
        parent("a", "link/sub"),
    ] {
        let plan = fixture.plan(vec![volume.clone()]);
        assert!(fixture.provide(&plan, true).is_err(), "{volume:?}");
    }
    assert_eq!(fs::read_dir(&precious).expect("read").count(), 0);
    // Instead of the whole path to the container's own sandbox.
    fs::rename(sandbox.join("containers"), sandbox.join("aside")).expect("renamed");
    symlink(&precious, sandbox.join("containers")).expect("linked");
    let plan = fixture.plan(vec![parent("a", "b")]);
    assert!(fixture.provide(&plan, true).is_err());
    assert_eq!(fs::read_dir(&precious).expect("read").count(), 0);
}

/// Regression: hundreds of thousands of volumes were compared pairwise while they held one of the few permits to
/// launch.
#[test]
fn excess_volumes_are_refused_at_once() {
    let fixture = Fixture::new();
    let volumes = |count: usize| {
        let paths = (0..count).map(|number| format!("v{number}"));
        let volumes = paths.map(|path| sandbox_volume(sandbox_path::Type::Parent, "w", &path));
        fixture.plan(volumes.collect())
    };
    let error = fixture.provide(&volumes(100_000), true);
    let expected = "the container has 100000 volumes, more than 1024";
    assert_eq!(error, Err(expected.to_owned()));
    let mut plan = volumes(VOLUMES_MAX);
    let provided = of_plan(&fixture.layout, &plan).expect("not too many");
    assert_eq!(provided.len(), VOLUMES_MAX);
    plan.volumes = vec![disk("v", "data", pb::volume::Mode::Rw)];
    let error = of_plan(&fixture.layout, &plan).expect_err("one more");
    assert!(matches!(error, VolumeError::TooMany { count: 1025 }));
}

/// A running container may have as many persistent volumes as its agent.
#[test]
fn volume_order_avoids_pairwise_comparison() {
    let fixture = Fixture::new();
    let context = fixture.context(&fixture.plan(Vec::new()), true);
    let volume = |number: usize| Volume {
        name: format!("volume {number}"),
        from: Origin::Host("/".into()),
        container_path: format!("v{number}/data"),
        writable: true,
    };
    let volumes: Vec<_> = (0..200_000).map(volume).collect();
    let all = placed(&context, &volumes).expect("side by side");
    assert_eq!(all.len(), volumes.len());
}
