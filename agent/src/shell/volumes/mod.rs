//! Persistent volumes in a sandbox: each appears at its `container_path`.
//!
//! Entered through [`provide`], before the container is launched, while nobody else can change the
//! sandbox. The volume's directory is given to the task's user; a shared one to the first that uses
//! it. Invariant: nothing is made outside of the sandbox, and the data survives it.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use meseta_isolators::Credentials;
use meseta_resources::{Resource, Resources};

use crate::checkpoint::{Layout, volume_path};

/// As the sandbox itself: its user's.
const PARENT_MODE: u32 = 0o750;

/// A volume cannot be provided.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    /// Its place is not in the sandbox.
    #[error(
        "volume {id} is to be at {container_path:?}: give a relative path that stays in the sandbox"
    )]
    Place {
        /// The volume.
        id: String,
        /// Its place.
        container_path: String,
    },
    /// It lies where nothing can be linked to.
    #[error("volume {0} is on a device and has no directory")]
    NoDirectory(String),
    /// A call failed.
    #[error("failed to {doing} {path}")]
    Io {
        /// The call, as a verb.
        doing: &'static str,
        /// Its object.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.to_owned();
    move |source| VolumeError::Io {
        doing,
        path,
        source,
    }
}

/// Lets every volume among `resources` appear in a fresh sandbox.
pub(crate) fn provide(
    layout: &Layout,
    sandbox: &Path,
    resources: &Resources,
    owner: Option<&Credentials>,
) -> Result<(), VolumeError> {
    for volume in &resources.persistent_volumes() {
        provide_one(layout, sandbox, volume, owner)?;
    }
    Ok(())
}

fn provide_one(
    layout: &Layout,
    sandbox: &Path,
    volume: &Resource,
    owner: Option<&Credentials>,
) -> Result<(), VolumeError> {
    let disk = volume.disk();
    let id = disk
        .and_then(|disk| disk.persistence.as_ref())
        .map(|persistence| persistence.id.to_string())
        .unwrap_or_default();
    let mount = disk.and_then(|disk| disk.volume.as_ref());
    let container_path = mount.map_or("", |mount| mount.container_path.as_str());
    let place = place_in(sandbox, container_path).ok_or_else(|| VolumeError::Place {
        id: id.clone(),
        container_path: container_path.to_owned(),
    })?;
    let data = volume_path(layout, volume).ok_or(VolumeError::NoDirectory(id))?;
    let meta = fs::metadata(&data).map_err(failed("find the volume", &data))?;
    if let Some(owner) = owner
        && (!volume.is_shared() || meta.uid() == rustix::process::geteuid().as_raw())
    {
        std::os::unix::fs::chown(&data, Some(owner.uid), Some(owner.gid))
            .map_err(failed("give away", &data))?;
    }
    make_parents(sandbox, &place, owner)?;
    std::os::unix::fs::symlink(&data, &place).map_err(failed("link", &place))
}

/// The path in the sandbox, if it is one.
fn place_in(sandbox: &Path, container_path: &str) -> Option<PathBuf> {
    let path = Path::new(container_path);
    let mut place = sandbox.to_owned();
    let mut is_there = false;
    for part in path.components() {
        match part {
            Component::Normal(name) => {
                place.push(name);
                is_there = true;
            }
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    is_there.then_some(place)
}

fn make_parents(
    sandbox: &Path,
    place: &Path,
    owner: Option<&Credentials>,
) -> Result<(), VolumeError> {
    let above = place
        .ancestors()
        .skip(1)
        .take_while(|folder| *folder != sandbox);
    for folder in above.collect::<Vec<_>>().into_iter().rev() {
        // A link that another volume left here would lead out of the sandbox.
        match fs::symlink_metadata(folder) {
            Ok(meta) if meta.is_dir() => continue,
            Ok(_) => {
                let taken = io::Error::from(io::ErrorKind::AlreadyExists);
                return Err(failed("create", folder)(taken));
            }
            Err(_) => {}
        }
        fs::DirBuilder::new()
            .mode(PARENT_MODE)
            .create(folder)
            .map_err(failed("create", folder))?;
        if let Some(owner) = owner {
            std::os::unix::fs::chown(folder, Some(owner.uid), Some(owner.gid))
                .map_err(failed("give away", folder))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_stays_in_the_sandbox() {
        let sandbox = Path::new("/box");
        for (path, place) in [
            ("data", Some("/box/data")),
            ("./a/b", Some("/box/a/b")),
            ("", None),
            (".", None),
            ("/data", None),
            ("../data", None),
            ("a/../../data", None),
        ] {
            assert_eq!(place_in(sandbox, path), place.map(PathBuf::from), "{path}");
        }
    }
}
