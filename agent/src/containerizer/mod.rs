//! Carries out the core's decisions about containers, and reports the results.
//!
//! Decides nothing. Calls of `meseta_isolators` block: each runs on a blocking thread. The containerizer launches a
//! container, then watches the pidfd of its supervisor. At its end it reads the exit record and the kernel's counters,
//! and destroys the cgroups, with retries, before it notifies the core. Concurrent launches are limited.
//!
//! ```text
//! container_table.rs  the phase of each container
//! state.rs            shared state; limits on concurrent work
//! launch.rs           fetch, then launch with a permit
//! watch.rs            watches until the end, or a memory limit
//! supervision.rs      waits for the end of a supervisor
//! exit_status.rs      the exit status of a container
//! limitation_file.rs  the limit that ended a container, on disk
//! destroy.rs          kill, destroy, forget
//! resize.rs           changed limits and volumes
//! throttle.rs         revocable containers: throttle, freeze, thaw for a launch
//! probe.rs            checks and health checks
//! limit_drift.rs      limits changed by other programs
//! inspection.rs       disk usage and listening ports
//! inspection_limits.rs  limits for both
//! interference.rs     supervisors stopped and tasks moved by other programs
//! recover.rs          containers that ran before a start
//! sockets.rs          the container that opened a connection
//! fair_semaphore.rs   permits for blocking work, fair between frameworks
//! readiness.rs        descriptors that become readable
//! ```

mod container_table;
mod destroy;
mod exit_status;
pub(crate) mod fair_semaphore;
pub(crate) mod inspection;
pub(crate) mod inspection_limits;
mod interference;
mod launch;
mod limit_drift;
mod limitation_file;
mod probe;
pub(crate) mod readiness;
pub(crate) mod recover;
mod resize;
mod sockets;
mod state;
pub(crate) mod supervision;
mod throttle;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::error_chain::chain;
use meseta_isolators::{Containers, note_repeated};
use tokio::sync::mpsc;
use tracing::warn;

use crate::core::{ContainerAction, Input};
use crate::directories::RuntimeFolder;
use crate::failure::Failure;
pub(crate) use launch::volumes_of;
use state::Inner;
pub(crate) use state::{LiveContainer, Options};

/// The time that the agent's exit waits for work on containers, and the polling interval.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(2);

/// Attempts to start the launcher before the agent ends: for half a minute.
const READY_ATTEMPTS: u32 = 10;

/// The containers of this agent.
#[derive(Clone, Debug)]
pub(crate) struct Containerizer {
    inner: Arc<Inner>,
}

impl Containerizer {
    pub(crate) fn new(
        options: Options,
        containers: Containers,
        runtime_folder: RuntimeFolder,
        inputs: mpsc::Sender<Input>,
    ) -> Self {
        let inner = Arc::new(Inner::new(options, containers, runtime_folder, inputs));
        Self { inner }
    }

    /// Waits until containers can be launched. Retries if the launcher finds no descriptors or no memory: clients of
    /// the agent may use them for a while.
    pub(crate) async fn ready(&self) -> Result<(), Failure> {
        let mut pause = supervision::AGAIN_MIN;
        for _ in 1..READY_ATTEMPTS {
            let inner = self.inner.clone();
            match blocking(move || inner.containers.ready()).await? {
                Err(error) if error.is_shortage() => {
                    note_repeated();
                    warn!(error = %chain(&error), "failed to start the launcher; retrying");
                }
                ready => return Ok(ready?),
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(supervision::AGAIN_MAX);
        }
        let inner = self.inner.clone();
        Ok(blocking(move || inner.containers.ready()).await??)
    }

    /// Carries out an action on a container.
    pub(crate) fn carry_out(&self, action: ContainerAction) {
        match action {
            ContainerAction::Launch(plan) => self.launch(*plan),
            ContainerAction::Kill { container, grace } => self.kill(&container, grace),
            ContainerAction::Destroy { container } => self.destroy(&container),
            ContainerAction::Forget { container } => self.forget(container),
            ContainerAction::Freeze { container, frozen } => self.freeze(container, frozen),
            ContainerAction::ThrottleRevocable {
                cpus_millis,
                memory_ceiling_bytes,
            } => self.throttle_revocable(cpus_millis, memory_ceiling_bytes),
            ContainerAction::Resize {
                container,
                demand,
                resources,
                volumes,
            } => self.resize(container, demand, &resources, volumes),
            ContainerAction::Probe(probe) => self.probe(*probe),
        }
    }

    /// Ends the launcher and removes the agent's cgroups. Called last; waits for work in progress.
    pub(crate) async fn close(self) {
        let mut inner = self.inner;
        let deadline = tokio::time::Instant::now() + CLOSE_TIMEOUT;
        loop {
            match Arc::try_unwrap(inner) {
                Ok(inner) => {
                    let _ = blocking(move || inner.containers.close()).await;
                    return;
                }
                Err(_) if tokio::time::Instant::now() >= deadline => {
                    return warn!(
                        "work on containers is still in progress; leaving the agent's groups in \
                         place"
                    );
                }
                Err(shared) => inner = shared,
            }
            tokio::time::sleep(CLOSE_POLL).await;
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    tokio::task::spawn_blocking(work).await
}
