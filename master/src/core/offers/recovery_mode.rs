//! Recovery mode: with quota, offers wait for most of the known agents after a restart.
//!
//! Entered when the master starts, and before each allocation. Invariant: the log records the begin and the end of
//! each recovery mode, with the missing agents.

use meseta_allocator::Recovery;
use meseta_resources::AgentId;

use crate::core::master::MasterCore;

/// The number of agents named in one log line; the line counts the others.
const NAMED_AGENTS_MAX: usize = 20;

impl MasterCore {
    /// Delays offers until most agents of the registry are back, if there is quota.
    pub(in crate::core) fn begin_recovery_mode(&mut self) {
        let known = self.absent_agents.expected();
        let known = known.map(|(id, _)| id.clone());
        self.allocator.recover(self.now.moment, known);
        let Some(recovery) = self.allocator.recovery() else {
            return;
        };
        tracing::info!(
            known = recovery.known(),
            required = recovery.required(),
            timeout_seconds = recovery.deadline().saturating_since(self.now.moment).as_secs(),
            agents = %self.named_agents(recovery),
            "recovery mode begins: there is quota, so offers wait until the required number of known agents is back"
        );
    }

    /// Ends recovery mode when enough agents are back, its time is over or no quota is left.
    pub(super) fn end_recovery_mode(&mut self) {
        let Some(recovery) = self.allocator.end_recovery(self.now.moment) else {
            return;
        };
        self.readers.mark_dirty();
        let (returned, known) = (recovery.returned(), recovery.known());
        let missing = self.named_agents(&recovery);
        if recovery.missing() == 0 {
            tracing::info!(
                returned,
                known,
                %missing,
                "recovery mode ends: enough known agents are back, and offers are made"
            );
        } else if self.now.moment >= recovery.deadline() {
            tracing::warn!(
                returned,
                known,
                required = recovery.required(),
                %missing,
                "recovery mode ends: --allocator_recovery_timeout is over, and offers are made without the missing agents"
            );
        } else {
            tracing::info!(
                returned,
                known,
                %missing,
                "recovery mode ends: no quota is left, and offers are made"
            );
        }
    }

    /// The missing agents with their hosts, as text.
    fn named_agents(&self, recovery: &Recovery) -> String {
        let awaited = recovery.awaited();
        let name = |id: &AgentId| match self.host_of(id) {
            Some(host) => format!("{id} ({})", host.escape_debug()),
            None => id.to_string(),
        };
        let mut named: Vec<String> = awaited.iter().take(NAMED_AGENTS_MAX).map(name).collect();
        let others = awaited.len().saturating_sub(NAMED_AGENTS_MAX);
        if others > 0 {
            named.push(format!("{others} others"));
        }
        named.join(", ")
    }
}
