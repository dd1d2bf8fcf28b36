//! Volumes that come and go while their container runs: those of an executor's later tasks.
//!
//! What is mounted there the kernel tells, so that an agent that was started again needs no memory of
//! it. Invariant: what is seen at the place of a volume is that volume, or nothing. Blocking.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use meseta_isolators::{
    ContainerName, Containers, Credentials, MountAction, MountStep, ProcessIdentity,
};
use procfs::process::{MountInfo, Process};
use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::{Origin, Point, Volume, VolumeContext, placed, points, provide_one};
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
    let look = || mounted(supervisor, &context.root);
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
    let there = if context.mounts {
        mounted()?
    } else {
        Vec::new()
    };
    let mut at: BTreeMap<&Path, Vec<&Location>> = BTreeMap::new();
    for one in &there {
        at.entry(&one.point).or_default().push(&one.location);
    }
    let disks = context.mount_disks.iter();
    let disks: Vec<Location> = disks.filter_map(|root| location(root)).collect();
    let is_volume =
        |one: &Location| one.path.to_string_lossy().contains(VOLUMES) || disks.contains(one);
    let unmount = |point: &Path| MountStep {
        path: point.to_owned(),
        action: MountAction::Unmount {
            beneath: Some(context.root.clone()),
        },
    };
    let mut steps = Vec::new();
    let mut gone = Vec::new();
    for (point, mounts) in &at {
        let is_requested =
            |(place, _): &(Point, _)| matches!(place, Point::Sandbox(place) if place == point);
        if placed.iter().any(is_requested) {
            continue;
        }
        let volumes = mounts.iter().filter(|one| is_volume(one));
        let before = steps.len();
        steps.extend(volumes.map(|_| unmount(point)));
        if steps.len() > before {
            gone.push((*point).to_owned());
        }
    }
    for (point, volume) in placed {
        let mounts = match &point {
            Point::Sandbox(path) => at.get(&**path).map_or(&[][..], Vec::as_slice),
            Point::Host(_) => &[],
        };
        if mounts
            .last()
            .is_some_and(|seen| !is_another(seen, volume, &location))
        {
            continue;
        }
        // The volume of an earlier task may be there, whose disk may be another role's by now.
        steps.extend(mounts.iter().map(|_| unmount(point.path())));
        let step = provide_one(context, &point, volume, owner);
        steps.extend(step?);
    }
    Ok((steps, gone))
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

/// Something that is mounted in a sandbox.
#[derive(Debug)]
struct Mounted {
    /// Where, relative to the sandbox.
    point: PathBuf,
    location: Location,
}

/// What is mounted, wherever that is.
#[derive(Clone, Debug, Eq, PartialEq)]
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
    /// Where something lies. None if that is not there, or the kernel does not tell the mount of a path (Linux 5.7 and
    /// earlier).
    fn location(&self, path: &Path) -> Option<Location> {
        let path = path.canonicalize().ok()?;
        let found = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
        let mask = StatxFlags::from_bits_retain(found.stx_mask);
        let id = i32::try_from(found.stx_mnt_id).ok()?;
        let mounts = self.mounts.get_or_init(|| {
            let mounts = Process::myself().and_then(|process| process.mountinfo());
            mounts
                .map(|mounts| mounts.into_iter().collect())
                .unwrap_or_default()
        });
        let mount = mounts.iter().find(|mount| mount.mnt_id == id)?;
        let point = unescaped(mount.mount_point.as_os_str().as_bytes());
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

fn mounted(supervisor: &ProcessIdentity, sandbox: &Path) -> Result<Vec<Mounted>, Failure> {
    // The kernel names mounts without the links that lead to them.
    let sandbox = sandbox.canonicalize();
    let sandbox =
        sandbox.map_err(|error| Failure::new(format!("failed to find the sandbox: {error}")))?;
    let mounts = Process::new(supervisor.pid)
        .and_then(|process| process.mountinfo())
        .map_err(|error| Failure::new(format!("failed to list the container's mounts: {error}")))?;
    let inside = mounts.into_iter().filter_map(|mount| {
        let point = unescaped(mount.mount_point.as_os_str().as_bytes());
        let point = point.strip_prefix(&sandbox).ok()?.to_owned();
        Some(Mounted {
            location: Location::of(&mount),
            point,
        })
    });
    Ok(inside
        .filter(|one| !one.point.as_os_str().is_empty())
        .collect())
}

#[cfg(test)]
mod tests;
