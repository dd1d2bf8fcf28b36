//! Changes the volumes of a running container: those of an executor's later tasks come and go.
//!
//! The kernel lists the present mounts, so that a restarted agent needs no record of them. Invariant: at the mount
//! point of a volume is that volume, or nothing. Blocking.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use meseta_isolators::mount_table::{Location, MountTable};
use meseta_isolators::{
    ContainerName, Containers, Credentials, MountAction, MountStep, ProcessIdentity,
};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::{Origin, Volume, VolumeContext, placed, points, provide_one};
use crate::failure::Failure;

/// The location of volumes below a work directory, or a disk of type PATH. A disk of type MOUNT is a volume as a whole.
const VOLUMES: &str = "/volumes/roles/";

/// Mounts exactly these persistent volumes in a running container.
pub(crate) fn change(
    containers: &Containers,
    name: &ContainerName,
    supervisor: &ProcessIdentity,
    context: &VolumeContext,
    requested: &[Volume],
    owner: Option<&Credentials>,
) -> Result<(), Failure> {
    let machine = Machine::default();
    let look = || mounted(supervisor, &context.root, &machine);
    let (steps, gone) = plan(context, requested, owner, look, |path| {
        machine.location(path)
    })?;
    if steps.is_empty() {
        return Ok(());
    }
    containers.change_mounts(name, supervisor, steps)?;
    for point in gone {
        points::remove(&context.root, &point);
    }
    Ok(())
}

/// The changes, and the mount points that are no longer needed.
fn plan(
    context: &VolumeContext,
    requested: &[Volume],
    owner: Option<&Credentials>,
    mounted: impl FnOnce() -> Result<Vec<Mounted>, Failure>,
    location: impl Fn(&Path) -> Option<Location>,
) -> Result<(Vec<MountStep>, Vec<PathBuf>), Failure> {
    let placed = placed(context, requested)?;
    let requested: BTreeSet<_> = placed.iter().map(|(point, _)| point.path()).collect();
    let there = if context.mounts {
        mounted()?
    } else {
        Vec::new()
    };
    let there = There::new(&there, &context.mount_disks, &location);
    let unmount = |point: &Path| MountStep {
        path: point.to_owned(),
        action: MountAction::Unmount {
            beneath: point.is_relative().then(|| context.root.clone()),
        },
    };
    let mut steps = Vec::new();
    let mut gone = Vec::new();
    for point in there.at.keys().copied() {
        let stale = there.volumes_on_top(point);
        if stale == 0 || requested.contains(point) {
            continue;
        }
        steps.extend(std::iter::repeat_with(|| unmount(point)).take(stale));
        if point.is_relative() {
            gone.push(point.to_owned());
        }
    }
    for (point, volume) in &placed {
        let path = point.path();
        if there
            .seen(path)
            .is_some_and(|seen| !is_another(seen, volume, &location))
        {
            continue;
        }
        // The volume of an earlier task may be mounted there, whose disk may belong to another role by now.
        let stale = there.volumes_on_top(path);
        steps.extend(std::iter::repeat_with(|| unmount(path)).take(stale));
        let step = provide_one(context, point, volume, owner);
        steps.extend(step?);
    }
    Ok((steps, gone))
}

/// The mounts in a container, by mount point.
struct There<'a> {
    /// The sources mounted at each mount point, the topmost last.
    at: BTreeMap<&'a Path, Vec<&'a Location>>,
    /// The locations of the disks of type MOUNT.
    disks: Vec<Location>,
}

impl<'a> There<'a> {
    fn new(
        mounted: &'a [Mounted],
        disks: &[PathBuf],
        location: impl Fn(&Path) -> Option<Location>,
    ) -> Self {
        let mut at: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for one in mounted {
            at.entry(&*one.point).or_default().push(&one.location);
        }
        Self {
            at,
            disks: disks.iter().filter_map(|root| location(root)).collect(),
        }
    }

    fn seen(&self, point: &Path) -> Option<&Location> {
        self.at.get(point)?.last().copied()
    }

    /// The number of persistent volumes on top of each other at a mount point.
    fn volumes_on_top(&self, point: &Path) -> usize {
        let mounts = self.at.get(point).into_iter().flatten().rev();
        mounts.take_while(|one| self.is_volume(one)).count()
    }

    fn is_volume(&self, location: &Location) -> bool {
        location.path.to_string_lossy().contains(VOLUMES) || self.disks.contains(location)
    }
}

/// Whether another source than this volume is mounted, as far as that is known.
fn is_another(
    seen: &Location,
    volume: &Volume,
    location: impl Fn(&Path) -> Option<Location>,
) -> bool {
    match &volume.from {
        Origin::Data { path, .. } => location(path).is_some_and(|requested| requested != *seen),
        Origin::Host(_) | Origin::Sandbox { .. } => false,
    }
}

/// A mount in a container that the machine does not have.
#[derive(Debug)]
struct Mounted {
    /// The mount point: relative to the sandbox, or over an entry of the host.
    point: PathBuf,
    location: Location,
}

/// The mounts of the agent itself; read on demand.
#[derive(Default)]
struct Machine {
    mounts: std::cell::OnceCell<MountTable>,
}

impl Machine {
    fn mounts(&self) -> &MountTable {
        let read = || MountTable::read(Path::new("/proc/self")).unwrap_or_default();
        self.mounts.get_or_init(read)
    }

    /// The location of a path. `None` if the path is missing, or the kernel does not report the mount of a path (Linux
    /// 5.7 and earlier).
    fn location(&self, path: &Path) -> Option<Location> {
        let path = path.canonicalize().ok()?;
        let found = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        let mask = StatxFlags::from_bits_retain(found.stx_mask);
        let id = i32::try_from(found.stx_mnt_id).ok()?;
        let location = self.mounts().by_id(id)?.locate(&path)?;
        mask.contains(StatxFlags::MNT_ID).then_some(location)
    }
}

fn mounted(
    supervisor: &ProcessIdentity,
    sandbox: &Path,
    machine: &Machine,
) -> Result<Vec<Mounted>, Failure> {
    // The kernel lists mounts by paths without links.
    let sandbox = match sandbox.canonicalize() {
        // A removed sandbox contains no mount.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(sandbox.to_owned()),
        found => found,
    };
    let sandbox =
        sandbox.map_err(|error| Failure::new(format!("failed to find the sandbox: {error}")))?;
    let process = PathBuf::from(format!("/proc/{}", supervisor.pid));
    let mounts = MountTable::read(&process)
        .map_err(|error| Failure::new(format!("failed to list the container's mounts: {error}")))?;
    let of_machine = machine.mounts().iter();
    let of_machine: BTreeSet<_> = of_machine
        .map(|mount| (mount.point.clone(), mount.location()))
        .collect();
    let own = mounts.iter().filter_map(|mount| {
        let (point, location) = (mount.point.clone(), mount.location());
        match point.strip_prefix(&sandbox).map(Path::to_owned) {
            Ok(inside) if inside.as_os_str().is_empty() => None,
            Ok(point) => Some(Mounted { point, location }),
            Err(_) => {
                let found = (point, location);
                (!of_machine.contains(&found)).then_some(Mounted {
                    point: found.0,
                    location: found.1,
                })
            }
        }
    });
    Ok(own.collect())
}

#[cfg(test)]
mod tests;
