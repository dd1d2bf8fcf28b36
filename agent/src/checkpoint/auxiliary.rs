//! Records whose loss costs no task. The agent logs a damaged record and writes it again.
//!
//! The records are the learned profile of the estimator, `meta/estimator`, which is opaque here, and the ages of old
//! sandboxes, see [`super::sandbox_ages`].

use std::path::{Path, PathBuf};

use super::durable::{Batch, StoreError};
use super::{FrameError, Layout, frame};

/// The reason why a record is unusable.
#[derive(Debug, thiserror::Error)]
pub enum AuxiliaryError {
    /// The record cannot be read.
    #[error("failed to read {path}")]
    Unreadable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is damaged")]
    Damaged {
        path: PathBuf,
        #[source]
        source: FrameError,
    },
}

/// Replaces the learned profile, durably. Blocks.
pub fn write_learned_profile(layout: &Layout, profile: &[u8]) -> Result<(), StoreError> {
    replace(&layout.estimator(), profile)
}

/// Returns the learned profile, if there is a record. Blocks.
pub fn read_learned_profile(layout: &Layout) -> Result<Option<Vec<u8>>, AuxiliaryError> {
    read_whole(&layout.estimator())
}

/// Replaces a record, durably.
pub(super) fn replace(path: &Path, body: &[u8]) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    batch.write_file(path, body)?;
    batch.finish()
}

/// Returns a record, if it exists.
pub(super) fn read_whole(path: &Path) -> Result<Option<Vec<u8>>, AuxiliaryError> {
    let path = path.to_owned();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(AuxiliaryError::Unreadable { path, source }),
    };
    match frame::decode_file(&bytes) {
        Ok(body) => Ok(Some(body.to_vec())),
        Err(source) => Err(AuxiliaryError::Damaged { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_profiles_survive_and_report_damage() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(read_learned_profile(&layout).unwrap(), None);
        for profile in [b"first".as_slice(), b"second"] {
            write_learned_profile(&layout, profile).unwrap();
            assert_eq!(
                read_learned_profile(&layout).unwrap().as_deref(),
                Some(profile)
            );
        }
        let mut bytes = std::fs::read(layout.estimator()).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(layout.estimator(), bytes).unwrap();
        assert!(matches!(
            read_learned_profile(&layout),
            Err(AuxiliaryError::Damaged { .. })
        ));
    }
}
