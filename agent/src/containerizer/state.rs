//! What the containerizer knows of each container, and the limits on its work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use meseta_daemon::server::CancellationToken;
use meseta_isolators::{Containers, Demand, DiskUsage, Interference, ProcessIdentity};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::ContainerId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::warn;

use super::Containerizer;
use super::fair_semaphore::{FairSemaphore, PermitLimits};
use super::inspection_limits::InspectionLimits;
use super::interference::InterferenceCounters;
use super::throttle::ThrottleWriter;
use crate::checkpoint::{Layout, Limitation, RunKey};
use crate::core::Input;
use crate::descriptors::DescriptorShares;
use crate::directories::RuntimeFolder;
use crate::failure::Failure;
use crate::fetch::Cancel;
use crate::spec::LaunchSettings;

/// Containers destroyed at once: each holds a thread, and the kernel gains nothing by more.
const ENDINGS_AT_ONCE: usize = 16;
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
/// Launches at once that wait for paths of the machine's, whose file systems may never answer: each holds a thread. Half
/// of them are left to others by a framework whose volumes hang.
const HOST_PATHS_AT_ONCE: PermitLimits = PermitLimits {
    all: 32,
    each: 16,
    spare: 32,
};
/// Threads that look up names for checks, each of which may outlive its check: as many as there are of these.
const LOOKUPS_AT_ONCE: PermitLimits = PROBES_AT_ONCE;

/// How containers are run here.
#[derive(Debug)]
pub(crate) struct Options {
    /// What is the same for all containers.
    pub(crate) settings: LaunchSettings,
    /// Launches under way at once.
    pub(crate) launches_at_once: usize,
    /// The value of `--cgroups_destroy_timeout`.
    pub(crate) destroy_timeout: Duration,
    /// The value of `--fetcher_stall_timeout`.
    pub(crate) fetcher_stall_timeout: Duration,
    /// Whether a container's share of the disk is enforced, also while it is fetched for.
    pub(crate) enforce_disk: bool,
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
    /// Whether its groups have limits of its own; what is nested may share those around it.
    pub(crate) own_limits: bool,
    /// What it may hold and listen on.
    pub(crate) inspection_limits: InspectionLimits,
    /// The persistent volumes that it is to see; those of its launch if absent.
    pub(crate) volumes: Option<Vec<pb::Resource>>,
    /// Serialises changes to it.
    pub(crate) change_lock: Arc<tokio::sync::Mutex<Applied>>,
}

/// What a container was given last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Applied {
    /// The demand that its limits were last set to.
    pub(crate) demand: Demand,
    /// Whether volumes may be mounted in it.
    pub(crate) may_have_volumes: bool,
    /// The persistent volumes that it has for certain: none of a container that was found.
    pub(crate) volumes: Vec<pb::Resource>,
    /// Files of limits that were not there when it was last looked at: nothing enforces those.
    pub(crate) missing_limits: Vec<&'static str>,
    /// What others were found to have done to its processes when these were last looked at.
    pub(crate) interference: Interference,
}

impl Applied {
    /// Those of a container that was launched with this demand and these volumes, or found.
    pub(super) fn at_first(
        demand: Demand,
        volumes: &[pb::Resource],
    ) -> Arc<tokio::sync::Mutex<Self>> {
        Arc::new(tokio::sync::Mutex::new(Self {
            demand,
            may_have_volumes: true,
            volumes: volumes.to_vec(),
            missing_limits: Vec::new(),
            interference: Interference::default(),
        }))
    }
}

/// What was last measured of each container's folders; the sandbox comes first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    disks: Arc<RwLock<BTreeMap<ContainerId, Arc<[DiskUsage]>>>>,
}

impl Measured {
    /// The folders of one container; nothing before the first look.
    pub(crate) fn of(&self, container: &ContainerId) -> Option<Arc<[DiskUsage]>> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner);
        disks.get(container).cloned()
    }

    pub(super) fn replace(&self, found: BTreeMap<ContainerId, Arc<[DiskUsage]>>) {
        *self.disks.write().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// How far a container is.
#[derive(Debug)]
pub(super) enum Entry {
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

/// The state that all tasks of the containerizer share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) containers: Containers,
    /// Where the containers are noted; locked while it is made anew.
    runtime_folder: Mutex<RuntimeFolder>,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) launch_permits: Semaphore,
    pub(super) destroy_permits: Semaphore,
    /// For descriptors that wait for what happens to a container.
    pub(super) watches: Arc<Semaphore>,
    pub(super) table: Mutex<BTreeMap<ContainerId, Entry>>,
    pub(super) measured: Measured,
    pub(super) fetch_permits: FairSemaphore,
    pub(super) host_path_permits: FairSemaphore,
    pub(super) probe_permits: FairSemaphore,
    pub(super) lookup_permits: FairSemaphore,
    pub(super) fetches_succeeded: AtomicU64,
    pub(super) fetches_failed: AtomicU64,
    pub(super) destroy_errors: AtomicU64,
    pub(super) limits_restored: AtomicU64,
    pub(super) limits_lost: AtomicU64,
    pub(super) interference: InterferenceCounters,
    pub(super) throttle_writer: ThrottleWriter,
}

