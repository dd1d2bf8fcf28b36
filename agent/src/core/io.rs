//! What goes into the core and what comes out of it.
//!
//! Everything the agent reacts to is an [`Input`]; everything it does is an [`Effect`]. An effect that
//! others can see waits for the write that it follows ([`Effect::Perform`] after an [`Lsn`]); the service
//! releases those of one [`Destination`] in order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::outbox::QueuedSize;
use meseta_isolators::{Demand, ProcessIdentity};
use meseta_proto::budget::Charge;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor;
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Resources, Role};
use prost::Message as _;

use super::checks::{Probe, ProbeId, ProbeResult};
use super::oversubscription::Report;
use super::recovery::Recovery;
use super::update_streams::StreamKey;
use crate::checkpoint::{RunKey, TaskKey, Write};
use crate::intake::Permit;

/// Which of the connections to a master, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct LinkId(pub u64);

/// Which of the streams to executors, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ConnectionId(pub u64);

/// The place of a write in the order of all writes. Zero is before the first.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Lsn(pub u64);

#[derive(Debug)]
pub enum Input {
    /// The checkpoints were read and the machine was looked at. Comes first, once.
    Recovered(Box<Recovery>),
    /// A connection to a master stands; nothing was said on it.
    LinkUp { link: LinkId },
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
        /// Permit of the intake for this call.
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
        /// Permit of the intake for this call.
        permit: Permit,
    },
    /// A container's limits were changed, or could not be.
    Resized {
        container: ContainerId,
        failed: Option<String>,
    },
    /// A look at a task was taken.
    Probed {
        /// The container that is entered.
        container: ContainerId,
        id: ProbeId,
        result: ProbeResult,
    },
    /// The estimator and the controller looked at a sample.
    Oversubscription(Box<Report>),
    /// The agent's own process stood still until now: stopped, or starved of the processor.
    Paused {
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

/// A limit that ended a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Limitation {
    /// Which, as frameworks are told.
    pub reason: pb::task_status::Reason,
    /// What to say, with the numbers.
    pub message: String,
    /// What was used beyond the limit, as far as it is known.
    pub resources: Vec<pb::Resource>,
}

/// Something is to be done.
#[derive(Debug)]
pub enum Effect {
    Persist {
        /// Its place in the order.
        lsn: Lsn,
        write: Write,
    },
    /// Perform an action once all writes up to `after` are durable.
    Perform {
        /// The last write that must come before.
        after: Lsn,
        /// Whom it goes to; order is kept per destination.
        to: Destination,
        action: Action,
    },
}

/// Whom an action concerns.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Destination {
    /// The connection to the master.
    Master,
    /// The same, for what waits for no disk: connecting, disconnecting, signs of life.
    Liveness,
    Container(ContainerId),
    /// The same, for a kill that cannot wait any longer for what comes before it.
    Overdue(ContainerId),
    /// The executor in this container.
    Executor(ContainerId),
    /// All containers with revocable CPUs together.
    Revocable,
    Agent,
}

