//! The state shared by the request handlers: the handle to the core, the last samples, limits, and settings from the
//! start.
//!
//! Invariant: nothing here reads usage from the kernel or delays the core; if the core does not answer, the caller gets
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

/// The core answers at once, unless it waits for the disk.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);

/// The reason why the core cannot answer now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unavailable {
    /// The core has not recovered its state yet.
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
    /// Set shortly before the core gets the recovered state.
    pub(crate) recovered: AtomicBool,
    /// The last sample of each container.
    pub(crate) samples: Samples,
    /// The streams to executors.
    pub(crate) streams: ExecutorStreams,
    /// Nested containers requested through the API.
    pub(crate) nested: NestedContainers,
    /// The garbage collection of old sandboxes.
    pub(crate) gc: Gc,
    /// Cancelled when streams must end with the agent.
    pub(crate) shutdown: CancellationToken,
    /// Set when containers can be run.
    pub(crate) containerizer: OnceLock<Containerizer>,
    /// The layout of the work directory.
    pub(crate) layout: Layout,
    /// The flags in force, for `/flags` and `/state`.
    pub(crate) flags: BTreeMap<String, String>,
    /// The version and build of this program.
    pub(crate) build: BuildInfo,
    /// The name of the agent for Mesos clients: `slave(1)@ip:port`.
    pub(crate) pid: String,
    /// The time of the agent's start, since the Unix epoch.
    pub(crate) start_time: Duration,
    /// The time of the agent's start on the monotonic clock.
    pub(crate) started: Instant,
    /// The duration of the recovery, once it is over.
    pub(crate) recovery: OnceLock<Duration>,
    /// Whether requests cap the CPUs of containers.
    pub(crate) enable_cfs: bool,
    /// The failed calls of plug-ins, by kind.
    pub(crate) plugin_failures: Failures,
    /// The tokens of the executors; `None` without executor authentication.
    pub(crate) tokens: Option<ExecutorTokens>,
    /// Messages of executors that the master did not accept.
    pub(crate) dropped: Dropped,
    /// The capacity for calls of executors that are being read.
    pub(crate) reading: ByteSemaphore,
    /// The capacity for updates that wait for a permit as unacknowledged updates.
    pub(crate) waiting: ByteSemaphore,
    /// The capacity for unacknowledged updates.
    pub(crate) unacknowledged: ByteSemaphore,
    /// Connections authenticated as executors'.
    pub(crate) executor_connections: ExecutorConnections,
    pub(crate) authentication: Authentication,
    /// The parts of the memory budget.
    pub(crate) budgets: Budgets,
    /// The capacity for calls while they are decoded and handled, by caller.
    pub(crate) bodies: Shares<String>,
    /// The capacity for answers that are not sent, by caller.
    pub(crate) answers: Shares<String>,
    /// The reads of files for clients.
    pub(crate) file_reads: FileReads,
    /// The verbosity of the log.
    pub(crate) verbosity: Verbosity,
    pub(crate) disk_report: DiskReport,
}

impl Context {
    /// The parts of the core's state that the caller may see; see [`Context::snapshot`].
    pub(crate) async fn view(&self, caller: &Caller) -> Result<Arc<Snapshot>, Unavailable> {
        let snapshot = self.snapshot().await?;
        Ok(permission::filtered(snapshot, &caller.approver))
    }

    /// The containers that the caller may see; see [`Context::snapshot`].
    pub(crate) async fn containers(&self, caller: &Caller) -> Result<Arc<Snapshot>, Unavailable> {
        let snapshot = self.snapshot().await?;
        Ok(permission::containers_of(snapshot, &caller.approver))
    }

    /// The memory for one call of a caller, taken from the caller's share.
    pub(crate) fn body_of(&self, caller: &Caller) -> Budget {
        let all = self.bodies.for_peer(memory_owner(caller));
        all.share(all.limit(), 0)
    }

    /// The state of the core, unless the agent is still recovering or already ending.
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

/// The owner whose requests share memory: a container, a principal, or else an address.
pub(crate) fn memory_owner(caller: &Caller) -> String {
    match (&caller.container, caller.approver.principal()) {
        (Some(container), _) => format!("container {container}"),
        (None, Some(principal)) => format!("principal {principal}"),
        (None, None) => caller
            .address
            .map_or_else(String::new, |address| address.ip().to_string()),
    }
}
