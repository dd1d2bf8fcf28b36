//! Places the volumes in a container, so that none hides another.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Volume, VolumeContext, VolumeError, parts};

/// Folders of the machine with kernel interfaces instead of files; nothing is mounted over them.
const KERNEL_FOLDERS: [&str; 2] = ["/proc", "/sys"];

/// The mount point of a volume.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Point {
    /// In the sandbox, relative to it.
    Sandbox(PathBuf),
    /// Over an entry of the host, without links in its path.
    Host(PathBuf),
}

impl Point {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Sandbox(path) | Self::Host(path) => path,
        }
    }
}

fn point_of(context: &VolumeContext, volume: &Volume) -> Result<Point, VolumeError> {
    let path = Path::new(&volume.container_path);
    if !path.is_absolute() {
        let inside = parts(&volume.container_path).map(Point::Sandbox);
        return inside.ok_or_else(|| VolumeError::Point {
            volume: volume.name.clone(),
            path: volume.container_path.clone(),
        });
    }
    let wrong = |reason: &str| VolumeError::HostPath {
        volume: volume.name.clone(),
        path: path.to_owned(),
        reason: reason.to_owned(),
    };
    if !context.mounts {
        return Err(wrong(
            "an absolute path needs namespaces/mnt, which this agent's isolation lacks",
        ));
    }
    let found = path.canonicalize().map_err(|_| {
        wrong("it is an absolute path; it must exist if the container shares the host filesystem")
    })?;
    let is_kernels = KERNEL_FOLDERS
        .iter()
        .any(|folder| found.starts_with(folder));
    if is_kernels || found == Path::new("/") {
        return Err(wrong("nothing can be mounted there"));
    }
    Ok(Point::Host(found))
}

/// Each volume with its mount point; fails if one would hide another.
pub(super) fn placed<'a>(
    context: &VolumeContext,
    volumes: &'a [Volume],
) -> Result<Vec<(Point, &'a Volume)>, VolumeError> {
    let points = volumes.iter().map(|volume| point_of(context, volume));
    let points: Vec<_> = points.collect::<Result<_, _>>()?;
    // Paths are ordered by their components: a path's descendants follow it directly. No path in this map is below
    // another, so that only the predecessor of a new path can be its ancestor.
    let mut taken: BTreeMap<&Path, &Volume> = BTreeMap::new();
    for (point, volume) in points.iter().zip(volumes) {
        let path = point.path();
        let above = taken.range(..=path).next_back();
        let above = above.filter(|(other, _)| path.starts_with(other));
        let below = taken.range(path..).next();
        let below = below.filter(|(other, _)| other.starts_with(path));
        if let Some((_, other)) = above.or(below) {
            return Err(VolumeError::Overlap(
                other.name.clone(),
                volume.name.clone(),
            ));
        }
        taken.insert(path, volume);
    }
    Ok(points.into_iter().zip(volumes).collect())
}
