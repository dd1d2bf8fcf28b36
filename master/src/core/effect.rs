//! What comes out of the core.
//!
//! The shell carries [`Effect`]s out. It decides nothing: order, content and addressee of every effect are the core's.

use meseta_proto::meseta::v1::MasterFrame;
use meseta_proto::mesos::v1::OperationStatus;
use meseta_proto::mesos::v1::scheduler::Event;

use super::ids::{ConnectionId, Lsn, ReplyId};
use super::operator::watch::OperatorEvent;
use super::state::operation::OperationUuid;
use super::state::persisted::Mutation;

/// One thing for the shell to do.
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
