//! The marker beside a registry: the fact that it exists, and its id.
//!
//! Invariant: the marker is written once the registry with this id is durable. A missing or empty registry beside a
//! marker has therefore been lost, and is not mistaken for a new one.

use meseta_daemon::work_dir;
use std::io;
use std::path::{Path, PathBuf};

use super::super::OpenError;

#[derive(Debug)]
pub(super) struct Marker {
    pub(super) path: PathBuf,
    /// The id of the registry beside the marker, if there was one.
    pub(super) id: Option<String>,
}

impl Marker {
    pub(super) fn beside(registry: &Path) -> Result<Self, OpenError> {
        let path = registry.with_extension("id");
        let id = match std::fs::read_to_string(&path) {
            Ok(text) => Some(text.trim().to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => {
                return Err(OpenError::Marker {
                    marker: path,
                    source,
                });
            }
        };
        Ok(Self { path, id })
    }

    pub(super) fn lost(&self, registry: &Path) -> OpenError {
        OpenError::Lost {
            path: registry.to_owned(),
            marker: self.path.clone(),
        }
    }

    /// Writes the id of the registry, which is durable already.
    pub(super) fn write(&self, id: &str) -> Result<(), OpenError> {
        if self.id.as_deref() == Some(id) {
            return Ok(());
        }
        work_dir::replace_file(&self.path, format!("{id}\n")).map_err(|source| OpenError::Marker {
            marker: self.path.clone(),
            source,
        })
    }
}
