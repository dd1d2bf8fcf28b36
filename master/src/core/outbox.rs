//! The effects of a step, and the actions that wait for a durable mutation.
//!
//! Each output is marked with the mutation that must be durable before the output leaves. Invariant: the actions
//! become due in the order of their mutations.

use std::collections::VecDeque;

use meseta_resources::AgentId;

use super::config::PENDING_MUTATIONS_MAX;
use super::effect::{Effect, Output};
use super::ids::Lsn;
use super::state::agent::AgentProfile;
use super::state::pending::Pending;
use super::state::persisted::Mutation;

/// The effects of the current step, and the mutations that are not durable yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    effects: Vec<Effect>,
    waiting: VecDeque<(Lsn, Pending)>,
    /// The last mutation sent to the registry.
    last: Lsn,
    /// The last durable mutation.
    durable: Lsn,
}

impl Outbox {
    /// Sends a mutation to the registry; `then` becomes due when the mutation is durable.
    pub(super) fn persist(&mut self, mutation: Mutation, then: Pending) {
        let lsn = Lsn(self.last.0 + 1);
        self.last = lsn;
        self.waiting.push_back((lsn, then));
        self.effects.push(Effect::Persist { lsn, mutation });
    }

    /// Emits an output. It may leave once the mutations behind this decision are durable.
    pub(super) fn emit(&mut self, output: Output) {
        self.effects.push(Effect::Output {
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

    pub(super) fn effects(&self) -> &[Effect] {
        &self.effects
    }

    /// Takes the effects at the end of the step.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}
