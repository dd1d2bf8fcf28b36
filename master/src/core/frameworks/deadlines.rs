//! Deadlines of disconnected frameworks, across restarts of the master.
//!
//! The master writes a framework's deadline when its stream ends, and removes it when the framework returns or ends.
//! A new master continues the same deadlines: a restart of the master gives nobody more time, except the time that
//! everybody gets to find the new master. Invariant: every deadline here is in the registry, or on its way there.

use std::time::Duration;

use meseta_resources::FrameworkId;

use crate::core::master::MasterCore;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::{DeadlineRecord, Mutation};

impl MasterCore {
    /// The time that a framework reported by agents may still be disconnected: the rest of its own time, but at least
    /// the reregistration timeout of agents.
    pub(in crate::core) fn time_to_return(&self, id: &FrameworkId, own: Duration) -> Duration {
        let left = match self.deadlines.get(id) {
            Some(deadline) => deadline.saturating_sub(self.now.unix),
            None => own,
        };
        left.max(self.config.agent_reregister_timeout)
    }

    /// Records a framework's deadline, unless one is recorded already.
    pub(in crate::core) fn note_deadline(&mut self, id: &FrameworkId, timeout: Duration) {
        if self.deadlines.contains_key(id) || self.outbox.is_busy() {
            return;
        }
        let deadline = self.now.unix.saturating_add(timeout);
        self.deadlines.insert(id.clone(), deadline);
        self.outbox.persist(
            Mutation::PutDeadline(DeadlineRecord {
                framework_id: id.to_string(),
                deadline,
            }),
            Pending::Nothing,
        );
    }

    /// Removes the deadline of a framework that is back, or has ended.
    pub(super) fn clear_deadline(&mut self, id: &FrameworkId) {
        if self.deadlines.remove(id).is_some() {
            let framework_ids = vec![id.to_string()];
            self.outbox.persist(
                Mutation::RemoveDeadlines { framework_ids },
                Pending::Nothing,
            );
        }
    }

    /// Drops expired deadlines of frameworks that no agent reports any more.
    pub(in crate::core) fn forget_old_deadlines(&mut self) {
        let grace = self.config.registry_max_agent_age;
        let now = self.now.unix;
        let old: Vec<FrameworkId> = self
            .deadlines
            .iter()
            .filter(|(id, deadline)| {
                !self.frameworks.contains_key(*id) && deadline.saturating_add(grace) < now
            })
            .map(|(id, _)| id.clone())
            .collect();
        if old.is_empty() || self.outbox.is_busy() {
            return;
        }
        for id in &old {
            self.deadlines.remove(id);
        }
        self.outbox.persist(
            Mutation::RemoveDeadlines {
                framework_ids: old.iter().map(ToString::to_string).collect(),
            },
            Pending::Nothing,
        );
    }
}
