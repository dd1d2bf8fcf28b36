//! The progress of a pull as a value.
//!
//! [`Progress`] is a copy; its text is for a task's status. Pure.

use std::fmt;

/// The part of a pull that runs.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Phase {
    /// Waits for a slot.
    #[default]
    Queued,
    /// Asks the registry for the image's manifest.
    Resolving,
    Downloading,
    /// Writes the image's record.
    Storing,
    Done,
}

/// The progress of a pull.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Progress {
    pub phase: Phase,
    /// Layers of the image, with those that were in the store.
    pub total_layers: usize,
    pub finished_layers: usize,
    /// Bytes to download.
    pub total_bytes: u64,
    pub received_bytes: u64,
    /// The reason why the download waits now.
    pub wait_reason: Option<String>,
}

impl fmt::Display for Progress {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.phase {
            Phase::Queued => write!(to, "waiting for other pulls")?,
            Phase::Resolving => write!(to, "asking the registry")?,
            Phase::Downloading => write!(
                to,
                "{}/{} layers, {:.1} of {:.1} MB",
                self.finished_layers,
                self.total_layers,
                megabytes(self.received_bytes),
                megabytes(self.total_bytes)
            )?,
            Phase::Storing => write!(to, "storing")?,
            Phase::Done => write!(to, "done")?,
        }
        match &self.wait_reason {
            Some(reason) => write!(to, " ({reason})"),
            None => Ok(()),
        }
    }
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a number for readers, with one decimal"
)]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_reads_as_a_sentence() {
        let progress = Progress {
            phase: Phase::Downloading,
            total_layers: 8,
            finished_layers: 3,
            total_bytes: 520_000_000,
            received_bytes: 12_340_000,
            wait_reason: None,
        };
        assert_eq!(progress.to_string(), "3/8 layers, 12.3 of 520.0 MB");
        let waiting = Progress {
            wait_reason: Some("429".to_owned()),
            ..Progress::default()
        };
        assert_eq!(waiting.to_string(), "waiting for other pulls (429)");
    }
}
