//! The directory of `meseta local` for the files of its daemons.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::terminal;

/// Tasks of ordinary users walk through on the way to their sandbox; daemons give what they write modes of their own.
const MODE: u32 = 0o755;

/// Makes a directory and the missing ones above it, which tasks can walk through whatever the umask is.
pub(super) fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().create(path) {
        Ok(()) => open_to_tasks(path),
        Err(_) if path.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let above = path.parent().filter(|above| !above.as_os_str().is_empty());
            // Some places take no new directory, and say it so.
            let above = above.filter(|above| !above.is_dir()).ok_or(error)?;
            make_dir(above)?;
            make_dir(path)
        }
        Err(error) => Err(error),
    }
}

fn open_to_tasks(path: &Path) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(MODE))
}

/// The place of the state, and whether it is removed at the end.
#[derive(Debug)]
pub(super) struct StateDir {
    pub(super) path: PathBuf,
    pub(super) temporary: bool,
}

impl StateDir {
    pub(super) fn open(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            make_dir(path).with_context(|| {
                format!(
                    "failed to create {}; give a writable --work_dir",
                    path.display()
                )
            })?;
            let path = path
                .canonicalize()
                .with_context(|| format!("failed to resolve {}", path.display()))?;
            return Ok(Self {
                path,
                temporary: false,
            });
        }
        let path = std::env::temp_dir().join(format!("meseta-local-{}", std::process::id()));
        DirBuilder::new()
            .create(&path)
            .and_then(|()| open_to_tasks(&path))
            .with_context(|| format!("failed to create {}; give a --work_dir", path.display()))?;
        Ok(Self {
            path,
            temporary: true,
        })
    }

    /// Removes the directory if it is temporary.
    pub(super) fn close(&self) {
        if self.temporary
            && let Err(error) = std::fs::remove_dir_all(&self.path)
        {
            terminal::note!("meseta: failed to remove {}: {error}", self.path.display());
        }
    }
}
