//! Messages for many receivers, and the amount that may still be sent before the next allocation tick.
//!
//! One call may concern every agent of a framework, one lost agent every scheduler, and one schedule both. Sent at
//! once, the messages would fill the queues even of peers that read as fast as possible.

use std::collections::{BTreeSet, VecDeque};

use meseta_resources::{AgentId, FrameworkId};

use crate::core::config::Memory;

/// Agents that have yet to get the info of a framework.
#[derive(Debug)]
pub(crate) struct InfoReceivers {
    pub(crate) framework: FrameworkId,
    /// The agents; the first is the next.
    pub(crate) agents: VecDeque<AgentId>,
}

/// The queued messages, and the limits until the next tick.
#[derive(Debug)]
pub(crate) struct PacedMessages {
    /// The frameworks with infos to send; the first is the next.
    infos: VecDeque<InfoReceivers>,
    /// The bytes of infos that may still be sent.
    info_bytes_left: usize,
    /// Lost agents that the schedulers have yet to learn of.
    failures: VecDeque<AgentId>,
    /// The number of failure events that may still be sent.
    failures_left: usize,
    /// The number of inverse offers that may still be sent.
    inverse_offers_left: usize,
}

impl PacedMessages {
    pub(crate) const fn new(memory: &Memory) -> Self {
        Self {
            infos: VecDeque::new(),
            info_bytes_left: memory.infos_per_tick,
            failures: VecDeque::new(),
            failures_left: memory.failures_per_tick,
            inverse_offers_left: memory.inverse_offers_per_tick,
        }
    }

    /// Queues a framework's new info for these agents. Agents that have not received the previous info come first, so
    /// that every agent gets an info in the end, however often it changes.
    pub(crate) fn add_info(&mut self, id: &FrameworkId, mut agents: BTreeSet<AgentId>) {
        let known = self.infos.iter_mut().find(|one| one.framework == *id);
        if let Some(InfoReceivers {
            agents: waiting, ..
        }) = known
        {
            waiting.retain(|agent| agents.remove(agent));
            waiting.extend(agents);
        } else if !agents.is_empty() {
            self.infos.push_back(InfoReceivers {
                framework: id.clone(),
                agents: agents.into_iter().collect(),
            });
        }
    }

    /// The number of frameworks with infos to send.
    pub(crate) fn infos_len(&self) -> usize {
        self.infos.len()
    }

    /// Takes the framework whose turn it is to send its info.
    pub(crate) fn next_info(&mut self) -> Option<InfoReceivers> {
        self.infos.pop_front()
    }

    /// Queues a framework's info for the remaining agents, behind the infos of other frameworks.
    pub(crate) fn put_back_info(&mut self, rest: InfoReceivers) {
        if !rest.agents.is_empty() {
            self.infos.push_back(rest);
        }
    }

    /// Takes the bytes of an info, if there is room: the first info of a tick always fits.
    pub(crate) const fn take_info(&mut self, bytes: usize, memory: &Memory) -> bool {
        let is_first = self.info_bytes_left == memory.infos_per_tick;
        let has_room = bytes <= self.info_bytes_left || is_first;
        if has_room {
            self.info_bytes_left = self.info_bytes_left.saturating_sub(bytes);
        }
        has_room
    }

    /// Queues the failure events of a lost agent.
    pub(crate) fn add_failure(&mut self, agent: AgentId) {
        self.failures.push_back(agent);
    }

    /// Takes the next lost agent, if its failure events for this many schedulers may be sent: those of the first agent
    /// of a tick always may.
    pub(crate) fn take_failure(&mut self, schedulers: usize, memory: &Memory) -> Option<AgentId> {
        let left = self.failures_left;
        if schedulers > left && left < memory.failures_per_tick {
            return None;
        }
        let agent = self.failures.pop_front()?;
        self.failures_left = left.saturating_sub(schedulers);
        Some(agent)
    }

    /// Removes a queued message about a lost agent, so that schedulers do not get it.
    pub(crate) fn cancel_failure(&mut self, agent: &AgentId) {
        self.failures.retain(|lost| lost != agent);
    }

    /// The number of inverse offers that may still be sent.
    pub(crate) const fn inverse_offers_left(&self) -> usize {
        self.inverse_offers_left
    }

    /// Counts sent inverse offers.
    pub(crate) const fn count_inverse_offers(&mut self, sent: usize) {
        self.inverse_offers_left = self.inverse_offers_left.saturating_sub(sent);
    }

    /// Restores the limits at a tick.
    pub(crate) const fn refill(&mut self, memory: &Memory) {
        self.info_bytes_left = memory.infos_per_tick;
        self.failures_left = memory.failures_per_tick;
        self.inverse_offers_left = memory.inverse_offers_per_tick;
    }
}
