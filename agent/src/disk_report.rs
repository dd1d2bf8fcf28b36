//! The state of the work directory's disk, for readers that do not query the core.
//!
//! The checkpoint writer reports it, and before that the start; `/health` and the metrics read it. Invariant: no reader
//! waits for the disk or for the core.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meseta_daemon::disk_pulse::DiskSilence;

/// The last observed state of the disk. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskReport {
    silence: DiskSilence,
    is_removed: Arc<AtomicBool>,
}

impl DiskReport {
    /// Sets the time for which the disk has been silent.
    pub(crate) fn set_silence(&self, silence: Duration) {
        self.silence.set(silence);
    }

    /// Sets whether the work directory was removed.
    pub(crate) fn set_removed(&self, is_removed: bool) {
        self.is_removed.store(is_removed, Ordering::Relaxed);
    }

    /// The time since the disk last answered; zero while the disk answers.
    pub(crate) fn silence(&self) -> Duration {
        self.silence.get()
    }

    /// Returns the reason why this agent cannot serve, as a message; `None` if its disk is sound.
    pub(crate) fn problem(&self, work_dir: &Path) -> Option<String> {
        let work_dir = work_dir.display();
        if self.is_removed.load(Ordering::Relaxed) {
            return Some(format!(
                "The work directory {work_dir} was removed while the agent ran; restore it, or \
                 mount it again."
            ));
        }
        let silence = self.silence.reported()?;
        Some(format!(
            "The disk of the work directory {work_dir} has not answered for {} seconds.",
            silence.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_and_silent_disks_are_problems() {
        let report = DiskReport::default();
        let problem = || report.problem(Path::new("/w"));
        report.set_silence(Duration::from_secs(29));
        assert_eq!(problem(), None);
        report.set_silence(Duration::from_secs(30));
        assert!(problem().is_some_and(|text| text.contains("/w has not answered for 30 seconds")));
        report.set_removed(true);
        assert!(problem().is_some_and(|text| text.contains("/w was removed")));
        report.set_silence(Duration::ZERO);
        report.set_removed(false);
        assert_eq!(problem(), None);
    }
}
