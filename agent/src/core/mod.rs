//! The agent's decisions: a single synchronous state machine.
//!
//! Entered through [`AgentCore::step`] only: an [`Input`] and the time go in, [`Effect`]s come out. It reads no clock,
//! does no I/O and takes random numbers from a seeded generator, so that the same inputs give the same effects. For
//! command tasks and task groups the core itself is the executor.
//!
//! ```text
//! input.rs, effect.rs, ids.rs, launch_plan.rs  the inputs and outputs
//! registration.rs  RECOVERING → DISCONNECTED → RUNNING → TERMINATING, backoff, pings
//! epochs.rs        the obeyed masters
//! accept.rs        RUN_TASK, RUN_TASK_GROUP → checked → intent → launch
//! rejection.rs     reasons to refuse a task
//! launch.rs        started containers → STARTING, RUNNING
//! parent_volumes.rs  volumes of the executor that a group task uses
//! executors.rs     executors of frameworks: subscription, updates, messages
//! delivery.rs      delivery of tasks to executors
//! executor_kills.rs  kills of tasks of custom executors
//! lifetimes.rs     timeouts, shutdown and end of executors
//! reconcile.rs     events that wait for an executor's container: resizes, deliveries, terminal updates
//! probe.rs, checks.rs  probes of tasks; their schedule and results
//! kill.rs          KILL, completion time, shutdown
//! ending.rs        a container's end → terminal update
//! operations.rs    reservations and volumes
//! oversubscription.rs  estimates → the master; corrections → revocable containers
//! status_updates.rs status updates made, sent, acknowledged; runs retired
//! update_streams.rs streams of status updates
//! shares.rs        shares of frameworks in common limits
//! recovery.rs      the state after a restart
//! partial_groups.rs  partially written groups
//! boot_clock.rs    ages of events, over restarts
//! pause.rs         deadlines after a pause of the process
//! ```
//! Invariants: an intent is durable before the launch, an update before it is sent, its acknowledgement before the next
//! update; a task ends once; an unobserved exit is a failure.

mod accept;
mod boot_clock;
mod check_rules;
mod checks;
mod delivery;
mod demand;
mod disk;
mod drain;
mod effect;
mod ending;
mod epochs;
mod executor_kills;
mod executors;
mod fields;
mod history;
mod ids;
mod input;
mod journal;
mod kill;
mod launch;
mod launch_plan;
mod lifetimes;
mod model;
mod operation_updates;
mod operations;
mod oversubscription;
mod parent_volumes;
mod partial_groups;
mod pause;
mod probe;
mod reconcile;
mod recovery;
mod registration;
mod rejection;
mod reregistration;
mod shares;
mod snapshot;
mod states;
mod status_updates;
mod step;
mod step_context;
#[cfg(test)]
mod tests;
mod timers;
mod update_streams;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Resources, TaskId};

pub use boot_clock::BootClock;
pub use demand::Enforceable;
pub(crate) use demand::megabytes_to_bytes;
pub use demand::{demand_of_run, demand_of_task};
pub use drain::Draining;
pub use effect::{
    ContainerAction, Destination, Effect, ExecutorAction, ExitReason, LinkAction, Output,
};
pub(crate) use fields::volumes_among;
pub use ids::{ConnectionId, LinkId, SharedTaskKey};
pub use input::{Ending, Exit, Found, Input, Recovery};
pub use launch_plan::{LaunchPlan, Subject};
pub use model::{
    Container, Executor, ExecutorKind, ExecutorLink, Framework, Kill, Phase, Task, TaskRef,
    TerminationReason, command_executor_name,
};
pub use oversubscription::{Oversubscription, Report};
pub use probe::{CheckState, Probe, ProbeHost, ProbeId, ProbeMethod, ProbeResult};
pub use snapshot::{Counters, Snapshot};
pub use states::is_terminal;
pub use step::AgentCore;
pub use update_streams::{
    Acknowledged, Pushed, RETRY_INTERVAL_MAX, RETRY_INTERVAL_MIN, StatusUpdates, StreamKey,
};

