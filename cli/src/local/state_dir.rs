//! The directory of `meseta local` for the files of its daemons.

use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::terminal;

/// The place of the state, and whether it is removed at the end.
#[derive(Debug)]
pub(super) struct StateDir {
    pub(super) path: PathBuf,
    pub(super) temporary: bool,
}

impl StateDir {
    pub(super) fn open(given: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(path) = given {
            std::fs::create_dir_all(path).with_context(|| {
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
        std::fs::create_dir(&path)
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
