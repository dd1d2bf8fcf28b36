//! Everything that the agent does.
//!
//! An effect that others can see waits for the write that it follows ([`Effect::Output`] after an [`Lsn`]); the
//! service releases those of one [`Destination`] in order.

use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::outbox::QueuedSize;
use meseta_isolators::Demand;
use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor;
use meseta_resources::{ContainerId, Resources};
use prost::Message as _;

use super::ids::{ConnectionId, LinkId};
use super::launch_plan::LaunchPlan;
use super::probe::Probe;
use crate::checkpoint::{Lsn, RunKey, Write};

/// Something is to be done.
#[derive(Debug)]
pub enum Effect {
    Persist {
        /// Its place in the order.
        lsn: Lsn,
        write: Write,
    },
    /// Carry this out once all writes up to `after` are durable.
    Output {
        /// The last write that must come before.
        after: Lsn,
        /// Whom it concerns; order is kept per destination.
        to: Destination,
        output: Output,
    },
}

/// Whom an output concerns.
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

/// What leaves the core, by what carries it out.
#[derive(Debug)]
pub enum Output {
    /// Done by the link to the master.
    Link(LinkAction),
    /// Done by the streams to executors.
    Executor(ExecutorAction),
    /// Done by the containerizer, to a container.
    Container(ContainerAction),
    /// A run is over and nothing refers to it: its sandbox may go in its time.
    DiscardSandbox { run: Arc<RunKey> },
    /// End the agent's process.
    Exit(ExitReason),
}

/// What the link to the master is to do.
#[derive(Debug)]
pub enum LinkAction {
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
}

/// What a stream to an executor is to do.
#[derive(Debug)]
pub enum ExecutorAction {
    /// Send an event to an executor.
    Send {
        /// On this stream; if it is gone, to nobody.
        connection: ConnectionId,
        event: Box<executor::Event>,
    },
    /// End a stream after what was sent on it; not answered.
    Finish { connection: ConnectionId },
}

/// What the containerizer is to do.
#[derive(Debug)]
pub enum ContainerAction {
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
}

impl From<LinkAction> for Output {
    fn from(action: LinkAction) -> Self {
        Self::Link(action)
    }
}

impl From<ExecutorAction> for Output {
    fn from(action: ExecutorAction) -> Self {
        Self::Executor(action)
    }
}

impl From<ContainerAction> for Output {
    fn from(action: ContainerAction) -> Self {
        Self::Container(action)
    }
}

impl Output {
    /// Whether it is a message between a framework and its executor; nobody is promised that one arrives.
    pub(crate) fn is_message(&self) -> bool {
        match self {
            Self::Link(LinkAction::Send { message, .. }) => {
                matches!(**message, wire::agent_frame::Message::ExecutorMessage(_))
            }
            Self::Executor(ExecutorAction::Send { event, .. }) => event.message.is_some(),
            Self::Link(LinkAction::Connect { .. } | LinkAction::Disconnect { .. })
            | Self::Executor(ExecutorAction::Finish { .. })
            | Self::Container(_)
            | Self::DiscardSandbox { .. }
            | Self::Exit(_) => false,
        }
    }
}

impl QueuedSize for Output {
    fn bytes(&self) -> usize {
        /// What an action about a container takes, more or less.
        const SMALL: usize = 1_024;
        match self {
            Self::Link(LinkAction::Send { message, .. }) => {
                message.encoded_len().saturating_add(SMALL)
            }
            Self::Executor(ExecutorAction::Send { event, .. }) => {
                event.encoded_len().saturating_add(SMALL)
            }
            Self::Link(LinkAction::Connect { .. } | LinkAction::Disconnect { .. })
            | Self::Executor(ExecutorAction::Finish { .. })
            | Self::Container(_)
            | Self::DiscardSandbox { .. }
            | Self::Exit(_) => SMALL,
        }
    }
}

/// Why the agent's process ends.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExitReason {
    /// It was asked to.
    Stopped,
    /// It was asked to leave its cluster, and has told the master.
    Unregistered,
    /// The master asked for it.
    Shutdown(String),
    /// The master will not have it, for good.
    Refused(String),
}
