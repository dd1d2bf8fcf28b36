//! Carries out what the core decides about containers, and tells it what became of them.
//!
//! Decides nothing. Calls of `meseta_isolators` block: each runs on a blocking thread. A container is launched,
//! then watched by the pidfd of its supervisor; at its end the exit record is read, the kernel's counters are asked
//! for limits, and its cgroups are destroyed, with retries, before the core hears of it. Concurrent launches are
//! limited.

mod destroy;
mod exit_status;
pub(crate) mod fair_semaphore;
pub(crate) mod inspection;
mod launch;
mod limitation_file;
mod probe;
pub(crate) mod readiness;
pub(crate) mod recover;
mod resize;
mod sockets;
pub(crate) mod supervision;
mod throttle;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_daemon::server::CancellationToken;
use meseta_isolators::{
    ContainerName, Containers, Demand, KillRequest, ProcessIdentity, is_shortage,
};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::ContainerId;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::{debug, error, warn};

use crate::checkpoint::{Layout, RunKey};
use crate::core::{Action, Input, Limitation};
use crate::descriptors::DescriptorShares;
use crate::error_chain::chain;
use crate::fetch::Cancel;
use crate::isolation::TaskRights;
use crate::log_flags::Logs;
use crate::spec::environment::AgentEnvironment;
use fair_semaphore::{FairSemaphore, PermitLimits};
use inspection::{InspectionLimits, Measured};
use readiness::{any_event, register};
use supervision::AGAIN_MAX;

use exit_status::memory_limitation;

/// First pause before a destroy that left something is tried again; doubles up to the second.
const DESTROY_RETRY_MIN: Duration = Duration::from_millis(200);
const DESTROY_RETRY_MAX: Duration = Duration::from_secs(30);
/// How long the end of the agent waits for work on containers, and how often it looks.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
const CLOSE_POLL: Duration = Duration::from_millis(2);
/// How often, and how far apart, the kernel's counters are read after it spoke of a limit.
const LIMIT_READS: u32 = 20;
const LIMIT_READ_PAUSE: Duration = Duration::from_millis(25);
/// How often limits are looked at that nobody watches for want of descriptors.
const UNWATCHED_LIMIT_PAUSE: Duration = Duration::from_secs(5);
/// Containers destroyed at once: each holds a thread, and the kernel gains nothing by more.
const ENDINGS_AT_ONCE: usize = 16;
/// How long one of these places may be held; what takes longer goes on without one.
const ENDING_QUICK: Duration = Duration::from_secs(1);
/// Containers fetched for at once: each holds two threads, and the network gains nothing by more. Half of
/// them are left to others by a framework whose sources send nothing.
const FETCHES_AT_ONCE: PermitLimits = PermitLimits {
    all: 16,
    each: 8,
    spare: 16,
};
/// Probes run at once, each of which holds a thread for up to its timeout; others wait. Half of them are left to
/// others by a framework whose checks hang.
const PROBES_AT_ONCE: PermitLimits = PermitLimits {
    all: 128,
    each: 64,
    spare: 64,
};
const SIGTERM: i32 = 15;

/// How containers are run here.
#[derive(Debug)]
pub(crate) struct Options {
    /// The layout of the work directory.
    pub(crate) layout: Layout,
    /// What all tasks are told.
    pub(crate) environment: AgentEnvironment,
    /// `--switch_user`, and whether we could.
    pub(crate) switch_user: bool,
    /// What tasks may ask of their isolation.
    pub(crate) rights: TaskRights,
    /// What is kept of their output.
    pub(crate) logs: Logs,
    /// Launches under way at once.
    pub(crate) launches_at_once: usize,
    /// The value of `--cgroups_destroy_timeout`.
    pub(crate) destroy_timeout: Duration,
    /// The value of `--fetcher_stall_timeout`.
    pub(crate) fetcher_stall_timeout: Duration,
}

/// A container as the monitor and the operators see it.
#[derive(Clone, Debug)]
pub(crate) struct LiveContainer {
    /// The run that it belongs to.
    pub(crate) run: Arc<RunKey>,
    /// Which: the run's own, or one nested in that.
    pub(crate) container: ContainerId,
    /// The supervisor process of the container.
    pub(crate) supervisor: ProcessIdentity,
    /// Requests and limits of resources.
    pub(crate) demand: Demand,
    /// What it may hold and listen on.
    pub(crate) inspection_limits: InspectionLimits,
    /// The persistent volumes that it is to see; those of its launch if absent.
    pub(crate) volumes: Option<Vec<pb::Resource>>,
    /// Serialises changes to it; holds whether volumes may be mounted in it.
    pub(crate) change_lock: Arc<tokio::sync::Mutex<bool>>,
}

