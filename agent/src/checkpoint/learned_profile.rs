//! The estimator's learned profile, one opaque record: `meta/estimator`.
//!
//! Losing it costs what was learned and nothing else, so that damage is told and forgotten.

use super::durable::{Batch, StoreError};
use super::{FrameError, Layout, frame};

/// Why a record is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LearnedProfileError {
    /// It cannot be read.
    #[error("failed to read {path}")]
    Unreadable {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{path} is damaged")]
    Damaged {
        path: std::path::PathBuf,
        #[source]
        source: FrameError,
    },
}

/// Replaces the record, durably. Blocks.
pub fn write_learned_profile(layout: &Layout, profile: &[u8]) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    batch.write_file(&layout.estimator(), profile)?;
    batch.finish()
}

/// The record, if there is one. Blocks.
pub fn read_learned_profile(layout: &Layout) -> Result<Option<Vec<u8>>, LearnedProfileError> {
    let path = layout.estimator();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(LearnedProfileError::Unreadable { path, source }),
    };
    match frame::decode_file(&bytes) {
        Ok(body) => Ok(Some(body.to_vec())),
        Err(source) => Err(LearnedProfileError::Damaged { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learned_profiles_survive_and_damage_is_reported() {
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
            Err(LearnedProfileError::Damaged { .. })
        ));
    }
}
