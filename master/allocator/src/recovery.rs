//! Recovery after a master's failover: no offers before most agents are back, when there is quota.
//!
//! Entered through [`Allocator::recover`] and [`Allocator::end_recovery`]. Invariant: only agents that were known
//! before the failover count, both as the whole and as the part that is back.

use std::collections::BTreeSet;

use meseta_resources::{AgentId, Moment};

use crate::Allocator;

/// The agents that offers wait for after a failover.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Agents of before the failover that are not back.
    awaited: BTreeSet<AgentId>,
    /// Agents of before the failover that are back.
    returned: BTreeSet<AgentId>,
    /// Part of these agents whose return ends recovery, in hundredths.
    percent: u32,
    deadline: Moment,
}

impl Recovery {
    /// Agents of before the failover that are not back.
    #[must_use]
    pub fn awaited(&self) -> &BTreeSet<AgentId> {
        &self.awaited
    }

    /// The number of agents of before the failover, except those that were removed since.
    #[must_use]
    pub fn known(&self) -> usize {
        self.awaited.len() + self.returned.len()
    }

    /// The number of these agents that are back.
    #[must_use]
    pub fn returned(&self) -> usize {
        self.returned.len()
    }

    /// The number of these agents that have to be back before offers are made: rounded up.
    #[must_use]
    pub fn required(&self) -> usize {
        let percent = usize::try_from(self.percent).unwrap_or(100);
        self.known().saturating_mul(percent).div_ceil(100)
    }

    /// The number of these agents that are still missing for offers to be made.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.required().saturating_sub(self.returned())
    }

    /// The time from which offers are made even if agents are missing.
    #[must_use]
    pub fn deadline(&self) -> Moment {
        self.deadline
    }

    fn is_over(&self, now: Moment) -> bool {
        now >= self.deadline || self.missing() == 0
    }

    /// An agent is there.
    pub(crate) fn agent_added(&mut self, id: &AgentId) {
        if let Some(id) = self.awaited.take(id) {
            self.returned.insert(id);
        }
    }

    /// An agent is away; it may come back.
    pub(crate) fn agent_removed(&mut self, id: &AgentId) {
        if let Some(id) = self.returned.take(id) {
            self.awaited.insert(id);
        }
    }
}

impl Allocator {
    /// Begins recovery: `known` are the agents of before the failover, and quotas have been set again.
    /// Without any quota or any agent there is nothing to wait for.
    pub fn recover(&mut self, now: Moment, known: impl IntoIterator<Item = AgentId>) {
        let (returned, awaited) = known
            .into_iter()
            .partition(|id| self.agent_keys.contains_key(id));
        let recovery = Recovery {
            awaited,
            returned,
            percent: self.options.recovery_percent,
            deadline: now + self.options.recovery_timeout,
        };
        if self.roles.quotas > 0 && !recovery.is_over(now) {
            self.recovery = Some(recovery);
        }
    }

    /// The recovery that holds offers up, if one does.
    #[must_use]
    pub fn recovery(&self) -> Option<&Recovery> {
        self.recovery.as_ref()
    }

    /// Stops waiting for an agent that will not be back.
    pub fn forget_awaited(&mut self, id: &AgentId) {
        if let Some(recovery) = &mut self.recovery {
            recovery.awaited.remove(id);
            recovery.returned.remove(id);
        }
    }

    /// Ends recovery if enough agents are back, its time is over or there is no quota any more. Returns the recovery that
    /// has ended.
    pub fn end_recovery(&mut self, now: Moment) -> Option<Recovery> {
        let quotas = self.roles.quotas;
        let ended = self
            .recovery
            .take_if(|recovery| quotas == 0 || recovery.is_over(now))?;
        self.all_dirty = true;
        Some(ended)
    }

    /// Whether offers are held up by recovery; ends it when it is over.
    pub fn is_paused(&mut self, now: Moment) -> bool {
        self.end_recovery(now);
        self.recovery.is_some()
    }

    /// The recovery that holds offers up at a moment, for readers.
    pub(crate) fn recovery_at(&self, now: Moment) -> Option<&Recovery> {
        let recovery = self.recovery.as_ref()?;
        (self.roles.quotas > 0 && !recovery.is_over(now)).then_some(recovery)
    }
}