/// A container that is being launched.
#[derive(Debug)]
struct Begun {
    run: Arc<RunKey>,
    container: ContainerId,
    demand: Demand,
    inspection_limits: InspectionLimits,
}

#[derive(Debug)]
enum Entry {
    /// Waits for a place to be launched, until it is cancelled.
    Queued {
        cancelled: CancellationToken,
    },
    /// Is being fetched for or launched; the fetching can be stopped.
    Launching {
        fetch: Arc<Cancel>,
    },
    Running(Arc<LiveContainer>),
    /// It is being ended for this.
    Limited(Arc<LiveContainer>, Limitation),
    Ending,
}

/// The containers of this agent.
#[derive(Clone, Debug)]
pub(crate) struct Containerizer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: Options,
    containers: Containers,
    inputs: mpsc::Sender<Input>,
    launch_permits: Semaphore,
    destroy_permits: Semaphore,
    /// For descriptors that wait for what happens to a container.
    watches: Arc<Semaphore>,
    table: Mutex<BTreeMap<ContainerId, Entry>>,
    measured: Measured,
    fetch_permits: FairSemaphore,
    probe_permits: FairSemaphore,
    fetches_succeeded: AtomicU64,
    fetches_failed: AtomicU64,
    destroy_errors: AtomicU64,
    throttle_writer: throttle::ThrottleWriter,
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Entry>> {
        // The table is consistent between any two statements, so a panic elsewhere spoils nothing.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tell(&self, input: Input) {
        // The core is gone only when the process is about to be.
        let _ = self.inputs.send(input).await;
    }
}

impl Containerizer {
    pub(crate) fn new(
        options: Options,
        containers: Containers,
        inputs: mpsc::Sender<Input>,
    ) -> Self {
        let launch_permits = Semaphore::new(options.launches_at_once.max(1));
        Self {
            inner: Arc::new(Inner {
                options,
                containers,
                inputs,
                launch_permits,
                destroy_permits: Semaphore::new(ENDINGS_AT_ONCE),
                watches: Arc::new(Semaphore::new(
                    DescriptorShares::of_process()
                        .watched
                        .min(Semaphore::MAX_PERMITS),
                )),
                table: Mutex::new(BTreeMap::new()),
                measured: Measured::default(),
                fetch_permits: FairSemaphore::new(FETCHES_AT_ONCE),
                probe_permits: FairSemaphore::new(PROBES_AT_ONCE),
                fetches_succeeded: AtomicU64::new(0),
                fetches_failed: AtomicU64::new(0),
                destroy_errors: AtomicU64::new(0),
                throttle_writer: throttle::ThrottleWriter::default(),
            }),
        }
    }

    /// The kernel side, for recovery and sampling.
    pub(crate) fn containers(&self) -> &Containers {
        &self.inner.containers
    }

    /// Waits until containers can be launched.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        let inner = self.inner.clone();
        let ready = blocking(move || inner.containers.ready().map_err(|error| chain(&error))).await;
        ready.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    /// What containers' folders hold.
    pub(crate) fn measured(&self) -> &Measured {
        &self.inner.measured
    }

