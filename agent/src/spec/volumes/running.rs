//! Volumes that come and go while their container runs: those of an executor's later tasks.
//!
//! What is mounted there the kernel tells, so that an agent that was started again needs no memory of
//! it. Invariant: what is seen at the place of a volume is that volume, or nothing. Blocking.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use meseta_isolators::{
    ContainerName, Containers, Credentials, MountAction, MountStep, ProcessIdentity,
};
use procfs::process::{MountInfo, Process};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::{Origin, Volume, VolumeContext, placed, points, provide_one};
use crate::failure::Failure;

/// Below a work directory, or a disk of type PATH, volumes are here. One of type MOUNT is a volume as a whole.
const VOLUMES: &str = "/volumes/roles/";

/// Lets exactly these persistent volumes be seen in a container that runs.
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

/// The changes, with the places that nobody needs any more.
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
        // The volume of an earlier task may be there, whose disk may be another role's by now.
        let stale = there.volumes_on_top(path);
        steps.extend(std::iter::repeat_with(|| unmount(path)).take(stale));
        let step = provide_one(context, point, volume, owner);
        steps.extend(step?);
    }
    Ok((steps, gone))
}

/// What is mounted in a container, by the place.
struct There<'a> {
    /// The last one is on top.
    at: BTreeMap<&'a Path, Vec<&'a Location>>,
    /// Those of the disks of type MOUNT.
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

    /// How many persistent volumes there are until something else is seen.
    fn volumes_on_top(&self, point: &Path) -> usize {
        let mounts = self.at.get(point).into_iter().flatten().rev();
        mounts.take_while(|one| self.is_volume(one)).count()
    }

    fn is_volume(&self, location: &Location) -> bool {
        location.path.to_string_lossy().contains(VOLUMES) || self.disks.contains(location)
    }
}

/// Whether something else than this volume is seen, as far as that can be told.
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

/// Something that is mounted in a container and not on the machine.
#[derive(Debug)]
struct Mounted {
    /// Where: relative to the sandbox, or over something of the machine's.
    point: PathBuf,
    location: Location,
}

/// What is mounted, wherever that is.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Location {
    /// The numbers of the device.
    device: String,
    /// The path in its file system.
    path: PathBuf,
}

impl Location {
    fn of(mount: &MountInfo) -> Self {
        Self {
            device: mount.majmin.clone(),
            path: unescaped(mount.root.as_bytes()),
        }
    }
}

/// Where the agent itself finds things; read once it is needed.
#[derive(Default)]
struct Machine {
    mounts: std::cell::OnceCell<Vec<MountInfo>>,
}

impl Machine {
    fn mounts(&self) -> &[MountInfo] {
        self.mounts.get_or_init(|| {
            let mounts = Process::myself().and_then(|process| process.mountinfo());
            mounts
                .map(|mounts| mounts.into_iter().collect())
                .unwrap_or_default()
        })
    }

    /// Where something lies. None if that is not there, or the kernel does not tell the mount of a path (Linux 5.7 and
    /// earlier).
    fn location(&self, path: &Path) -> Option<Location> {
        let path = path.canonicalize().ok()?;
        let found = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        let mask = StatxFlags::from_bits_retain(found.stx_mask);
        let id = i32::try_from(found.stx_mnt_id).ok()?;
        let mount = self.mounts().iter().find(|mount| mount.mnt_id == id)?;
        let point = point_of_mount(mount);
        let below = path.strip_prefix(&point).ok()?;
        let mut location = Location::of(mount);
        // Of the mounted itself there is no further part, and none is put behind it.
        if !below.as_os_str().is_empty() {
            location.path.push(below);
        }
        mask.contains(StatxFlags::MNT_ID).then_some(location)
    }
}

/// A path as the kernel lists it: blanks and backslashes in three octal digits.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

fn point_of_mount(mount: &MountInfo) -> PathBuf {
    unescaped(mount.mount_point.as_os_str().as_bytes())
}

fn mounted(
    supervisor: &ProcessIdentity,
    sandbox: &Path,
    machine: &Machine,
) -> Result<Vec<Mounted>, Failure> {
    // The kernel names mounts without the links that lead to them.
    let sandbox = sandbox.canonicalize();
    let sandbox =
        sandbox.map_err(|error| Failure::new(format!("failed to find the sandbox: {error}")))?;
    let mounts = Process::new(supervisor.pid)
        .and_then(|process| process.mountinfo())
        .map_err(|error| Failure::new(format!("failed to list the container's mounts: {error}")))?;
    let of_machine = machine.mounts().iter();
    let of_machine: BTreeSet<_> = of_machine
        .map(|mount| (point_of_mount(mount), Location::of(mount)))
        .collect();
    let own = mounts.into_iter().filter_map(|mount| {
        let (point, location) = (point_of_mount(&mount), Location::of(&mount));
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
