//! What many are to be told at once, and how much of it may still be said before the next allocation tick.
//!
//! One call may concern every agent of a framework, and one loss every scheduler: said all at once it would fill what waits for
//! peers that read as fast as they can.

use std::collections::{BTreeSet, VecDeque};

use meseta_resources::{AgentId, FrameworkId};

use crate::core::config::Memory;

#[derive(Debug)]
pub(in crate::core) struct PacedMessages {
    /// Agents that are still to hear what these frameworks say of themselves; the first is the next.
    pub(in crate::core) infos: VecDeque<(FrameworkId, BTreeSet<AgentId>)>,
    /// Bytes of that which may still be said.
    pub(in crate::core) info_bytes_left: usize,
    /// Lost agents of which the schedulers are still to hear.
    pub(in crate::core) failures: VecDeque<AgentId>,
    pub(in crate::core) failures_left: usize,
}

impl PacedMessages {
    pub(in crate::core) const fn new(memory: &Memory) -> Self {
        Self {
            infos: VecDeque::new(),
            info_bytes_left: memory.infos_per_tick,
            failures: VecDeque::new(),
            failures_left: memory.failures_per_tick,
        }
    }

    /// A tick has come.
    pub(in crate::core) const fn refill(&mut self, memory: &Memory) {
        self.info_bytes_left = memory.infos_per_tick;
        self.failures_left = memory.failures_per_tick;
    }

    /// Whether schedulers are still to hear that this agent is lost; then they are not told so.
    pub(in crate::core) fn cancel_failure(&mut self, agent: &AgentId) {
        self.failures.retain(|lost| lost != agent);
    }
}
