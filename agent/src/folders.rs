//! Folders made with exact modes, and those that tasks walk through on the way to their sandbox.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

/// Folders between the work directory and a sandbox or volume: everybody may walk through, and nobody but the
/// agent learns the names in them, which are ids of frameworks, executors and containers.
pub(crate) const PASSAGE_MODE: u32 = 0o711;

/// What came of removing something: that it is not there any more is no error.
pub(crate) fn unless_gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Makes a folder and the missing ones above it, each of this mode; what is there stays as it is.
pub(crate) fn make_missing(path: &Path, mode: u32) -> io::Result<()> {
    match DirBuilder::new().mode(mode).create(path) {
        // Whatever the umask took away.
        Ok(()) => std::fs::set_permissions(path, Permissions::from_mode(mode)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            // Some places take no new folder, and say it so.
            let above = above.filter(|above| !above.is_dir()).ok_or(error)?;
            make_missing(above, mode)?;
            make_missing(path, mode)
        }
        Err(_) if path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes the folders from `base`, which is there, down to a path in it such that tasks can walk through and
/// not list them, those too that were there. None of them may be a task's to change.
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