impl Inner {
    pub(super) fn new(
        options: Options,
        containers: Containers,
        runtime_folder: RuntimeFolder,
        inputs: mpsc::Sender<Input>,
    ) -> Self {
        let launch_permits = Semaphore::new(options.launches_at_once.max(1));
        Self {
            options,
            containers,
            runtime_folder: Mutex::new(runtime_folder),
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
            host_path_permits: FairSemaphore::new(HOST_PATHS_AT_ONCE),
            probe_permits: FairSemaphore::new(PROBES_AT_ONCE),
            lookup_permits: FairSemaphore::new(LOOKUPS_AT_ONCE),
            fetches_succeeded: AtomicU64::new(0),
            fetches_failed: AtomicU64::new(0),
            destroy_errors: AtomicU64::new(0),
            limits_restored: AtomicU64::new(0),
            limits_lost: AtomicU64::new(0),
            interference: InterferenceCounters::default(),
            throttle_writer: ThrottleWriter::default(),
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Entry>> {
        // The table is consistent between any two statements, so a panic elsewhere spoils nothing.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Before anything is launched: a runtime folder that others have removed beside the running agent is made anew.
    /// Blocking.
    pub(super) fn restore_runtime_folder(&self) -> Result<(), Failure> {
        let mut folder = self
            .runtime_folder
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let is_anew = folder.restore()?;
        if is_anew || !self.containers.has_runtime_dir() {
            self.containers.restore_runtime_dir()?;
            warn!(
                path = %folder.path().display(),
                "the runtime folder was removed beside the running agent, and is made anew: how containers that run now exit is lost"
            );
        }
        Ok(())
    }

    pub(super) async fn tell(&self, input: Input) {
        // The core is gone only when the process is about to be.
        let _ = self.inputs.send(input).await;
    }
}

impl Containerizer {
    /// The kernel side, for recovery and sampling.
    pub(crate) fn containers(&self) -> &Containers {
        &self.inner.containers
    }

    /// Makes the folder anew that containers are noted in, if others have removed it. Blocking.
    pub(crate) fn restore_runtime_folder(&self) -> Result<(), Failure> {
        self.inner.restore_runtime_folder()
    }

    /// What containers' folders hold.
    pub(crate) fn measured(&self) -> &Measured {
        &self.inner.measured
    }

    /// The layout of the work directory.
    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.options.settings.layout
    }

    /// Permit for a descriptor that stays open while a container runs; `None` at the limit.
    pub(super) fn watch_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.inner.watches.clone().try_acquire_owned().ok()
    }

    pub(super) fn throttle_writer(&self) -> &ThrottleWriter {
        &self.inner.throttle_writer
    }

    /// Destroys that left something, counted per attempt.
    pub(crate) fn destroy_errors(&self) -> u64 {
        let errors = &self.inner.destroy_errors;
        errors.load(Ordering::Relaxed)
    }

    /// How often limits of a container were not what was asked for, and were set again.
    pub(crate) fn limits_restored(&self) -> u64 {
        self.inner.limits_restored.load(Ordering::Relaxed)
    }

    /// How often limits of a container were found to be gone with their group.
    pub(crate) fn limits_lost(&self) -> u64 {
        self.inner.limits_lost.load(Ordering::Relaxed)
    }

    /// How often others were found to have stopped a supervisor, or moved a process out of its container's groups.
    pub(crate) fn interference(&self) -> &InterferenceCounters {
        &self.inner.interference
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

    /// What is the same for all containers.
    pub(crate) fn settings(&self) -> &LaunchSettings {
        &self.inner.options.settings
    }

    /// Whether there is a container of that id, whatever becomes of it: an executor's or a task's own.
    pub(crate) fn has(&self, container: &ContainerId) -> bool {
        self.inner.table().contains_key(container)
    }

    /// Who keeps a container that runs.
    pub(crate) fn supervisor_of(&self, container: &ContainerId) -> Option<ProcessIdentity> {
        match self.inner.table().get(container) {
            Some(Entry::Running(live)) => Some(live.supervisor.clone()),
            _ => None,
        }
    }

    /// Containers whose fetches succeeded, and failed.
    pub(crate) fn fetches(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            read(&self.inner.fetches_succeeded),
            read(&self.inner.fetches_failed),
        )
    }
}