/// What is done outside.
#[derive(Debug)]
pub enum Action {
    /// Try to reach the master, once; answered by `LinkUp` or `LinkDown`.
    Connect {
        /// The name of the connection.
        link: LinkId,
    },
    /// Give a connection up; not answered.
    Disconnect { link: LinkId },
    Send {
        /// On this connection; if it is gone, to nobody.
        link: LinkId,
        message: Box<wire::agent_frame::Message>,
    },
    /// Launch a container; answered by `ContainerStarted` and later `ContainerEnded`, or by
    /// `LaunchFailed`.
    Launch(Box<LaunchPlan>),
    /// Give a container other limits; answered by `Resized`.
    Resize {
        container: ContainerId,
        demand: Demand,
        /// What is behind it.
        resources: Resources,
        /// The persistent volumes in it, each as it was asked for.
        volumes: Vec<pb::Resource>,
    },
    /// Look at a task; answered by `Probed`.
    Probe(Box<Probe>),
    /// Say something to an executor.
    Tell {
        /// On this stream; if it is gone, to nobody.
        connection: ConnectionId,
        event: Box<executor::Event>,
    },
    /// End a stream to an executor; not answered.
    HangUp { connection: ConnectionId },
    /// A run is over and nothing refers to it: its sandbox may go in its time.
    Discard { run: Arc<RunKey> },
    /// End a container: a signal, then after the grace SIGKILL. One that has not begun to be
    /// launched is not launched any more, which is answered by `LaunchFailed`.
    Kill {
        container: ContainerId,
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// The grace period is over and the container still exists: destroy it.
    Destroy { container: ContainerId },
    /// Stop all processes of a container where they are, or let them go on.
    Freeze {
        container: ContainerId,
        /// Whether they are to stand still.
        frozen: bool,
    },
    /// Throttle all containers with revocable CPUs together; `None` lifts a limit.
    ThrottleRevocable {
        /// Thousandths of a processor for all of them.
        cpus_millis: Option<u64>,
        /// Memory that they are to be kept below by reclaiming.
        memory_ceiling_bytes: Option<u64>,
    },
    /// The end of a container is durable: what the machine kept of it may go.
    Forget { container: ContainerId },
    /// End the agent's process.
    Exit(ExitReason),
}

impl QueuedSize for Action {
    fn bytes(&self) -> usize {
        /// What an action about a container takes, more or less.
        const SMALL: usize = 1_024;
        match self {
            Self::Send { message, .. } => message.encoded_len().saturating_add(SMALL),
            Self::Tell { event, .. } => event.encoded_len().saturating_add(SMALL),
            Self::Launch(_)
            | Self::Resize { .. }
            | Self::Probe(_)
            | Self::Connect { .. }
            | Self::Disconnect { .. }
            | Self::HangUp { .. }
            | Self::Discard { .. }
            | Self::Kill { .. }
            | Self::Destroy { .. }
            | Self::Freeze { .. }
            | Self::ThrottleRevocable { .. }
            | Self::Forget { .. }
            | Self::Exit(_) => SMALL,
        }
    }
}

/// Why the agent's process ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExitReason {
    /// It was asked to.
    Stopped,
    /// The master asked for it.
    Shutdown(String),
    /// The master will not have it, for good.
    Refused(String),
}

/// What runs in a container.
#[derive(Clone, Debug)]
pub enum Subject {
    /// A command task, alone in its executor's container.
    Task(Arc<pb::TaskInfo>),
    /// A task in a container inside its executor's.
    Nested(Arc<pb::TaskInfo>),
    /// An executor of the framework's own.
    Executor(Arc<pb::ExecutorInfo>),
    /// Nothing but the place in which the tasks of a default executor are.
    Group(Arc<pb::ExecutorInfo>),
}

/// A container, ready to be launched.
#[derive(Clone, Debug)]
pub struct LaunchPlan {
    /// Which run it belongs to.
    pub run: Arc<RunKey>,
    /// Its id; that of the run, or of one nested in it.
    pub container: ContainerId,
    /// What runs in it.
    pub subject: Subject,
    /// Whom it runs as.
    pub user: String,
    /// The role its resources are allocated to.
    pub role: Option<Role>,
    /// Requests and limits of resources.
    pub demand: Demand,
    /// What is behind them.
    pub resources: Resources,
    /// The persistent volumes in them, each as it was asked for: resources do not tell apart how often and
    /// where one is to be seen.
    pub volumes: Vec<pb::Resource>,
    /// Those of the container around it, whose sandbox it may look into.
    pub parent_volumes: Vec<pb::Resource>,
}

impl LaunchPlan {
    pub fn container(&self) -> &ContainerId {
        &self.container
    }

    /// The command, as it was given.
    pub fn command(&self) -> Option<&pb::CommandInfo> {
        match &self.subject {
            Subject::Task(task) | Subject::Nested(task) => task.command.as_ref(),
            Subject::Executor(executor) => executor.command.as_ref(),
            Subject::Group(_) => None,
        }
    }

    /// How the framework wants the container to be.
    pub fn container_info(&self) -> Option<&pb::ContainerInfo> {
        match &self.subject {
            Subject::Task(task) | Subject::Nested(task) => task.container.as_deref(),
            Subject::Executor(executor) | Subject::Group(executor) => executor.container.as_deref(),
        }
    }

    /// The executor, if it is the framework's.
    pub fn executor(&self) -> Option<&pb::ExecutorInfo> {
        match &self.subject {
            Subject::Executor(executor) | Subject::Group(executor) => Some(executor),
            Subject::Task(_) | Subject::Nested(_) => None,
        }
    }
}

/// One task's place in the checkpoints, shared by all that refer to it.
pub type SharedTaskKey = Arc<TaskKey>;
