//! The state of the disk of the store, for readers who do not ask the core.
//!
//! The start and the writer of the store report it; `/health` and the metrics read it. Invariant: no reader waits for the disk
//! or for the core.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use meseta_daemon::disk_pulse::{self, DiskPulse, DiskSilence};

use crate::lead::unless_panicked;

/// The reason why a scheduler does not act before it has its jobs.
pub(crate) const READING: &str = "this scheduler is reading its store";

/// Between two looks at the state.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The last known state of the disk. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskReport {
    silence: DiskSilence,
    /// The reason why the scheduler waits for its store.
    waiting: Arc<Mutex<Option<String>>>,
}

impl DiskReport {
    /// The time for which the disk has not answered.
    pub(crate) fn silence(&self) -> &DiskSilence {
        &self.silence
    }

    /// Notes why the scheduler waits for its store. Returns whether this reason is new.
    pub(crate) fn set_waiting(&self, reason: impl Into<String>) -> bool {
        let reason = Some(reason.into());
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = *waiting != reason;
        *waiting = reason;
        is_new
    }

    /// Notes that the scheduler does not wait for its store.
    pub(crate) fn set_ready(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns why this scheduler cannot act, in words for people; `None` if its store is well.
    pub(crate) fn problem(&self) -> Option<String> {
        if let Some(silence) = self.silence.reported() {
            let seconds = silence.as_secs();
            return Some(format!(
                "the disk of the store has not answered for {seconds} seconds"
            ));
        }
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.clone()
    }

    /// Returns once the start has ended, or once it is known why it waits: not only because it reads.
    pub(crate) async fn start_reported(&self) {
        while self.problem().is_some_and(|problem| problem == READING) {
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Returns why this scheduler cannot act, once it cannot.
    pub(crate) async fn until_problem(&self) -> String {
        loop {
            if let Some(problem) = self.problem() {
                return problem;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    }

    /// Does work of the start that may block on the disk, on a thread of its own, and reports a disk that does not answer.
    pub(crate) async fn watch_work<T: Send + 'static>(
        &self,
        path: &Path,
        doing: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let pulse = DiskPulse::default();
        pulse.begin();
        let path = path.display();
        let report = |is_silent| {
            if is_silent {
                tracing::error!(%path, doing, "the disk does not answer; the start waits for it");
            }
        };
        let done = tokio::select! {
            done = unless_panicked(tokio::task::spawn_blocking(work)) => done,
            never = disk_pulse::watch(pulse, self.silence.clone(), report) => match never {},
        };
        if self.silence.reported().is_some() {
            tracing::info!(%path, doing, "the disk answers again; continuing the start");
        }
        self.silence.set(Duration::ZERO);
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use meseta_daemon::disk_pulse::SILENT_AFTER;

    use super::*;

    #[test]
    fn silent_disks_and_waits_are_problems() {
        let report = DiskReport::default();
        assert_eq!(report.problem(), None);
        assert!(report.set_waiting("no room"));
        assert!(!report.set_waiting("no room"), "the log has it already");
        assert_eq!(report.problem().as_deref(), Some("no room"));
        report.silence().set(SILENT_AFTER);
        assert!(
            report
                .problem()
                .is_some_and(|text| text.contains("30 seconds"))
        );
        report.silence().set(Duration::ZERO);
        report.set_ready();
        assert_eq!(report.problem(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn hung_work_of_start_is_reported() {
        let report = DiskReport::default();
        let (answer, disk) = mpsc::channel::<()>();
        let hung = report.clone();
        let hung = tokio::spawn(async move {
            let work = move || disk.recv().is_ok();
            hung.watch_work(Path::new("/w"), "open the store", work)
                .await
        });
        // The time of a test stands still while a thread works.
        while report.silence().reported().is_none() {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert!(!hung.is_finished());
        answer.send(()).expect("the work waits");
        assert!(hung.await.expect("no panic"));
        assert_eq!(report.problem(), None);
    }
}