    /// The layout of the work directory.
    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.options.layout
    }

    /// Permit for a descriptor that stays open while a container runs; `None` at the limit.
    fn watch_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.inner.watches.clone().try_acquire_owned().ok()
    }

    fn throttle_writer(&self) -> &throttle::ThrottleWriter {
        &self.inner.throttle_writer
    }

    /// Destroys that left something, counted per attempt.
    pub(crate) fn destroy_errors(&self) -> u64 {
        let errors = &self.inner.destroy_errors;
        errors.load(Ordering::Relaxed)
    }

    /// Whether nothing runs, begins or ends.
    pub(crate) fn is_idle(&self) -> bool {
        self.inner.table().is_empty()
    }

    /// Those that run now.
    pub(crate) fn live(&self) -> Vec<Arc<LiveContainer>> {
        let running = |entry: &Entry| match entry {
            Entry::Running(live) | Entry::Limited(live, _) => Some(live.clone()),
            _ => None,
        };
        self.inner.table().values().filter_map(running).collect()
    }

    /// Carries out what concerns a container.
    pub(crate) fn carry_out(&self, action: Action) {
        match action {
            Action::Launch(plan) => self.launch(*plan),
            Action::Kill { container, grace } => self.kill(&container, grace),
            Action::Destroy { container } => self.destroy(&container),
            Action::Forget { container } => self.forget(container),
            Action::Freeze { container, frozen } => self.freeze(container, frozen),
            Action::ThrottleRevocable {
                cpus_millis,
                memory_ceiling_bytes,
            } => self.throttle_revocable(cpus_millis, memory_ceiling_bytes),
            Action::Resize {
                container,
                demand,
                resources,
                volumes,
            } => {
                let request = resize::ResizeRequest {
                    demand,
                    resources,
                    volumes,
                };
                self.resize(container, request);
            }
            Action::Probe(probe) => self.probe(*probe),
            Action::Tell { .. }
            | Action::HangUp { .. }
            | Action::Discard { .. }
            | Action::Connect { .. }
            | Action::Disconnect { .. }
            | Action::Send { .. }
            | Action::Exit(_) => {}
        }
    }

    /// Takes a container of an earlier agent up; it ends if that agent had found it beyond a limit.
    pub(crate) fn adopt(&self, live: LiveContainer, limitation: Option<Limitation>) {
        let live = Arc::new(live);
        let container = live.container.clone();
        let running = Entry::Running(live.clone());
        self.inner.table().insert(container.clone(), running);
        if let Some(limitation) = limitation {
            self.limit(&container, limitation);
        }
        // One that was to shrink once it fitted has been waiting since before the restart.
        let name = ContainerName::new(container.as_str()).ok();
        if let Some(name) = name.filter(|name| name.nesting().is_none()) {
            drop(self.shrink(container, name, live.demand));
        }
        let this = self.clone();
        tokio::spawn(async move { this.watch(live).await });
    }

    /// Takes what is left of a container apart and tells its end.
    pub(crate) fn adopt_ended(&self, container: ContainerId, demand: Demand) {
        let this = self.clone();
        tokio::spawn(async move { this.end(container, None, demand).await });
    }

    /// Waits for the supervisor's end.
    async fn watch(self, live: Arc<LiveContainer>) {
        let container = live.container.clone();
        {
            let ended = supervision::ended(&self, &container, &live.supervisor);
            tokio::pin!(ended);
            tokio::select! {
                () = &mut ended => {}
                limitation = self.over_a_limit(&live) => {
                    self.limit(&container, limitation);
                    ended.await;
                }
            }
        }
        // Apart, so that what waits for years has no room for what the end needs.
        let supervisor = Some(live.supervisor.clone());
        Box::pin(self.end(container, supervisor, live.demand)).await;
    }

    /// Completes when the container ran into a limit although its first process goes on: the kernel
    /// killed a child of it, say, now or while no agent watched. The whole container ends then.
    async fn over_a_limit(&self, live: &LiveContainer) -> Limitation {
        let container = &live.container;
        let name = ContainerName::new(container.as_str()).ok();
        let (inner, asked) = (self.inner.clone(), name.clone());
        let own = blocking(move || {
            asked.is_some_and(|name| inner.containers.has_own_memory_limit(&name))
        });
        // What shares the limits of what is around it is watched with that.
        let (Some(name), Ok(true)) = (name, own.await) else {
            return std::future::pending().await;
        };
        let watch_permit = self.watch_permit();
        let events = match watch_permit {
            Some(_) => self.limit_events(container, &name).await,
            None => Vec::new(),
        };
        let mut looks = 1;
        loop {
            for _ in 0..looks {
                let (inner, name, demand) = (self.inner.clone(), name.clone(), live.demand);
                let met = blocking(move || inner.containers.limitation(&name, &demand)).await;
                if let Ok(Ok(Some(limitation))) = met {
                    return memory_limitation(limitation);
                }
                if looks > 1 {
                    tokio::time::sleep(LIMIT_READ_PAUSE).await;
                }
            }
            if watch_permit.is_none() {
                tokio::time::sleep(UNWATCHED_LIMIT_PAUSE).await;
                continue;
            }
            // The event comes when memory ran out, the count once a process was killed for it.
            looks = LIMIT_READS;
            if any_event(&events).await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// What tells that a container may have run into a limit; once there are descriptors for it.
    async fn limit_events(
        &self,
        container: &ContainerId,
        name: &ContainerName,
    ) -> Vec<AsyncFd<OwnedFd>> {
        loop {
            let (inner, watched) = (self.inner.clone(), name.clone());
            let watched = blocking(move || inner.containers.watch_limits(&watched)).await;
            let watched = match watched {
                Ok(watched) => watched.and_then(|all| all.into_iter().map(register).collect()),
                Err(panic) => Err(std::io::Error::other(panic)),
            };
            match watched {
                Ok(events) => return events,
                Err(error) if is_shortage(&error) => tokio::time::sleep(AGAIN_MAX).await,
                Err(error) => {
                    warn!(container_id = %container, %error, "cannot watch a container's limits");
                    return Vec::new();
                }
            }
        }
    }

    async fn end(
        self,
        container: ContainerId,
        supervisor: Option<ProcessIdentity>,
        demand: Demand,
    ) {
        let before = self.inner.table().insert(container.clone(), Entry::Ending);
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        // What was read while it lived says more than what is left of its group.
        let known = match before {
            Some(Entry::Limited(_, limitation)) => Some(limitation),
            _ => None,
        };
        let ending = self.read_ending(&container, &name, demand, known).await;
        self.destroy_until_gone(&name, supervisor).await;
        self.inner.table().remove(&container);
        debug!(container_id = %container, ?ending, "container ended");
        let input = Input::ContainerEnded { container, ending };
        self.inner.tell(input).await;
    }

    fn kill(&self, container: &ContainerId, grace: Duration) {
        let supervisor = match self.inner.table().get_mut(container) {
            Some(Entry::Queued { cancelled }) => {
                cancelled.cancel();
                return;
            }
            Some(Entry::Running(live) | Entry::Limited(live, _)) => live.supervisor.clone(),
            Some(Entry::Launching { fetch }) => {
                // The core kills again what it hears to have started.
                fetch.cancel();
                return;
            }
            // What ends needs no kill.
            Some(Entry::Ending) | None => return,
        };
        let (inner, container) = (self.inner.clone(), container.clone());
        tokio::task::spawn_blocking(move || {
            let request = KillRequest {
                signal: SIGTERM,
                grace,
            };
            if let Err(error) = inner.containers.kill(&supervisor, request) {
                // Destroyed by the core's own timer if nothing else helps.
                error!(container_id = %container, %error, "failed to ask a supervisor for a kill");
            }
        });
    }

    /// Ends a container that runs beyond a limit; the first limit is the one that is told, by a later life of
    /// the agent too.
    pub(crate) fn limit(&self, container: &ContainerId, limitation: Limitation) {
        if let Some(entry) = self.inner.table().get_mut(container)
            && let Entry::Running(live) = entry
        {
            *entry = Entry::Limited(live.clone(), limitation.clone());
        } else {
            return;
        }
        let (this, container) = (self.clone(), container.clone());
        tokio::task::spawn_blocking(move || {
            if let Ok(name) = ContainerName::new(container.as_str()) {
                limitation_file::keep(&this.inner.containers, &name, &limitation);
            }
            this.kill(&container, Duration::ZERO);
        });
    }

    fn destroy(&self, container: &ContainerId) {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        let supervisor = match self.inner.table().get(container) {
            Some(Entry::Running(live) | Entry::Limited(live, _)) => Some(live.supervisor.clone()),
            Some(Entry::Queued { .. } | Entry::Launching { .. } | Entry::Ending) => return,
            None => None,
        };
        let this = self.clone();
        // The watch sees the supervisor's end and tells the core.
        tokio::spawn(async move { this.destroy_until_gone(&name, supervisor).await });
    }

    fn forget(&self, container: ContainerId) {
        let Ok(name) = ContainerName::new(container.as_str()) else {
            return;
        };
        let inner = self.inner.clone();
        tokio::task::spawn_blocking(move || {
            if let Err(error) = inner.containers.forget(&name) {
                warn!(container_id = %container, %error, "a container's runtime folder is left over");
            }
        });
    }

    /// A container without a checkpoint is destroyed and forgotten.
    pub(crate) fn remove_orphan(
        &self,
        name: ContainerName,
        supervisor: Option<ProcessIdentity>,
    ) -> tokio::task::JoinHandle<()> {
        let this = self.clone();
        tokio::spawn(async move {
            this.destroy_until_gone(&name, supervisor).await;
            let inner = this.inner.clone();
            let _ = blocking(move || inner.containers.forget(&name)).await;
        })
    }

    /// Ends the launcher and removes our groups; called last, and waits for what is still under way.
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
                        "work on containers is still under way; our groups are left over"
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
