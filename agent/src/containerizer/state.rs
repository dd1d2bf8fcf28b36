//! The state that all tasks of the containerizer share, and the limits on concurrent work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use meseta_isolators::{Containers, Demand, DiskUsage, Interference, ProcessIdentity};
use meseta_proto::mesos::v1 as pb;
use meseta_resources::ContainerId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tracing::warn;

use super::Containerizer;
use super::container_table::ContainerTable;
use super::fair_semaphore::{FairSemaphore, PermitLimits};
use super::inspection_limits::InspectionLimits;
use super::interference::InterferenceCounters;
use super::throttle::ThrottleWriter;
use crate::checkpoint::{Layout, RunKey};
use crate::core::Input;
use crate::descriptors::DescriptorShares;
use crate::directories::RuntimeFolder;
use crate::failure::Failure;
use crate::spec::LaunchSettings;

/// Containers destroyed at once: each takes a thread, and more would not make the kernel faster.
const ENDINGS_AT_ONCE: usize = 16;
/// Containers with a fetch in progress: each takes two threads, and more would not make the network faster. A framework
/// with silent sources leaves half of them to others.
const FETCHES_AT_ONCE: PermitLimits = PermitLimits {
    all: 16,
    each: 8,
    spare: 16,
};
/// Probes run at once. Each holds a thread for up to its timeout; others wait. A framework with hanging checks leaves
/// half of them to others.
const PROBES_AT_ONCE: PermitLimits = PermitLimits {
    all: 128,
    each: 64,
    spare: 64,
};
/// Launches that wait for host paths at once. Their file systems may never answer, and each holds a thread. A framework
/// with hanging volumes leaves half of them to others.
const HOST_PATHS_AT_ONCE: PermitLimits = PermitLimits {
    all: 32,
    each: 16,
    spare: 32,
};
/// Threads that look up names for checks. Each may outlive its check, so their limit is that of the probes.
const LOOKUPS_AT_ONCE: PermitLimits = PROBES_AT_ONCE;

/// The options of the containerizer.
#[derive(Debug)]
pub(crate) struct Options {
    /// The settings common to all containers.
    pub(crate) settings: LaunchSettings,
    /// Launches in progress at once.
    pub(crate) launches_at_once: usize,
    /// The value of `--cgroups_destroy_timeout`.
    pub(crate) destroy_timeout: Duration,
    /// The value of `--fetcher_stall_timeout`.
    pub(crate) fetcher_stall_timeout: Duration,
    /// Whether the disk limit of a container is enforced, also during its fetch.
    pub(crate) enforce_disk: bool,
}

/// A running container, as the monitor and the operators see it.
#[derive(Clone, Debug)]
pub(crate) struct LiveContainer {
    /// The run that owns the container.
    pub(crate) run: Arc<RunKey>,
    /// The id of the container: the run's own container, or a nested one.
    pub(crate) container: ContainerId,
    /// The supervisor process of the container.
    pub(crate) supervisor: ProcessIdentity,
    /// Requests and limits of resources.
    pub(crate) demand: Demand,
    /// Whether its cgroups have their own limits; a nested container may share its parent's.
    pub(crate) own_limits: bool,
    /// The limits for disk usage and ports.
    pub(crate) inspection_limits: InspectionLimits,
    /// The requested persistent volumes; `None` means the volumes of its launch.
    pub(crate) volumes: Option<Vec<pb::Resource>>,
    /// Serialises changes of the container.
    pub(crate) change_lock: Arc<tokio::sync::Mutex<Applied>>,
}

/// The values last applied to a container.
#[derive(Clone, Debug, Default)]
pub(crate) struct Applied {
    /// The demand last written to its limits.
    pub(crate) demand: Demand,
    /// Whether volumes may be mounted in the container.
    pub(crate) may_have_volumes: bool,
    /// The persistent volumes that the container certainly has; empty for an adopted container.
    pub(crate) volumes: Vec<pb::Resource>,
    /// Limit files missing at the last comparison: nothing enforces these limits.
    pub(crate) missing_limits: Vec<&'static str>,
    /// The interference with its processes found at the last inspection.
    pub(crate) interference: Interference,
}

impl Applied {
    /// The values for a container launched with this demand and these volumes, or adopted.
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

/// The last measured disk usage of each container's folders; the sandbox comes first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    disks: Arc<RwLock<BTreeMap<ContainerId, Arc<[DiskUsage]>>>>,
}

impl Measured {
    /// The folders of a container; `None` before the first measurement.
    pub(crate) fn get(&self, container: &ContainerId) -> Option<Arc<[DiskUsage]>> {
        let disks = self.disks.read().unwrap_or_else(PoisonError::into_inner);
        disks.get(container).cloned()
    }

