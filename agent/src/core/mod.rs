//! The agent's decisions: a single synchronous state machine.
//!
//! Entered through [`AgentCore::step`] only: an [`Input`] and the time go in, [`Effect`]s come out. It reads no clock,
//! does no I/O and takes random numbers from a seeded generator, so that the same inputs give the same effects. For
//! command tasks and task groups the core itself is the executor.
//!
//! ```text
//! input.rs, effect.rs, ids.rs, launch_plan.rs  the inputs and outputs
//! step.rs          an input → its owner; the consequences of one owner → the others, in one match
//! step_context.rs, journal.rs, timers.rs  the data of a step: settings, writes, outputs, timers
//! consequence.rs   the changes that other owners must follow
//!
//! owners of state, each with private fields:
//! lifecycle.rs     RECOVERING → DISCONNECTED → RUNNING → TERMINATING; the exit
//! registration.rs, epochs.rs  the connection to the master, backoff, pings; the obeyed masters
//! operations.rs, operation_updates.rs  reservations and volumes; unacknowledged results
//! oversubscription.rs  estimates → the total for the master; limits of revocable work
//! disk.rs          the condition of the disk
//! tasks.rs         the owners of the state of tasks:
//!   runs.rs, model.rs, history.rs  frameworks, executors, tasks; the completed ones
//!   executor_link.rs  the connection to an executor; events that wait for its container
//!   update_streams.rs, shares.rs  streams of status updates; shares in common limits
//!   corrections.rs  frozen and evicted containers
//!   drain.rs       the drain; probe.rs: the ids of probes
//!
//! functions on the owners of tasks:
//! accept.rs        RUN_TASK, RUN_TASK_GROUP → checked → intent → launch
//! rejection.rs     reasons to refuse a task
//! launch.rs        started containers → STARTING, RUNNING
//! parent_volumes.rs  volumes of the executor that a group task uses
//! executors.rs     executors of frameworks: subscription, updates, messages
//! delivery.rs      delivery of tasks to executors
//! executor_kills.rs  kills of tasks of custom executors
//! lifetimes.rs     timeouts, shutdown and end of executors
//! reconcile.rs     events that wait for an executor's container: resizes, deliveries, terminal updates
//! checks.rs        the schedule and the results of probes
//! kill.rs          KILL, completion time, shutdown
//! ending.rs        a container's end → terminal update
//! status_updates.rs  status updates made, sent, acknowledged; runs retired
//! recovery.rs      the state after a restart
//! partial_groups.rs  partially written groups
//! boot_clock.rs    ages of events, over restarts
//! ```
//! Invariants: an intent is durable before the launch, an update before it is sent, its acknowledgement before the next
//! update; a task ends once; an unobserved exit is a failure.

mod accept;
mod boot_clock;
mod check_rules;
mod checks;
mod consequence;
mod corrections;
mod delivery;
mod demand;
mod disk;
mod drain;
mod effect;
mod ending;
mod epochs;
mod executor_kills;
mod executor_link;
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
mod probe;
mod reconcile;
mod recovery;
mod registration;
mod rejection;
mod reregistration;
mod runs;
mod shares;
mod snapshot;
mod states;
mod status_updates;
mod step;
mod step_context;
mod tasks;
#[cfg(test)]
mod tests;
mod timers;
mod update_streams;

use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resources;

pub use boot_clock::BootClock;
pub use demand::Enforceable;
pub(crate) use demand::megabytes_to_bytes;
pub use demand::{demand_of_run, demand_of_task};
pub use drain::Draining;
pub use effect::{
    ContainerAction, Destination, Effect, ExecutorAction, ExitReason, LinkAction, Output,
};
pub use executor_link::ExecutorLink;
pub(crate) use fields::volumes_among;
pub use ids::{ConnectionId, LinkId, SharedTaskKey};
pub use input::{Ending, Exit, Found, Input, Recovery};
pub use launch_plan::{LaunchPlan, Subject};
pub use model::{
    Container, Executor, ExecutorKind, Framework, Kill, Phase, Task, TaskRef, TerminationReason,
    command_executor_name,
};
pub use oversubscription::{Oversubscription, Report};
pub use probe::{CheckState, Probe, ProbeHost, ProbeId, ProbeMethod, ProbeResult};
pub use snapshot::{Counters, Snapshot};
pub use states::is_terminal;
pub use step::AgentCore;
pub use update_streams::{
    Acknowledged, Pushed, RETRY_INTERVAL_MAX, RETRY_INTERVAL_MIN, StatusUpdates, StreamKey,
};

pub(crate) use registration::stream_key;
pub(crate) use rejection::VOLUMES_MAX;
use step_context::Step;
use timers::Timer;

use crate::checkpoint::Lsn;

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
