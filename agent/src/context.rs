//! What the handlers of requests share: the way in to the core, the last samples, limits, and what was set at the start.
//!
//! Invariant: nothing here reads usage from the kernel or holds the core up; a core that does not answer is told as
//! [`Unavailable`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use meseta_daemon::authentication::{Authentication, Caller};
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::files::FileReads;
use meseta_daemon::server::CancellationToken;
use meseta_daemon::verbosity::Verbosity;
use meseta_proto::budget::{Budget, Shares};

use crate::budgets::Budgets;
use crate::byte_semaphore::ByteSemaphore;
use crate::checkpoint::Layout;
use crate::containerizer::Containerizer;
use crate::core::{self, Snapshot};
use crate::disk_report::DiskReport;
use crate::executor_connections::ExecutorConnections;
use crate::executor_tokens::ExecutorTokens;
use crate::gc::Gc;
use crate::handle::Handle;
use crate::link::outgoing::Dropped;
use crate::monitor::Samples;
use crate::nested::NestedContainers;
use crate::oversubscription::Failures;
use crate::permission;
use crate::service::executor_streams::ExecutorStreams;

/// The core answers at once unless it waits for the disk.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the core cannot be asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unavailable {
    /// It does not know yet what there is.
    #[error("Agent has not finished recovery")]
    Recovering,
    #[error("Agent is shutting down")]
    Ending,
    #[error("Agent is waiting for its disk")]
    WaitingForDisk,
}

/// State shared by the handlers.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) core: Handle,
    /// Set once the core is about to hear of what was recovered.
    pub(crate) recovered: AtomicBool,
    /// The last sample of each container.
    pub(crate) samples: Samples,
    /// The streams to executors.
    pub(crate) streams: ExecutorStreams,
    /// Containers that were asked for over the API.
    pub(crate) nested: NestedContainers,
    /// The garbage collection of old sandboxes.
    pub(crate) gc: Gc,
    /// Cancelled when streams are to end with the agent.
    pub(crate) shutdown: CancellationToken,
    /// Set when containers can be run.
    pub(crate) containerizer: OnceLock<Containerizer>,
    /// The layout of the work directory.
    pub(crate) layout: Layout,
    /// The flags in force, for `/flags` and `/state`.
    pub(crate) flags: BTreeMap<String, String>,
    /// Which program this is.
    pub(crate) build: BuildInfo,
    /// How the agent is called by Mesos clients: `slave(1)@ip:port`.
    pub(crate) pid: String,
    /// When the agent was started, since the epoch.
    pub(crate) start_time: Duration,
    /// The same on the monotonic clock.
    pub(crate) started: Instant,
    /// How long recovery took, once it is over.
    pub(crate) recovery: OnceLock<Duration>,
    /// Whether requests cap the CPUs of containers.
    pub(crate) enable_cfs: bool,
    /// Calls of plug-ins that came to nothing.
    pub(crate) plugin_failures: Failures,
    /// Whose tokens executors have; none if nobody asks them.
    pub(crate) tokens: Option<ExecutorTokens>,
    /// Messages of executors that the master did not take.
    pub(crate) dropped: Dropped,
    /// Room for calls of executors that are being read.
    pub(crate) reading: ByteSemaphore,
    /// Room for updates that wait to be among those that are not acknowledged.
    pub(crate) waiting: ByteSemaphore,
    /// Room for updates that are not acknowledged.
    pub(crate) unacknowledged: ByteSemaphore,
    /// Connections authenticated as executors'.
    pub(crate) executor_connections: ExecutorConnections,
    pub(crate) authentication: Authentication,
    /// How the budget of memory is divided.
    pub(crate) budgets: Budgets,
    /// Calls while they are decoded and done, by caller.
    pub(crate) bodies: Shares<String>,
    /// Answers that are not sent, by caller.
    pub(crate) answers: Shares<String>,
    /// Files that are read for clients.
    pub(crate) file_reads: FileReads,
    /// How much is logged.
    pub(crate) verbosity: Verbosity,
    pub(crate) disk_report: DiskReport,
}

impl Context {
    /// The core as far as somebody may see it; see [`Context::snapshot`].
    pub(crate) async fn view(&self, caller: &Caller) -> Result<Arc<Snapshot>, Unavailable> {
        let snapshot = self.snapshot().await?;
        Ok(permission::filtered(snapshot, &caller.approver))
    }

    /// The containers that somebody may see; see [`Context::snapshot`].
    pub(crate) async fn containers(&self, caller: &Caller) -> Result<Arc<Snapshot>, Unavailable> {
        let snapshot = self.snapshot().await?;
        Ok(permission::containers_of(snapshot, &caller.approver))
    }

    /// What one call of a caller may take, of what all of the caller's may.
    pub(crate) fn body_of(&self, caller: &Caller) -> Budget {
        let all = self.bodies.of(memory_owner(caller));
        all.share(all.limit(), 0)
    }

    /// The core as it is, unless the agent is still recovering or already ending.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Unavailable> {
        if !self.recovered.load(Ordering::Acquire) {
            return Err(Unavailable::Recovering);
        }
        match tokio::time::timeout(SNAPSHOT_TIMEOUT, self.core.snapshot()).await {
            Ok(Some(snapshot)) if snapshot.state == core::State::Recovering => {
                Err(Unavailable::Recovering)
            }
            Ok(Some(snapshot)) => Ok(snapshot),
            Ok(None) => Err(Unavailable::Ending),
            Err(_) => Err(Unavailable::WaitingForDisk),
        }
    }
}

/// Who shares memory with whom: a container, a principal, or else an address.
pub(crate) fn memory_owner(caller: &Caller) -> String {
    match (&caller.container, caller.approver.principal()) {
        (Some(container), _) => format!("container {container}"),
        (None, Some(principal)) => format!("principal {principal}"),
        (None, None) => caller
            .address
            .map_or_else(String::new, |address| address.ip().to_string()),
    }
}
