//! Recovery after a master's failover: with quota, no offers before most agents are back.
//!
//! Entered through [`Allocator::recover`] and [`Allocator::end_recovery`]. Invariant: only agents known before the
//! failover count, both in the total and in the returned part.

use std::collections::BTreeSet;

use meseta_resources::{AgentId, Moment};

use crate::Allocator;

/// The agents that offers wait for after a failover.
#[derive(Clone, Debug)]
pub struct Recovery {
    /// Agents known before the failover that are not back.
    awaited: BTreeSet<AgentId>,
    /// Agents known before the failover that are back.
    returned: BTreeSet<AgentId>,
    /// The percentage of these agents whose return ends recovery.
    percent: u32,
    deadline: Moment,
}

impl Recovery {
    /// Agents known before the failover that are not back.
    #[must_use]
    pub fn awaited(&self) -> &BTreeSet<AgentId> {
        &self.awaited
    }

    /// The number of agents known before the failover, without those removed since.
    #[must_use]
    pub fn known(&self) -> usize {
        self.awaited.len() + self.returned.len()
    }

    /// The number of these agents that are back.
    #[must_use]
    pub fn returned(&self) -> usize {
        self.returned.len()
    }

    /// The number of these agents that have to be back before offers are made, rounded up.
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

    /// Records the return of an agent.
    pub(crate) fn agent_added(&mut self, id: &AgentId) {
        if let Some(id) = self.awaited.take(id) {
            self.returned.insert(id);
        }
    }

    /// Records the absence of an agent, which may come back.
    pub(crate) fn agent_removed(&mut self, id: &AgentId) {
        if let Some(id) = self.returned.take(id) {
            self.awaited.insert(id);
        }
    }
}

impl Allocator {
    /// Begins recovery: `known` are the agents known before the failover, and quotas must be set already. Without any
    /// quota or agent, there is no recovery.
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

    /// The recovery that delays offers, if any.
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

    /// Ends recovery if enough agents are back, its time is over or there is no quota any more. Returns the recovery
    /// that has ended.
    pub fn end_recovery(&mut self, now: Moment) -> Option<Recovery> {
        let quotas = self.roles.quotas;
        let ended = self
            .recovery
            .take_if(|recovery| quotas == 0 || recovery.is_over(now))?;
        self.all_dirty = true;
        Some(ended)
    }

    /// Whether recovery delays offers; ends it when it is over.
    pub fn is_paused(&mut self, now: Moment) -> bool {
        self.end_recovery(now);
        self.recovery.is_some()
    }

    /// The recovery that delays offers at a moment, for readers.
    pub(crate) fn recovery_at(&self, now: Moment) -> Option<&Recovery> {
        let recovery = self.recovery.as_ref()?;
        (self.roles.quotas > 0 && !recovery.is_over(now)).then_some(recovery)
    }
}
