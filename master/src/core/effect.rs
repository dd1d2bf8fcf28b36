//! The effects that the core returns, and the actions that wait for a durable mutation.
//!
//! The shell carries [`Effect`]s out. The shell decides nothing: the core determines order, content and receiver of
//! every effect. [`Effects`] marks each output with the mutation that must be durable before the output leaves.
//! Invariant: the waiting actions become due in the order of their mutations.

use std::collections::VecDeque;
use std::sync::Arc;

use meseta_proto::meseta::v1::MasterFrame;
use meseta_proto::mesos::v1::OperationStatus;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::scheduler::Event;
use meseta_resources::AgentId;

use super::answer::Answer;
use super::config::PENDING_MUTATIONS_MAX;
use super::ids::{ConnectionId, Lsn, OperationUuid, ReplyId};
use super::state::agent::AgentProfile;
use super::state::pending::Pending;
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

/// The effects of the current step, and the mutations that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Effects {
    emitted: Vec<Effect>,
    waiting: VecDeque<(Lsn, Pending)>,
    /// The last mutation sent to the registry.
    last: Lsn,
    /// The last durable mutation.
    durable: Lsn,
}

impl Effects {
    /// Sends a mutation to the registry; `then` becomes due when the mutation is durable.
    pub(super) fn persist(&mut self, mutation: Mutation, then: Pending) {
        let lsn = Lsn(self.last.0 + 1);
        self.last = lsn;
        self.waiting.push_back((lsn, then));
        self.emitted.push(Effect::Persist { lsn, mutation });
    }

    /// Emits an output. It may leave once the mutations behind this decision are durable.
    pub(super) fn emit(&mut self, output: Output) {
        self.emitted.push(Effect::Output {
            after: self.durable,
            output,
        });
    }

    /// Records that all mutations up to this one are durable.
    pub(super) fn confirm(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
    }

    /// Takes the next action that waited for a mutation durable by now.
    pub(super) fn take_due(&mut self) -> Option<Pending> {
        let is_due = |(lsn, _): &mut (Lsn, Pending)| *lsn <= self.durable;
        self.waiting.pop_front_if(is_due).map(|(_, then)| then)
    }

    /// Whether the registry has to store so many mutations that further ones are refused or put off.
    pub(super) fn is_busy(&self) -> bool {
        self.room() == 0
    }

    /// The number of mutations that may still be sent to the registry.
    pub(super) fn room(&self) -> usize {
        PENDING_MUTATIONS_MAX.saturating_sub(self.waiting.len())
    }

    /// The number of mutations that are not durable yet.
    pub(super) fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// The actions that wait, in the order of their mutations.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Pending> {
        self.waiting.iter().map(|(_, pending)| pending)
    }

    /// The agents that wait for admission.
    pub(super) fn newcomers(&self) -> impl Iterator<Item = &AgentProfile> {
        self.waiting().filter_map(Pending::newcomer)
    }

    /// Whether the registry is about to drop an agent with its deactivation.
    pub(super) fn removes(&self, agent: &AgentId) -> bool {
        self.waiting().any(|pending| pending.removes(agent))
    }

    /// The effects of the current step so far.
    pub(super) fn emitted(&self) -> &[Effect] {
        &self.emitted
    }

    /// Takes the effects at the end of the step.
    pub(super) fn take_emitted(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.emitted)
    }
}
