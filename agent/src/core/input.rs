//! Everything that the agent reacts to.

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
    /// The checkpoints were read and the machine was looked at. Comes first, once.
    Recovered(Box<Recovery>),
    /// A master that leads has taken a connection; nothing was sent on it.
    LinkUp {
        link: LinkId,
        /// With what it leads; older masters do not tell.
        led: Option<LedEpoch>,
    },
    /// A connection failed or ended.
    LinkDown {
        link: LinkId,
        /// Why, for the log.
        reason: String,
    },
    /// The connection's queue has space again: the updates of these streams were not sent and are to be sent now.
    LinkWritable {
        /// The connection that it concerns.
        link: LinkId,
        unsent: BTreeSet<StreamKey>,
    },
    /// The master said something.
    Frame {
        /// The connection that it concerns.
        link: LinkId,
        frame: Box<wire::MasterFrame>,
        /// What it takes of the room for frames that wait, until it is taken.
        charge: Option<Charge>,
    },
    /// A container's task has been executed.
    ContainerStarted {
        container: ContainerId,
        /// The supervisor process of the container.
        supervisor: ProcessIdentity,
        /// The task's main process.
        task_pid: i32,
    },
    /// A container could not be launched; nothing is left of it.
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
        /// The stream that its events go to.
        connection: ConnectionId,
        framework: FrameworkId,
        executor: ExecutorId,
        /// What it has not seen acknowledged.
        subscribe: Box<executor::call::Subscribe>,
        /// Permit for the bytes of this call.
        permit: Permit,
        /// What each of its unacknowledged updates takes of the room for those; none where there is too little.
        permits: Vec<Option<Permit>>,
    },
    /// A stream to an executor ended.
    ExecutorGone { connection: ConnectionId },
    /// A subscribed executor told the state of a task.
    ExecutorUpdate {
        framework: FrameworkId,
        executor: ExecutorId,
        /// What it told; its uuid was checked.
        status: Box<pb::TaskStatus>,
        /// What the update takes of the room for those that are not acknowledged.
        permit: Permit,
    },
    /// A subscribed executor has something for its scheduler.
    ExecutorMessage {
        framework: FrameworkId,
        executor: ExecutorId,
        data: Vec<u8>,
        /// Permit for the bytes of this call.
        permit: Permit,
    },
    /// A container's limits were changed, or could not be.
    Resized {
        container: ContainerId,
        failed: Option<String>,
    },
    /// A container was to stand still, and could not be made to.
    FreezeFailed { container: ContainerId },
    /// A look at a task was taken.
    Probed {
        /// The container that is entered.
        container: ContainerId,
        id: ProbeId,
        result: ProbeResult,
    },
    /// The estimator and the controller looked at a sample.
    Oversubscription(Box<Report>),
    /// Whether checkpoints can be written has changed.
    Disk(DiskCondition),
    /// The agent's own process stood still until now: stopped, or starved of the processor.
    Paused {
        /// The time that it lasted.
        lasted: Duration,
    },
    /// The core was told nothing new until now, because too much waits for the disk.
    HeldUp {
        /// The time that it lasted.
        lasted: Duration,
    },
    /// Only time has passed.
    Tick,
    /// The agent is asked to end.
    Stop {
        /// Whether its tasks end with it.
        kill_tasks: bool,
    },
    /// The agent is asked to leave its cluster: its tasks end, then it unregisters and ends.
    Unregister,
}

/// What was found after a start.
#[derive(Debug, Default)]
pub struct Recovery {
    pub image: Image,
    /// Whether the machine was booted since.
    pub rebooted: bool,
    /// What became of each checkpointed container.
    pub containers: BTreeMap<ContainerId, Found>,
}

/// State of a container found after a restart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// It runs, and the containerizer watches it.
    Alive(ProcessIdentity),
    /// It ended, or what is left of it is being destroyed; `ContainerEnded` follows.
    Ending,
}

/// How a container ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Ending {
    /// Of its main process.
    pub exit: Exit,
    /// A limit that it had run into.
    pub limitation: Option<Limitation>,
    /// Whether its supervisor had been asked to end it before; `None` where nobody recorded that.
    pub kill_requested: Option<bool>,
}

/// How a process ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// It never came to run its command.
    LaunchFailed(String),
    /// The agent fell before anything of it was begun.
    NeverBegun,
    /// Nobody saw it; why not.
    Unknown(String),
}
