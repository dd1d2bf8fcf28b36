//! Repairs damaged checkpoints, once there is room.
//!
//! [`super::read`] finds the damage; the writer carries out the repairs before anything else. A full disk therefore
//! does not prevent a start. Invariant: repeating a repair changes nothing, and an impossible repair delays nothing:
//! the next start finds the damage again.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_isolators::note_repeated;

use super::durable::{Batch, StoreError, cut_tail};
use super::holdings::{self, ResourcesRecord};
use super::layout::{Layout, RunKey};

/// Attempts at a repair whose device fails, and the pause between them: other writes wait for the repair.
const ATTEMPTS: u32 = 6;
const AGAIN: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, PartialEq)]
pub enum Repair {
    /// The last record of a log is incomplete.
    CutTail {
        path: PathBuf,
        /// The length of the whole records.
        valid_bytes: usize,
        /// The rest, kept as evidence.
        tail: Vec<u8>,
    },
    /// A log has bytes that are no record, with records behind them. The log stays, and the next start does not report it.
    NoteHole {
        /// The log that has the hole.
        path: PathBuf,
        /// The place of these bytes.
        hole: Range<usize>,
    },
    /// An unreadable entry is moved away and kept as evidence.
    SetAside {
        from: PathBuf,
        /// The path of the evidence.
        to: PathBuf,
    },
    /// The record of reservations and volumes, or its copy, is missing or older than the other.
    WriteHoldings { record: Box<ResourcesRecord> },
    /// Nothing of the run was durable when an agent ended, so nothing was begun.
    Retire { key: Box<RunKey> },
}

impl Repair {
    /// Carries out the repair below a work directory; `retired` returns the path for a retired tree.
    pub(super) fn carry_out(
        &self,
        layout: &Layout,
        batch: &mut Batch,
        retired: impl Fn(&RunKey) -> (PathBuf, PathBuf),
    ) -> Result<(), StoreError> {
        let pause = || std::thread::sleep(AGAIN);
        match tried_again(pause, || self.attempt(layout, batch, &retired)) {
            Err(error @ StoreError::Io { .. }) if !error.is_out_of_resources() => {
                tracing::error!(%error, "failed to move a damaged checkpoint aside");
                Ok(())
            }
            done => done,
        }
    }

    fn attempt(
        &self,
        layout: &Layout,
        batch: &mut Batch,
        retired: impl Fn(&RunKey) -> (PathBuf, PathBuf),
    ) -> Result<(), StoreError> {
        match self {
            Self::CutTail {
                path,
                valid_bytes,
                tail,
            } => cut_tail(path, *valid_bytes, tail),
            Self::NoteHole { path, hole } => {
                batch.write_file(&hole_note(path), hole_text(hole).as_bytes())
            }
            Self::SetAside { from, to } => batch.move_away(from, to).map(|()| {
                // Makes the removal from this folder durable together with the addition to the quarantine.
                for changed in [from.parent(), to.parent()].into_iter().flatten() {
                    batch.touch_dir(changed);
                }
            }),
            Self::WriteHoldings { record } => holdings::write(layout, record, batch),
            Self::Retire { key } => {
                let (from, to) = retired(key);
                batch.move_away(&from, &to)
            }
        }
    }
}

/// The file that says which hole of a log an earlier start has reported.
pub(super) fn hole_note(log: &Path) -> PathBuf {
    log.with_extension("hole")
}

/// The content of that file.
pub(super) fn hole_text(hole: &Range<usize>) -> String {
    format!("{} to {}", hole.start, hole.end)
}

/// Retries while the device fails, and returns the last result: a single error does not leave a folder to the next
/// start.
fn tried_again(
    mut pause: impl FnMut(),
    mut attempt: impl FnMut() -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    for _ in 1..ATTEMPTS {
        match attempt() {
            Err(error) if error.is_device_failure() => {
                note_repeated();
                pause();
            }
            done => return done,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::checkpoint::durable::io_error;

    /// Regression: after an error in a rename at the start, a folder stayed until the next start.
    #[test]
    fn repair_is_retried_after_device_error() {
        let failing = |errno: i32, times: u32| {
            let (mut made, mut pauses) = (0, 0);
            let attempt = || {
                made += 1;
                let failed = io::Error::from_raw_os_error(errno);
                match made > times {
                    true => Ok(()),
                    false => Err(io_error("move away", "run".as_ref())(failed)),
                }
            };
            let done = tried_again(|| pauses += 1, attempt);
            (done.is_ok(), made, pauses)
        };
        let (eio, eacces) = (5, 13);
        assert_eq!(failing(eio, 0), (true, 1, 0));
        assert_eq!(failing(eio, ATTEMPTS - 1), (true, ATTEMPTS, ATTEMPTS - 1));
        assert_eq!(failing(eio, ATTEMPTS), (false, ATTEMPTS, ATTEMPTS - 1));
        assert_eq!(failing(eacces, 1), (false, 1, 0));
    }
}