    pub(super) fn replace(&self, found: BTreeMap<ContainerId, Arc<[DiskUsage]>>) {
        *self.disks.write().unwrap_or_else(PoisonError::into_inner) = found;
    }
}

/// The limits of concurrent launches. One role leaves a quarter of the permits to other roles, so that their next task
/// does not wait for the end of a launch.
pub(super) fn launch_limits(at_once: usize) -> PermitLimits {
    PermitLimits {
        all: at_once,
        each: at_once - at_once / 4,
        spare: 0,
    }
}

/// The state that all tasks of the containerizer share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) options: Options,
    pub(super) containers: Containers,
    /// The folder with the records of the containers; locked while it is restored.
    runtime_folder: Mutex<RuntimeFolder>,
    pub(super) inputs: mpsc::Sender<Input>,
    /// Permits for launches, fair between top roles: the tenants of one framework take turns.
    pub(super) launch_permits: FairSemaphore<String>,
    pub(super) destroy_permits: Semaphore,
    /// Permits for descriptors that watch containers.
    pub(super) watches: Arc<Semaphore>,
    pub(super) table: ContainerTable,
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
        let launches_at_once = options.launches_at_once.max(1);
        Self {
            options,
            containers,
            runtime_folder: Mutex::new(runtime_folder),
            inputs,
            launch_permits: FairSemaphore::new(launch_limits(launches_at_once)),
            destroy_permits: Semaphore::new(ENDINGS_AT_ONCE),
            watches: Arc::new(Semaphore::new(
                DescriptorShares::of_process()
                    .watched
                    .min(Semaphore::MAX_PERMITS),
            )),
            table: ContainerTable::default(),
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

    /// Restores a runtime folder that others removed while the agent was running. Called before every launch. Blocking.
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
                "the runtime folder was removed while the agent ran; creating it again: the exit \
                 status of running containers is lost"
            );
        }
        Ok(())
    }

    pub(super) async fn tell(&self, input: Input) {
        // The core is gone only when the process is about to end.
        let _ = self.inputs.send(input).await;
    }
}

impl Containerizer {
    /// The kernel side, for recovery and sampling.
    pub(crate) fn containers(&self) -> &Containers {
        &self.inner.containers
    }

    /// Restores the runtime folder, if others have removed it. Blocking.
    pub(crate) fn restore_runtime_folder(&self) -> Result<(), Failure> {
        self.inner.restore_runtime_folder()
    }

    /// The measured disk usage of containers.
    pub(crate) fn measured(&self) -> &Measured {
        &self.inner.measured
    }

    /// The layout of the work directory.
    pub(crate) fn layout(&self) -> &Layout {
        &self.inner.options.settings.layout
    }

    /// Returns a permit for a descriptor that stays open while a container runs; `None` at the limit.
    pub(super) fn watch_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.inner.watches.clone().try_acquire_owned().ok()
    }

    pub(super) fn throttle_writer(&self) -> &ThrottleWriter {
        &self.inner.throttle_writer
    }

    /// The number of incomplete destroys, counted per attempt.
    pub(crate) fn destroy_errors(&self) -> u64 {
        let errors = &self.inner.destroy_errors;
        errors.load(Ordering::Relaxed)
    }

    /// The number of times that changed limits of a container were set again.
    pub(crate) fn limits_restored(&self) -> u64 {
        self.inner.limits_restored.load(Ordering::Relaxed)
    }

    /// The number of times that limits of a container were found missing with their group.
    pub(crate) fn limits_lost(&self) -> u64 {
        self.inner.limits_lost.load(Ordering::Relaxed)
    }

    /// The counters of stopped supervisors and of processes moved out of their container's groups.
    pub(crate) fn interference(&self) -> &InterferenceCounters {
        &self.inner.interference
    }

    /// Whether no container runs, begins or ends.
    pub(crate) fn is_idle(&self) -> bool {
        self.inner.table.is_empty()
    }

    /// The containers that run now.
    pub(crate) fn live(&self) -> Vec<Arc<LiveContainer>> {
        self.inner.table.live()
    }

    /// The settings common to all containers.
    pub(crate) fn settings(&self) -> &LaunchSettings {
        &self.inner.options.settings
    }

    /// Whether a container with this id exists in any state, for an executor or a task.
    pub(crate) fn has(&self, container: &ContainerId) -> bool {
        self.inner.table.contains(container)
    }

    /// The supervisor of a running container.
    pub(crate) fn supervisor_of(&self, container: &ContainerId) -> Option<ProcessIdentity> {
        Some(self.inner.table.running(container)?.supervisor.clone())
    }

    /// The numbers of successful and failed fetches of containers.
    pub(crate) fn fetches(&self) -> (u64, u64) {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        (
            read(&self.inner.fetches_succeeded),
            read(&self.inner.fetches_failed),
        )
    }
}
