//! The health of the scheduler for its surroundings: a service manager's status and watchdog.

use std::time::Duration;

use crate::service::Handle;
use crate::store::disk_report::DiskReport;

/// The core responds at once unless the machine is in trouble.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests the health of the running scheduler. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Health {
    pub(crate) handle: Handle,
    pub(crate) report: DiskReport,
}

impl Health {
    pub(crate) fn new(handle: Handle, report: &DiskReport) -> Self {
        let report = report.clone();
        Self { handle, report }
    }

    /// Returns a status line for people; `None` when the core does not answer within a few seconds.
    pub async fn status(&self) -> Option<String> {
        if let Some(problem) = self.report.problem() {
            return Some(problem);
        }
        let role = self.handle.standing.now();
        match role.status("scheduler", "store") {
            None => self.leading().await,
            waiting => waiting,
        }
    }

    async fn leading(&self) -> Option<String> {
        let asked = self
            .handle
            .read(|state| (state.is_connected(), state.job_count()));
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, asked).await;
        let (is_connected, jobs) = asked.ok()?.ok()?;
        let master = if is_connected {
            "Subscribed"
        } else {
            "No master"
        };
        Some(format!("{master}; jobs: {jobs}"))
    }
}
