//! The inputs of the agent's core.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_isolators::ProcessIdentity;
use meseta_proto::budget::Charge;
use meseta_proto::epoch::LedEpoch;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor;
use meseta_resources::{ContainerId, ExecutorId, FrameworkId};

use super::ids::{ConnectionId, LinkId};
use super::oversubscription::Report;
use super::probe::{ProbeId, ProbeResult};
use super::update_streams::StreamKey;
use crate::byte_semaphore::Permit;
use crate::checkpoint::{DiskCondition, Image, Limitation};

#[derive(Debug)]
pub enum Input {
    /// The checkpoints were read and the machine was inspected. Comes first, once.
    Recovered(Box<Recovery>),
    /// A leading master has accepted a connection; nothing was sent on it.
    LinkUp {
        link: LinkId,
        /// The epoch with which the master leads; older masters do not send it.
        led: Option<LedEpoch>,
    },
    /// A connection failed or ended.
    LinkDown {
        link: LinkId,
        /// The reason, for the log.
        reason: String,
    },
    /// The connection's queue has space again. The updates of these streams were not sent, and must be sent now.
    LinkWritable {
        /// The connection with the free space.
        link: LinkId,
        unsent: BTreeSet<StreamKey>,
    },
    /// A frame from the master arrived.
    Frame {
        /// The connection of the frame.
        link: LinkId,
        frame: Box<wire::MasterFrame>,
        /// The share of the capacity for waiting frames, held until the core takes the frame.
        charge: Option<Charge>,
    },
    /// A container's task has been executed.
    ContainerStarted {
        container: ContainerId,
        /// The supervisor process of the container.
        supervisor: ProcessIdentity,
        /// The host pid of the task's main process.
        task_pid: i32,
    },
    /// A container could not be launched; nothing is left behind.
    LaunchFailed {
        container: ContainerId,
        cause: String,
    },
    /// A container ended, and its groups are verified empty and removed.
    ContainerEnded {
        container: ContainerId,
        ending: Ending,
    },
    ExecutorSubscribed {
        /// The stream for the executor's events.
        connection: ConnectionId,
        framework: FrameworkId,
        executor: ExecutorId,
        /// The executor's unacknowledged updates and tasks.
        subscribe: Box<executor::call::Subscribe>,
        /// The permit for the bytes of this call.
        permit: Permit,
        /// The permits of its unacknowledged updates; `None` for an update without room.
        permits: Vec<Option<Permit>>,
    },
    /// A stream to an executor ended.
    ExecutorGone { connection: ConnectionId },
    /// A subscribed executor sent the state of a task.
    ExecutorUpdate {
        framework: FrameworkId,
        executor: ExecutorId,
        /// The status from the executor; its uuid was checked.
        status: Box<pb::TaskStatus>,
        /// The permit of the update, held until it is acknowledged.
        permit: Permit,
    },
    /// A subscribed executor sent a message to its scheduler.
    ExecutorMessage {
        framework: FrameworkId,
        executor: ExecutorId,
        data: Vec<u8>,
        /// The permit for the bytes of this call.
        permit: Permit,
    },
    /// The limits of a container were changed, or the change failed.
    Resized {
        container: ContainerId,
        failed: Option<String>,
    },
    /// A container could not be frozen.
    FreezeFailed { container: ContainerId },
    /// A probe of a task has ended.
    Probed {
        /// The container of the probed task.
        container: ContainerId,
        id: ProbeId,
        result: ProbeResult,
    },
    /// The estimator and the controller evaluated a sample.
    Oversubscription(Box<Report>),
    /// The condition of the disk has changed.
    Disk(DiskCondition),
    /// The agent's own process was paused until now: stopped, or without CPU time.
    Paused {
        /// The length of the pause.
        lasted: Duration,
    },
    /// The core got no new inputs until now, because too many writes were waiting for the disk.
    HeldUp {
        /// The length of that time.
        lasted: Duration,
    },
    /// Only time has passed.
    Tick,
    /// The agent must stop.
    Stop {
        /// Whether its tasks end with the agent.
        kill_tasks: bool,
    },
    /// The agent must leave its cluster: its tasks end, then it unregisters and stops.
    Unregister,
}

/// The state found after a start.
#[derive(Debug, Default)]
pub struct Recovery {
    pub image: Image,
    /// Whether the machine was booted since the last run of the agent.
    pub rebooted: bool,
    /// The state of each checkpointed container.
    pub containers: BTreeMap<ContainerId, Found>,
}

/// State of a container found after a restart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// The container runs, and the containerizer watches it.
    Alive(ProcessIdentity),
    /// The container has ended, or its rest is being destroyed; `ContainerEnded` follows.
    Ending,
}

/// The ending of a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// The exit of its main process.
    pub exit: Exit,
    /// The limit that the container had reached.
    pub limitation: Option<Limitation>,
    /// Whether its supervisor had received a kill before; `None` if no record shows that.
    pub kill_requested: Option<bool>,
}

/// The exit of a process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The launch failed before the command was executed.
    LaunchFailed(String),
    /// The agent crashed before anything was begun.
    NeverBegun,
    /// The exit is unknown, for this reason.
    Unknown(String),
}
