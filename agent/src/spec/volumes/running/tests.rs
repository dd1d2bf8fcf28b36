//! The mounts and unmounts when the volumes of a running container change.

use std::sync::Arc;

use super::*;

/// A work directory with a sandbox, and two disks of type MOUNT.
struct Fixture {
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        for folder in ["sandbox", "one", "two", "w/volumes/roles/dev/v"] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("made");
        }
        Self { dir }
    }

    fn context(&self) -> VolumeContext {
        VolumeContext {
            root: self.dir.path().join("sandbox"),
            inside: PathBuf::new(),
            mounts: true,
            host_paths: Arc::default(),
            mount_disks: ["one", "two"].map(|disk| self.dir.path().join(disk)).into(),
        }
    }

    /// A volume with this mount point.
    fn volume(&self, path: &str, point: &str) -> Volume {
        Volume {
            name: path.to_owned(),
            from: Origin::Data {
                path: self.dir.path().join(path),
                shared: false,
            },
            container_path: point.to_owned(),
            writable: true,
        }
    }

    /// Each disk is a separate device, whose file system is mounted as a whole.
    fn location(&self, path: &Path) -> Option<Location> {
        let below = path.strip_prefix(self.dir.path()).ok()?;
        let (device, path) = match below.to_str()? {
            "one" => ("7:1", Path::new("/")),
            "two" => ("7:2", Path::new("/")),
            _ => ("8:1", path),
        };
        Some(Location {
            device: device.to_owned(),
            path: path.to_owned(),
        })
    }

    /// The changes if these volumes are mounted at `data`, the last on top: `-` for an unmount and the name of a
    /// mounted volume; and the mount points removed afterwards.
    fn changes(&self, mounted: &[&str], requested: &[&str]) -> (Vec<String>, Vec<PathBuf>) {
        self.changes_at("data", mounted, requested)
    }

    /// The changes at another mount point.
    fn changes_at(
        &self,
        point: &str,
        mounted: &[&str],
        requested: &[&str],
    ) -> (Vec<String>, Vec<PathBuf>) {
        let there = mounted.iter().map(|path| Mounted {
            point: point.into(),
            location: self.location(&self.dir.path().join(path)).expect("known"),
        });
        let there = there.collect();
        let requested = requested.iter().map(|path| self.volume(path, point));
        let requested: Vec<_> = requested.collect();
        let location = |path: &Path| self.location(path);
        let planned = plan(&self.context(), &requested, None, || Ok(there), location);
        let (steps, gone) = planned.map_err(String::from).expect("planned");
        let steps = steps.iter().map(|step| match &step.action {
            MountAction::Bind { source, .. } => {
                let path = source.path.strip_prefix(self.dir.path());
                path.expect("ours").display().to_string()
            }
            _ => "-".to_owned(),
        });
        (steps.collect(), gone)
    }
}

const ON_ROOT_DISK: &str = "w/volumes/roles/dev/v";

#[test]
fn volume_of_ended_task_is_unmounted() {
    let fixture = Fixture::new();
    for volume in [ON_ROOT_DISK, "one"] {
        let (steps, gone) = fixture.changes(&[volume], &[]);
        assert_eq!(steps, ["-"], "{volume}");
        assert_eq!(gone, [Path::new("data")]);
        let (steps, gone) = fixture.changes(&[volume], &[volume]);
        assert!(steps.is_empty() && gone.is_empty(), "{volume}");
    }
    // A volume of the executor's own, which it has as long as it runs.
    let (steps, gone) = fixture.changes(&["sandbox"], &[]);
    assert!(steps.is_empty() && gone.is_empty());
}

#[test]
fn volume_replaces_another_at_path() {
    let fixture = Fixture::new();
    for (before, after) in [("one", "two"), (ON_ROOT_DISK, "one"), ("one", ON_ROOT_DISK)] {
        let (steps, gone) = fixture.changes(&[before], &[after]);
        assert_eq!(steps, ["-", after]);
        assert!(gone.is_empty(), "its place is needed");
    }
    let (steps, _) = fixture.changes(&["one", "two"], &[ON_ROOT_DISK]);
    assert_eq!(steps, ["-", "-", ON_ROOT_DISK]);
    let (steps, _) = fixture.changes(&["one", "two"], &["two"]);
    assert!(steps.is_empty(), "the last one is seen");
}

/// Regression: such a volume was mounted once more for each task that came or went, and never unmounted.
#[test]
fn volume_over_host_folder_mounts_once() {
    let fixture = Fixture::new();
    let place = fixture.dir.path().join("two").canonicalize();
    let place = place.expect("there").display().to_string();
    let changes = |mounted: &[&str], requested: &[&str]| {
        let (steps, gone) = fixture.changes_at(&place, mounted, requested);
        assert!(gone.is_empty(), "the folder is the machine's");
        steps
    };
    assert_eq!(changes(&[], &["one"]), ["one"]);
    assert_eq!(changes(&["one"], &["one"]), [""; 0]);
    assert_eq!(changes(&["one"], &[]), ["-"]);
    // An earlier mount stays below it.
    assert_eq!(
        changes(&["sandbox", "one"], &[ON_ROOT_DISK]),
        ["-", ON_ROOT_DISK]
    );
    assert_eq!(changes(&["sandbox"], &["one"]), ["one"]);
    assert_eq!(changes(&["sandbox"], &[]), [""; 0]);
}

#[test]
fn mount_location_is_its_sources() {
    let machine = Machine::default();
    let of = |path: &str| machine.location(Path::new(path)).expect("it is there");
    let (proc, sys) = (of("/proc"), of("/proc/sys"));
    assert_eq!(proc.path, Path::new("/"));
    let mounts = MountTable::read(Path::new("/proc/self")).expect("mounts");
    let mounts: Vec<_> = mounts.iter().collect();
    let at = |path: &str| mounts.iter().rfind(|mount| mount.point == Path::new(path));
    assert_eq!(
        at("/proc").map(|mount| mount.location()),
        Some(proc.clone())
    );
    match at("/proc/sys") {
        Some(mount) => assert_eq!(mount.location(), sys),
        None => assert_eq!((sys.device, &*sys.path), (proc.device, Path::new("/sys"))),
    }
    assert_eq!(machine.location(Path::new("/no/such/place")), None);
}
