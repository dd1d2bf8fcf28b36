//! What the resource estimator learned, as one opaque record: `meta/estimator`.
//!
//! Losing it costs what was learned and nothing else, so that damage is told and forgotten.

use super::durable::{Batch, StoreError};
use super::{FrameError, Layout, frame};

/// Why a record is of no use.
#[derive(Debug, thiserror::Error)]
pub enum HabitsError {
    /// It cannot be read.
    #[error("failed to read {path}")]
    Unreadable {
        /// The file.
        path: std::path::PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is damaged.
    #[error("{path} is damaged")]
    Damaged {
        /// The file.
        path: std::path::PathBuf,
        /// How.
        #[source]
        source: FrameError,
    },
}

/// Replaces the record, durably. Blocks.
pub fn write_habits(layout: &Layout, habits: &[u8]) -> Result<(), StoreError> {
    let mut batch = Batch::default();
    batch.write_file(&layout.estimator(), habits)?;
    batch.finish()
}

/// The record, if there is one. Blocks.
pub fn read_habits(layout: &Layout) -> Result<Option<Vec<u8>>, HabitsError> {
    let path = layout.estimator();
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(HabitsError::Unreadable { path, source }),
    };
    match frame::decode_file(&bytes) {
        Ok(body) => Ok(Some(body.to_vec())),
        Err(source) => Err(HabitsError::Damaged { path, source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_survive_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout::new(dir.path());
        assert_eq!(read_habits(&layout).unwrap(), None);
        for habits in [b"first".as_slice(), b"second"] {
            write_habits(&layout, habits).unwrap();
            assert_eq!(read_habits(&layout).unwrap().as_deref(), Some(habits));
        }
        let mut bytes = std::fs::read(layout.estimator()).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(layout.estimator(), bytes).unwrap();
        assert!(matches!(
            read_habits(&layout),
            Err(HabitsError::Damaged { .. })
        ));
    }
}
