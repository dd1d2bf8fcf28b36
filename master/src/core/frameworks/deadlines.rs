//! Until when frameworks that are away may be so, across restarts of the master.
//!
//! A framework's deadline is written when its stream ends and removed when it is back or ended. A new
//! master goes on counting: nobody gains time by the master's restart but what everybody is given
//! to find the new one. Invariant: what is noted here is in the registry, or on its way there.

use std::time::Duration;

use meseta_resources::FrameworkId;

use crate::core::config::PENDING_MUTATIONS_MAX;
use crate::core::master::MasterCore;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::{DeadlineRecord, Mutation};

impl MasterCore {
    /// How long a framework that agents tell of may still be away: what is left of its own time, but at
    /// least as long as agents are given.
    pub(in crate::core) fn time_to_return(&self, id: &FrameworkId, own: Duration) -> Duration {
        let left = match self.deadlines.get(id) {
            Some(deadline) => deadline.saturating_sub(self.now.unix),
            None => own,
        };
        left.max(self.config.agent_reregister_timeout)
    }

    /// Notes that a framework has this long to come back, unless it is noted already.
    pub(in crate::core) fn note_deadline(&mut self, id: &FrameworkId, timeout: Duration) {
        if self.deadlines.contains_key(id) || self.pending.len() >= PENDING_MUTATIONS_MAX {
            return;
        }
        let deadline = self.now.unix.saturating_add(timeout);
        self.deadlines.insert(id.clone(), deadline);
        self.persist(
            Mutation::PutDeadline(DeadlineRecord {
                framework_id: id.to_string(),
                deadline,
            }),
            Pending::Nothing,
        );
    }

    /// The framework is back, or has ended.
    pub(super) fn clear_deadline(&mut self, id: &FrameworkId) {
        if self.deadlines.remove(id).is_some() {
            let framework_ids = vec![id.to_string()];
            self.persist(
                Mutation::RemoveDeadlines { framework_ids },
                Pending::Nothing,
            );
        }
    }

    /// Drops deadlines that have passed of frameworks that no agent tells of any more.
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
        if old.is_empty() || self.pending.len() >= PENDING_MUTATIONS_MAX {
            return;
        }
        for id in &old {
            self.deadlines.remove(id);
        }
        self.persist(
            Mutation::RemoveDeadlines {
                framework_ids: old.iter().map(ToString::to_string).collect(),
            },
            Pending::Nothing,
        );
    }
}
