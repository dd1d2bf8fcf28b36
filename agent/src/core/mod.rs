//! The agent's decisions: a single synchronous state machine.
//!
//! Entered through [`AgentCore::step`] only: an [`Input`] and the time go in, [`Effect`]s come out. It reads no clock,
//! does no I/O and takes random numbers from a seeded generator, so that the same inputs give the same effects. For
//! command tasks and task groups the core itself is the executor.
//!
//! ```text
//! input.rs, effect.rs, ids.rs, launch_plan.rs  the inputs and outputs
//! step.rs          an input → the owners; consequences of one owner → the others
//! step_context.rs, journal.rs  data of a step; order of writes and outputs
//! consequence.rs   consequences of a change for other owners
//! lifecycle.rs     RECOVERING → DISCONNECTED → RUNNING → TERMINATING; the exit
//! registration.rs  connections to the master, backoff, pings
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
//! disk.rs          the condition of the disk
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
mod consequence;
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
mod lifecycle;
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

use crate::checkpoint::{Lsn, RunKey, TaskKey};
use history::History;
use lifecycle::Lifecycle;
use operations::Operations;
use registration::Registration;
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
    lifecycle: Lifecycle,
    registration: Registration,
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
    operations: Operations,
    oversubscription: Oversubscription,
    /// Set while the master drains the agent.
    draining: Option<Draining>,
}

impl Agent {
    /// Creates the initial state.
    fn new(options: &Options) -> Self {
        Self {
            lifecycle: Lifecycle::new(),
            registration: Registration::default(),
            frameworks: BTreeMap::new(),
            completed_frameworks: VecDeque::new(),
            containers: BTreeMap::new(),
            probes: 0,
            probes_paused: 0,
            accepted: 0,
            awaits_executors: false,
            updates: StatusUpdates::new(options.check_updates_bytes_max),
            history: History::new(options.history_bytes_max),
            operations: Operations::new(&options.resources),
            oversubscription: Oversubscription::default(),
            draining: None,
        }
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

/// The resources allocated to the live executors.
fn allocated(frameworks: &BTreeMap<FrameworkId, Arc<Framework>>) -> Resources {
    let mut sum = Resources::default();
    for executor in frameworks.values().flat_map(|one| one.executors.values()) {
        for resource in executor.allocated().iter() {
            sum.insert(resource.clone());
        }
    }
    sum
}