use crate::checkpoint::{DiskCondition, Lsn, RunKey, TaskKey};
use epochs::Epochs;
use history::History;
use operation_updates::OperationUpdates;
use registration::Link;
pub(crate) use registration::stream_key;
pub(crate) use rejection::VOLUMES_MAX;
use step_context::Step;
use timers::Timer;

/// The fixed settings of the core.
#[derive(Clone, Debug)]
pub struct Options {
    /// The description of the agent for the master; the core fills in `id`.
    pub info: pb::AgentInfo,
    /// The resources from the configuration.
    pub resources: Resources,
    /// The address of the agent's own API.
    pub address: pb::Address,
    pub version: String,
    /// The capabilities that the agent announces.
    pub capabilities: Vec<pb::agent_info::capability::Type>,
    /// Unit of the pauses between attempts to register (`--registration_backoff_factor`).
    pub registration_backoff_factor: Duration,
    /// The interval between totals of revocable resources sent to the master (`--oversubscribed_resources_interval`).
    pub oversubscribed_resources_interval: Duration,
    /// The limits that the isolators can enforce.
    pub enforceable: Enforceable,
    /// Completed executors shown per framework.
    pub max_completed_executors_per_framework: usize,
    /// Bytes of all completed executors; beyond this, executors of the framework with the most bytes go first.
    pub history_bytes_max: usize,
    /// Bytes of ended operations that are not acknowledged.
    pub operations_bytes_max: usize,
    /// Bytes of the longest frame that the master may send.
    pub frame_bytes_max: u64,
    /// Bytes of unacknowledged updates from checks.
    pub check_updates_bytes_max: usize,
    /// Bytes of the largest event for an executor, since it counts towards the limit for all streams.
    pub executor_event_bytes_max: usize,
    /// The address in `TaskStatus.container_status`.
    pub container_ip: String,
    /// The clock for recorded times.
    pub boot_clock: BootClock,
    /// The value of `--executor_registration_timeout`.
    pub executor_registration_timeout: Duration,
    /// The value of `--executor_reregistration_timeout`.
    pub executor_reregistration_timeout: Duration,
    /// `--executor_shutdown_grace_period`, for executors that name none.
    pub executor_shutdown_grace: Duration,
    /// The time that the disk may be silent, after the silence was reported, until the agent stops answering the
    /// master. `None` means for ever.
    pub disk_timeout: Option<Duration>,
}

/// The phases of the agent's life.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// The checkpoints are being read.
    Recovering,
    /// No master has registered the agent.
    Disconnected,
    /// The agent is registered and running.
    Running,
    /// The agent is shutting down.
    Terminating,
}

/// The state of an unregistering agent's wait for acknowledged terminal updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UnregisterWait {
    NotBegun,
    Lasts,
    Over,
}

/// The owner of a container.
#[derive(Clone, Debug)]
struct ContainerOwner {
    framework: FrameworkId,
    executor: ExecutorId,
    /// The task of the container's main process; `None` for an executor's own container.
    task: Option<TaskId>,
}

/// The state of the agent, by owner.
#[derive(Debug)]
struct Agent {
    state: State,
    link: Link,
    master: Option<Arc<pb::MasterInfo>>,
    epochs: Epochs,
    /// The recorded identity of the agent; without an id before the first registration.
    recorded_info: Option<Box<pb::AgentInfo>>,
    frameworks: BTreeMap<FrameworkId, Arc<Framework>>,
    completed_frameworks: VecDeque<Arc<Framework>>,
    /// The memory of completed frameworks, and of completed executors of other frameworks.
    history: History,
    containers: BTreeMap<ContainerId, ContainerOwner>,
    /// The number of probes begun.
    probes: u64,
    /// Probes up to this number were running during a pause of the agent, so their failures do not count.
    probes_paused: u64,
    /// The number of accepted tasks, used to deliver tasks in that order.
    accepted: u64,
    /// Whether registration waits for the return of recovered executors.
    awaits_executors: bool,
    updates: StatusUpdates,
    /// The agent's total, including reservations and volumes.
    total: Resources,
    /// Recovered reservations and volumes that do not fit `--resources`: they are recorded but not used.
    set_aside: Resources,
    operations: OperationUpdates,
    durable_view: operations::DurableView,
    oversubscription: Oversubscription,
    exit: Option<ExitReason>,
    /// Set while the exit of the process waits for the last writes.
    leaving: Option<ExitReason>,
    unregister_wait: UnregisterWait,
    /// Set while the master drains the agent.
    draining: Option<Draining>,
    /// The condition of the disk; while checkpoints cannot be written the agent accepts no task.
    disk: DiskCondition,
    /// Whether the agent has stopped answering its master, because the disk has been silent for too long.
    given_up_for_disk: bool,
}

