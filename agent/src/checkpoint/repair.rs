//! What is to be done about damaged checkpoints, once there is room for it.
//!
//! Found by [`super::read`] and carried out by the writer before anything else, so that a full disk keeps no
//! agent from starting. Invariant: repeating a repair changes nothing, and one that cannot be done holds
//! nothing up: the next start finds the damage again.

use std::path::PathBuf;

use super::durable::{Batch, StoreError, cut_tail};
use super::holdings::{self, ResourcesRecord};
use super::layout::{Layout, RunKey};

#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// A log ends in a record that was not written whole.
    CutTail {
        path: PathBuf,
        /// What of it is whole.
        valid_bytes: usize,
        /// The rest, kept as evidence.
        tail: Vec<u8>,
    },
    /// What cannot be read makes place, and is kept as evidence.
    SetAside {
        from: PathBuf,
        /// Where it is kept.
        to: PathBuf,
    },
    /// The record of reservations and volumes, or its copy, is lost or older than the other.
    WriteHoldings { record: Box<ResourcesRecord> },
    /// A run of which nothing had been durable when an agent ended, so that nothing was begun.
    Retire { key: Box<RunKey> },
}

impl Repair {
    /// Does it, below a work directory; what is retired goes to the path that `retired` gives for it.
    pub(super) fn carry_out(
        &self,
        layout: &Layout,
        batch: &mut Batch,
        retired: impl Fn(&RunKey) -> (PathBuf, PathBuf),
    ) -> Result<(), StoreError> {
        let done = match self {
            Self::CutTail {
                path,
                valid_bytes,
                tail,
            } => cut_tail(path, *valid_bytes, tail),
            Self::SetAside { from, to } => batch.move_away(from, to).map(|()| {
                // The folder's loss of this entry is made durable with the quarantine's gain of it.
                for changed in [from.parent(), to.parent()].into_iter().flatten() {
                    batch.touch_dir(changed);
                }
            }),
            Self::WriteHoldings { record } => holdings::write(layout, record, batch),
            Self::Retire { key } => {
                let (from, to) = retired(key);
                batch.move_away(&from, &to)
            }
        };
        match done {
            Err(error @ StoreError::Io { .. }) if !error.is_out_of_resources() => {
                tracing::error!(%error, "a damaged checkpoint stays where it is");
                Ok(())
            }
            done => done,
        }
    }
}
