//! Volumes that come and go while their container runs: those of an executor's later tasks.
//!
//! What is mounted there the kernel tells, so that an agent that was started again needs no memory of
//! it. Blocking.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use meseta_isolators::{
    ContainerName, Containers, Credentials, MountAction, MountStep, ProcessIdentity,
};

use super::{Point, Volume, VolumeContext, placed, points, provide_one};
use crate::failure::Failure;

/// Below a work directory, or a disk of its own, volumes are here.
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
    let (steps, gone) = plan(context, requested, owner, || {
        mounted(supervisor, &context.root)
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
) -> Result<(Vec<MountStep>, Vec<PathBuf>), Failure> {
    let placed = placed(context, requested)?;
    let there = if context.mounts {
        mounted()?
    } else {
        Vec::new()
    };
    let points: BTreeSet<&Path> = placed.iter().map(|(point, _)| point.path()).collect();
    let stale = there
        .iter()
        .filter(|one| one.is_volume && !points.contains(&*one.point));
    let gone: Vec<PathBuf> = stale.map(|one| one.point.clone()).collect();
    let unmount = |point: &PathBuf| MountStep {
        path: point.clone(),
        action: MountAction::Unmount {
            beneath: Some(context.root.clone()),
        },
    };
    let mut steps: Vec<MountStep> = gone.iter().map(unmount).collect();
    for (point, volume) in placed {
        let is_there = |one: &Mounted| Point::Sandbox(one.point.clone()) == point;
        if there.iter().any(is_there) {
            continue;
        }
        let step = provide_one(context, &point, volume, owner);
        steps.extend(step?);
    }
    Ok((steps, gone))
}

/// Something that is mounted in a sandbox.
#[derive(Debug)]
struct Mounted {
    /// Where, relative to the sandbox.
    point: PathBuf,
    /// Whether it is a persistent volume.
    is_volume: bool,
}

fn mounted(supervisor: &ProcessIdentity, sandbox: &Path) -> Result<Vec<Mounted>, Failure> {
    // The kernel names mounts without the links that lead to them.
    let sandbox = sandbox.canonicalize();
    let sandbox =
        sandbox.map_err(|error| Failure::new(format!("failed to find the sandbox: {error}")))?;
    let mounts = procfs::process::Process::new(supervisor.pid)
        .and_then(|process| process.mountinfo())
        .map_err(|error| Failure::new(format!("failed to list the container's mounts: {error}")))?;
    let inside = mounts.into_iter().filter_map(|mount| {
        let point = mount.mount_point.strip_prefix(&sandbox).ok()?.to_owned();
        Some(Mounted {
            is_volume: mount.root.contains(VOLUMES),
            point,
        })
    });
    Ok(inside
        .filter(|one| !one.point.as_os_str().is_empty())
        .collect())
}
