//! Messages for many receivers, and the amount that may still be sent before the next allocation tick.
//!
//! One call may concern every agent of a framework, one lost agent every scheduler, and one schedule both. Sent at
//! once, the messages would fill the queues even of peers that read as fast as possible.

use std::collections::{BTreeSet, VecDeque};

use meseta_resources::{AgentId, FrameworkId};

use crate::core::config::Memory;

#[derive(Debug)]
pub(in crate::core) struct PacedMessages {
    /// Agents that have yet to get the infos of these frameworks; the first is the next.
    pub(in crate::core) infos: VecDeque<(FrameworkId, VecDeque<AgentId>)>,
    /// The bytes of infos that may still be sent.
    pub(in crate::core) info_bytes_left: usize,
    /// Lost agents that the schedulers have yet to learn of.
    pub(in crate::core) failures: VecDeque<AgentId>,
    pub(in crate::core) failures_left: usize,
    /// The number of inverse offers that may still be sent.
    pub(in crate::core) inverse_offers_left: usize,
}

impl PacedMessages {
    pub(in crate::core) const fn new(memory: &Memory) -> Self {
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
    pub(in crate::core) fn tell_of(&mut self, id: &FrameworkId, mut agents: BTreeSet<AgentId>) {
        let at = self.infos.iter().position(|(framework, _)| framework == id);
        let Some((_, waiting)) = at.and_then(|at| self.infos.get_mut(at)) else {
            if !agents.is_empty() {
                self.infos
                    .push_back((id.clone(), agents.into_iter().collect()));
            }
            return;
        };
        waiting.retain(|agent| agents.remove(agent));
        waiting.extend(agents);
    }

    /// Takes the bytes of an info, if there is room: the first info of a tick always fits.
    pub(in crate::core) const fn take_info(&mut self, bytes: usize, memory: &Memory) -> bool {
        let is_first = self.info_bytes_left == memory.infos_per_tick;
        let has_room = bytes <= self.info_bytes_left || is_first;
        if has_room {
            self.info_bytes_left = self.info_bytes_left.saturating_sub(bytes);
        }
        has_room
    }

    /// Restores the limits at a tick.
    pub(in crate::core) const fn refill(&mut self, memory: &Memory) {
        self.info_bytes_left = memory.infos_per_tick;
        self.failures_left = memory.failures_per_tick;
        self.inverse_offers_left = memory.inverse_offers_per_tick;
    }

    /// Removes a queued message about a lost agent, so that schedulers do not get it.
    pub(in crate::core) fn cancel_failure(&mut self, agent: &AgentId) {
        self.failures.retain(|lost| lost != agent);
    }
}
