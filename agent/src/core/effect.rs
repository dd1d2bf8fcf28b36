//! The effects of the agent's core.
//!
//! An effect that others can observe waits for the write that it follows ([`Effect::Output`] after an [`Lsn`]); the
//! service releases the effects for one [`Destination`] in order.

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

/// An effect of a step of the core.
#[derive(Debug)]
pub enum Effect {
    Persist {
        /// The position in the order of writes.
        lsn: Lsn,
        write: Write,
    },
    /// Carry out this output once all writes up to `after` are durable.
    Output {
        /// The last write that must precede the output.
        after: Lsn,
        /// The destination, within which the order is kept.
        to: Destination,
        output: Output,
    },
}

/// The destination of an output.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Destination {
    /// The connection to the master.
    Master,
    /// The connection to the master, for outputs that wait for no disk: connecting, disconnecting, heartbeats.
    Liveness,
    Container(ContainerId),
    /// The connection for a kill that can no longer wait for the earlier outputs.
    Overdue(ContainerId),
    /// The executor in this container.
    Executor(ContainerId),
    /// All containers with revocable CPUs together.
    Revocable,
    Agent,
}

/// The outputs of the core, by the component that carries them out.
#[derive(Debug)]
pub enum Output {
    /// An action of the link to the master.
    Link(LinkAction),
    /// An action of the streams to executors.
    Executor(ExecutorAction),
    /// An action of the containerizer on a container.
    Container(ContainerAction),
    /// A run is over and nothing refers to it: its sandbox may be removed later.
    DiscardSandbox { run: Arc<RunKey> },
    /// End the agent's process.
    Exit(ExitReason),
}

/// The actions of the link to the master.
#[derive(Debug)]
pub enum LinkAction {
    /// Try to reach the master, once; answered by `LinkUp` or `LinkDown`.
    Connect {
        /// The id of the new connection.
        link: LinkId,
    },
    /// Give a connection up; not answered.
    Disconnect { link: LinkId },
    Send {
        /// The connection. If it is gone, the frame is dropped.
        link: LinkId,
        message: Box<wire::agent_frame::Message>,
    },
}

/// The actions of a stream to an executor.
#[derive(Debug)]
pub enum ExecutorAction {
    /// Send an event to an executor.
    Send {
        /// The stream. If it is gone, the event is dropped.
        connection: ConnectionId,
        event: Box<executor::Event>,
    },
    /// End a stream after sending its queued events; not answered.
    Finish { connection: ConnectionId },
}

/// The actions of the containerizer.
#[derive(Debug)]
pub enum ContainerAction {
    /// Launch a container; answered by `ContainerStarted` and later `ContainerEnded`, or by
    /// `LaunchFailed`.
    Launch(Box<LaunchPlan>),
    /// Change the limits of a container; answered by `Resized`.
    Resize {
        container: ContainerId,
        demand: Demand,
        /// The resources behind the demand.
        resources: Resources,
        /// The persistent volumes of the container, as requested.
        volumes: Vec<pb::Resource>,
    },
    /// Probe a task; answered by `Probed`.
    Probe(Box<Probe>),
    /// End a container: SIGTERM, then after the grace period SIGKILL. A queued launch is cancelled and answered by
    /// `LaunchFailed`.
    Kill {
        container: ContainerId,
        /// Time between SIGTERM and SIGKILL.
        grace: Duration,
    },
    /// The grace period is over and the container still exists: destroy it.
    Destroy { container: ContainerId },
    /// Freeze or thaw all processes of a container.
    Freeze {
        container: ContainerId,
        /// Whether the processes are to be frozen.
        frozen: bool,
    },
    /// Throttle all containers with revocable CPUs together; `None` removes a limit.
    ThrottleRevocable {
        /// Thousandths of a processor for all of them.
        cpus_millis: Option<u64>,
        /// The memory ceiling, enforced by reclaiming.
        memory_ceiling_bytes: Option<u64>,
    },
    /// The end of a container is durable: the machine's records of the container may be removed.
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
    /// Whether the output is a message between a framework and its executor, whose delivery is not guaranteed.
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
        /// The approximate memory of an action on a container.
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

/// The reason for the end of the agent's process.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ExitReason {
    /// The agent was asked to stop.
    Stopped,
    /// The agent was asked to leave its cluster, and has notified the master.
    Unregistered,
    /// The master requested the shutdown.
    Shutdown(String),
    /// The master refused the agent permanently.
    Refused(String),
}
