//! What goes into the core and what comes out of it.
//!
//! The shell turns requests, frames and results into [`Input`]s and carries [`Effect`]s out. It
//! decides nothing: order, content and addressee of every effect are the core's.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use meseta_access::Approver;
use meseta_daemon::authentication::Caller;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame};
use meseta_proto::mesos::v1::OperationStatus;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::scheduler::Event;

use super::call::{Action, Subscribe};
use super::operation::OperationUuid;
use super::operator::Request;
use super::persisted::Mutation;
use super::watch::OperatorEvent;

/// A connection that the shell numbered; never used twice in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// A request that waits for the core's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyId(pub u64);

/// The place of a mutation in the order of the registry's writes; starts at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

#[derive(Debug)]
pub enum Input {
    /// A deadline of [`super::MasterCore::next_deadline`] has come, or nothing at all.
    Tick,
    /// All mutations up to and with this one are durable.
    Persisted { lsn: Lsn },
    /// A scheduler opened a stream; its events go to `connection`.
    Subscribe {
        connection: ConnectionId,
        stream_id: String,
        call: Box<Subscribe>,
        caller: Caller,
    },
    /// Any other call of a scheduler, checked in itself ([`super::call`]).
    Call {
        reply: ReplyId,
        framework_id: String,
        stream_id: Option<String>,
        action: Box<Action>,
        caller: Caller,
    },
    /// A scheduler's stream has ended, whoever ended it.
    SchedulerGone { connection: ConnectionId },
    /// A scheduler has read so many answers to its questions about tasks.
    AnswersRead {
        connection: ConnectionId,
        answers: usize,
    },
    /// A frame of an agent; the first one on a connection introduces it.
    AgentFrame {
        connection: ConnectionId,
        message: Box<agent_frame::Message>,
    },
    /// An agent's stream has ended, whoever ended it.
    AgentGone { connection: ConnectionId },
    /// An operator's change of quota, weights, maintenance or an agent's state.
    Administer {
        reply: ReplyId,
        request: Box<Request>,
        /// What the operator may do, where that is asked after the request was understood.
        approver: Approver,
    },
    /// Only agents on these hosts are to be offered.
    Whitelist {
        hosts: Option<Arc<BTreeSet<Arc<str>>>>,
    },
    /// An operator removes a framework.
    Teardown {
        reply: ReplyId,
        framework_id: String,
    },
    /// An operator reserves, unreserves, or makes, destroys or resizes volumes.
    Operate {
        reply: ReplyId,
        agent_id: String,
        operation: Box<Operation>,
        /// Who asks, if that is known.
        principal: Option<String>,
    },
}

#[derive(Debug)]
pub enum Effect {
    /// Write to the registry; [`Input::Persisted`] answers. Lsns are consecutive.
    Persist { lsn: Lsn, mutation: Mutation },
    /// Send this once everything up to `after` is durable; in order per destination.
    Output { after: Lsn, output: Output },
}

/// What leaves the core.
#[derive(Debug)]
pub enum Output {
    Event {
        to: ConnectionId,
        event: Box<Event>,
    },
    CloseScheduler {
        connection: ConnectionId,
        reason: &'static str,
    },
    Frame {
        to: ConnectionId,
        frame: Box<MasterFrame>,
    },
    CloseAgent {
        connection: ConnectionId,
        reason: &'static str,
    },
    Reply {
        reply: ReplyId,
        answer: Answer,
    },
    /// An operator's operation has ended.
    OperationFinished {
        uuid: OperationUuid,
        status: Box<OperationStatus>,
    },
    /// For all operators who watch.
    OperatorEvent(Box<OperatorEvent>),
}

/// The answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Taken; the effects come later.
    Accepted,
    /// An operation was taken: it has this name, and ends later.
    Applied(OperationUuid),
    Done,
    /// Done, with what the operator should know of it.
    Warned(String),
    /// Understood and refused; nothing has changed.
    BadRequest(String),
    /// The framework may not make this call now.
    Forbidden(String),
    /// What it is about is not known here.
    NotFound(String),
    /// Understood, and at odds with how things are now.
    Conflict(String),
    /// Not now; the same may be asked again.
    Unavailable(String),
    /// A call that this master does not serve.
    NotImplemented(String),
}

impl Answer {
    /// What came of it, for the audit log.
    #[must_use]
    pub fn outcome(&self) -> &str {
        match self {
            Self::Accepted | Self::Applied(_) => "accepted",
            Self::Done => "done",
            Self::Warned(reason)
            | Self::BadRequest(reason)
            | Self::Forbidden(reason)
            | Self::NotFound(reason)
            | Self::Conflict(reason)
            | Self::Unavailable(reason)
            | Self::NotImplemented(reason) => reason,
        }
    }
}

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
