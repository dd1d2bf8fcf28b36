//! The effects that the core returns.
//!
//! The shell carries [`Effect`]s out. The shell decides nothing: the core determines order, content and receiver of
//! every effect.

use std::sync::Arc;

use meseta_proto::meseta::v1::MasterFrame;
use meseta_proto::mesos::v1::OperationStatus;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::scheduler::Event;

use super::answer::Answer;
use super::ids::{ConnectionId, Lsn, OperationUuid, ReplyId};
use super::state::persisted::Mutation;
use super::views::operator_event::OperatorEvent;

/// An action for the shell.
#[derive(Debug)]
pub enum Effect {
    /// Writes to the registry; [`Input::Persisted`] reports completion. Lsns are consecutive.
    Persist { lsn: Lsn, mutation: Mutation },
    /// Sends the output once everything up to `after` is durable; in order per destination.
    Output { after: Lsn, output: Output },
}

/// A message that leaves the core.
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
    /// An operator's operation was accepted.
    OperationTaken {
        uuid: OperationUuid,
        /// The principal that requested the operation.
        principal: Option<String>,
        operation: Arc<Operation>,
    },
    /// An operator's operation has ended.
    OperationFinished {
        uuid: OperationUuid,
        operation: Arc<Operation>,
        status: Box<OperationStatus>,
    },
    /// An event for all operators that watch.
    OperatorEvent(Box<OperatorEvent>),
}