impl Agent {
    /// Creates the initial state.
    fn new(options: &Options) -> Self {
        Self {
            state: State::Recovering,
            link: Link::default(),
            master: None,
            epochs: Epochs::default(),
            recorded_info: None,
            frameworks: BTreeMap::new(),
            completed_frameworks: VecDeque::new(),
            containers: BTreeMap::new(),
            probes: 0,
            probes_paused: 0,
            accepted: 0,
            awaits_executors: false,
            updates: StatusUpdates::new(options.check_updates_bytes_max),
            history: History::new(options.history_bytes_max),
            total: options.resources.clone(),
            set_aside: Resources::new(),
            operations: OperationUpdates::default(),
            durable_view: operations::DurableView::new(options.resources.clone()),
            oversubscription: Oversubscription::default(),
            exit: None,
            leaving: None,
            unregister_wait: UnregisterWait::NotBegun,
            draining: None,
            disk: DiskCondition::default(),
            given_up_for_disk: false,
        }
    }

    /// The resources allocated to the live executors.
    fn allocated(&self) -> Resources {
        let mut sum = Resources::default();
        for executor in self.all_executors() {
            for resource in executor.allocated().iter() {
                sum.insert(resource.clone());
            }
        }
        sum
    }

    /// The executor that owns a container, or its parent.
    fn executor_of(&self, container: &ContainerId) -> Option<Arc<Executor>> {
        let owner = self.containers.get(container)?;
        let framework = self.frameworks.get(&owner.framework)?;
        framework.executors.get(&owner.executor).cloned()
    }

    /// The task of a container's main process; `None` for an executor's own container.
    fn task_of(&self, container: &ContainerId) -> Option<TaskRef> {
        let task = self.containers.get(container)?.task.clone()?;
        let executor = self.executor_of(container)?;
        let task = executor.tasks.get(&task)?.clone();
        Some(TaskRef { executor, task })
    }

    /// The executor of a run, unless another run has replaced it.
    fn executor_at(&self, key: &RunKey) -> Option<Arc<Executor>> {
        let framework = self.frameworks.get(&key.framework)?;
        let executor = framework.executors.get(&key.executor)?;
        (executor.key.container == key.container).then(|| executor.clone())
    }

    fn task_at(&self, key: &TaskKey) -> Option<TaskRef> {
        let executor = self.executor_at(&key.run)?;
        let task = executor.tasks.get(&key.task)?.clone();
        Some(TaskRef { executor, task })
    }

    fn change_executor(&mut self, key: &RunKey, change: impl FnOnce(&mut Executor)) {
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        if let Some(executor) = Arc::make_mut(framework).executors.get_mut(&key.executor) {
            change(Arc::make_mut(executor));
        }
    }

    fn change_task(&mut self, key: &TaskKey, change: impl FnOnce(&mut Task)) {
        self.change_executor(&key.run, |executor| {
            if let Some(task) = executor.tasks.get_mut(&key.task) {
                change(Arc::make_mut(task));
            }
        });
    }

    fn change_container(&mut self, id: &ContainerId, change: impl FnOnce(&mut Container)) {
        let Some(owner) = self.containers.get(id) else {
            return;
        };
        let framework = self.frameworks.get_mut(&owner.framework);
        let Some(executor) = framework
            .and_then(|framework| Arc::make_mut(framework).executors.get_mut(&owner.executor))
        else {
            return;
        };
        let executor = Arc::make_mut(executor);
        if executor.container.id == *id {
            return change(&mut executor.container);
        }
        let task = owner.task.as_ref();
        let task = task.and_then(|task| executor.tasks.get_mut(task));
        if let Some(nested) = task.and_then(|task| Arc::make_mut(task).nested.as_mut()) {
            change(nested);
        }
    }
}
