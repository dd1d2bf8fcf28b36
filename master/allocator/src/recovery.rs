//! Recovery after a master's failover: no offers before most agents are back, when there is quota.

use meseta_resources::Moment;

use crate::Allocator;

#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    pub(crate) expected: usize,
    pub(crate) deadline: Moment,
}

impl Allocator {
    /// Begins recovery: `known_agents` were there before the failover, and quotas have been set again.
    /// Without any quota, or when too few agents were known, there is nothing to wait for.
    pub fn recover(&mut self, now: Moment, known_agents: usize) {
        let percent = usize::try_from(self.options.recovery_percent).unwrap_or(100);
        let expected = known_agents.saturating_mul(percent) / 100;
        if self.roles.quotas > 0 && expected > 0 {
            let deadline = now + self.options.recovery_timeout;
            self.recovery = Some(Recovery { expected, deadline });
        }
    }

    /// Whether offers are held up by recovery; ends it when it is over.
    pub fn is_paused(&mut self, now: Moment) -> bool {
        let Some(recovery) = &self.recovery else {
            return false;
        };
        if now >= recovery.deadline || self.agent_keys.len() >= recovery.expected {
            self.recovery = None;
            self.all_dirty = true;
        }
        self.recovery.is_some()
    }

    pub(crate) fn is_recovering(&self, now: Moment) -> bool {
        self.recovery.as_ref().is_some_and(|recovery| {
            now < recovery.deadline && self.agent_keys.len() < recovery.expected
        })
    }
}
