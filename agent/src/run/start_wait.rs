//! Waits for steps of the start that use the disk of the work directory.
//!
//! Entered through [`StartWait::wait_for`]. Invariant: a silent disk is reported every [`SILENT_AFTER`], and the agent
//! ends on SIGTERM, in any state of its disk.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_daemon::disk_pulse::SILENT_AFTER;
use meseta_daemon::server::CancellationToken;
use tokio::task::JoinHandle;
use tracing::{error, warn};

use super::{RunError, serving};
use crate::checkpoint::Layout;
use crate::configuration::flags::Flags;
use crate::directories;
use crate::disk_report::DiskReport;
use crate::executor_tokens::ExecutorTokens;

/// The state that all waits of one start share.
#[derive(Clone, Debug)]
pub(super) struct StartWait {
    work_dir: PathBuf,
    shutdown: CancellationToken,
    report: DiskReport,
}

impl StartWait {
    pub(super) fn new(work_dir: &Path, shutdown: &CancellationToken, report: DiskReport) -> Self {
        Self {
            work_dir: work_dir.to_owned(),
            shutdown: shutdown.clone(),
            report,
        }
    }

    /// Locks the work directory for this agent. Returns `None` if SIGTERM ends the agent before.
    pub(super) async fn take_work_dir(&self) -> Result<Option<(Layout, File)>, RunError> {
        let work_dir = self.work_dir.clone();
        let taking = tokio::task::spawn_blocking(move || directories::take_work_dir(&work_dir));
        let taken = self.join("lock the work directory", taking).await?;
        Ok(taken.transpose()?)
    }

    /// Opens the tokens of executors, if the flags ask for some. Returns `None` if SIGTERM ends the agent before.
    pub(super) async fn open_tokens(
        &self,
        flags: &Flags,
        layout: &Layout,
    ) -> Result<Option<Option<ExecutorTokens>>, RunError> {
        let (flags, layout) = (flags.clone(), layout.clone());
        let opening =
            tokio::task::spawn_blocking(move || serving::executor_tokens(&flags, &layout));
        let opened = self.join("read the key of executors' tokens", opening);
        Ok(opened.await?.transpose()?)
    }

    /// Waits as [`Self::wait_for`] for a task that may block its own thread.
    pub(super) async fn join<T>(
        &self,
        doing: &'static str,
        task: JoinHandle<T>,
    ) -> Result<Option<T>, RunError> {
        let joined = self.wait_for(doing, task).await;
        joined
            .transpose()
            .map_err(|error| RunError::Internal(format!("{doing}: {error}")))
    }

    /// Returns the result of the work, or `None` if SIGTERM ends the agent before. The work must not block its thread.
    pub(super) async fn wait_for<T>(
        &self,
        doing: &'static str,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(work);
        let mut waited = Duration::ZERO;
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    if waited > Duration::ZERO {
                        self.report.set_silence(Duration::ZERO);
                        warn!(path = %self.work_dir.display(), doing, "the disk of the work \
                            directory answers again; continuing the start");
                    }
                    return Some(done);
                }
                () = self.shutdown.cancelled() => {
                    warn!(doing, "the agent received a request to end during its start");
                    return None;
                }
                () = tokio::time::sleep(SILENT_AFTER) => {
                    waited += SILENT_AFTER;
                    self.report.set_silence(waited);
                    error!(
                        path = %self.work_dir.display(), doing, seconds = waited.as_secs(),
                        "the start waits for the disk of the work directory, which does not answer"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start_wait() -> StartWait {
        let shutdown = CancellationToken::new();
        StartWait::new(Path::new("/w"), &shutdown, DiskReport::default())
    }

    #[tokio::test(start_paused = true)]
    async fn hung_start_is_reported_and_ends() {
        let start = start_wait();
        let (report, shutdown) = (start.report.clone(), start.shutdown.clone());
        let hung = tokio::spawn(async move {
            let work = std::future::pending::<()>();
            start.wait_for("lock the work directory", work).await
        });
        tokio::time::sleep(SILENT_AFTER - Duration::from_secs(1)).await;
        assert_eq!(report.silence(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(report.silence(), SILENT_AFTER);
        assert!(!hung.is_finished());
        shutdown.cancel();
        assert_eq!(hung.await.expect("no panic"), None);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_start_continues_after_disk_answers() {
        let start = start_wait();
        let slow = tokio::time::sleep(SILENT_AFTER * 3);
        assert_eq!(start.wait_for("read the records", slow).await, Some(()));
        assert_eq!(start.report.silence(), Duration::ZERO);
    }
}
