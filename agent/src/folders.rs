//! Creates folders with exact modes, and the folders on the way to a task's sandbox.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Mode of folders between the work directory and a sandbox or volume: everybody may traverse them, but only the agent
/// can list the names in them, which are ids of frameworks, executors and containers.
pub(crate) const PASSAGE_MODE: u32 = 0o711;

/// Converts the result of a removal: a missing entry is no error.
pub(crate) fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Creates a folder and its missing parents with this mode; existing folders stay unchanged.
pub(crate) fn make_missing(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        // Restores bits that the umask removed.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            // Some places allow no new folder, and report it with this error.
            let above = above.filter(|above| !above.is_dir()).ok_or(error)?;
            make_missing(above, mode)?;
            make_missing(path, mode)
        }
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates the folders from `base`, which exists, down to a path in it. Tasks can traverse them but not list them,
/// including folders that existed before. Tasks must not be able to change any of them.
pub(crate) fn make_passage(base: &Path, path: &Path) -> io::Result<()> {
    let below = path.strip_prefix(base).map_err(io::Error::other)?;
    let mut at = base.to_owned();
    for part in below.components() {
        at.push(part);
        match std::fs::symlink_metadata(&at) {
            Ok(found) if !found.is_dir() => return Err(io::ErrorKind::NotADirectory.into()),
            Ok(found) if found.mode() & 0o7777 == PASSAGE_MODE => {}
            Ok(_) => std::fs::set_permissions(&at, Permissions::from_mode(PASSAGE_MODE))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_missing(&at, PASSAGE_MODE)?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
