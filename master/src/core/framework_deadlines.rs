//! Deadlines of disconnected frameworks, across restarts of the master.
//!
//! The master writes a framework's deadline when its stream ends, and removes it when the framework returns or ends.
//! A new master continues the same deadlines: a restart of the master gives nobody more time, except the time that
//! everybody gets to find the new master. Invariant: every deadline here is in the registry, or on its way there.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::FrameworkId;

use super::effect::Effects;
use super::state::pending::Pending;
use super::state::persisted::{DeadlineRecord, Mutation};

/// The failover deadlines of disconnected frameworks as stored in the registry, since the Unix epoch.
#[derive(Debug, Default)]
pub(super) struct FrameworkDeadlines {
    deadlines: BTreeMap<FrameworkId, Duration>,
}

impl FrameworkDeadlines {
    /// The deadlines of the registry, without those of invalid framework ids.
    pub(super) fn recovered(records: &[DeadlineRecord]) -> Self {
        let read = |record: &DeadlineRecord| {
            let id = FrameworkId::new(&record.framework_id).ok()?;
            Some((id, record.deadline))
        };
        Self {
            deadlines: records.iter().filter_map(read).collect(),
        }
    }

    /// The frameworks with a deadline.
    pub(super) fn frameworks(&self) -> impl Iterator<Item = &FrameworkId> {
        self.deadlines.keys()
    }

    /// The time that a framework may still be disconnected, if it has a deadline.
    pub(super) fn time_left(&self, id: &FrameworkId, now: Duration) -> Option<Duration> {
        let deadline = self.deadlines.get(id)?;
        Some(deadline.saturating_sub(now))
    }

    /// Records a framework's deadline, unless one is recorded already.
    pub(super) fn note(&mut self, id: &FrameworkId, deadline: Duration, effects: &mut Effects) {
        if self.deadlines.contains_key(id) || effects.is_busy() {
            return;
        }
        self.deadlines.insert(id.clone(), deadline);
        let framework_id = id.to_string();
        let record = DeadlineRecord {
            framework_id,
            deadline,
        };
        effects.persist(Mutation::PutDeadline(record), Pending::Nothing);
    }

    /// Removes the deadline of a framework that is back, or has ended.
    pub(super) fn clear(&mut self, id: &FrameworkId, effects: &mut Effects) {
        if self.deadlines.remove(id).is_some() {
            let framework_ids = vec![id.to_string()];
            let removal = Mutation::RemoveDeadlines { framework_ids };
            effects.persist(removal, Pending::Nothing);
        }
    }

    /// Drops deadlines that have passed `grace` ago, of frameworks that no agent reports any more.
    pub(super) fn drop_old(
        &mut self,
        now: Duration,
        grace: Duration,
        is_known: impl Fn(&FrameworkId) -> bool,
        effects: &mut Effects,
    ) {
        let is_old = |id: &FrameworkId, deadline: &Duration| {
            !is_known(id) && deadline.saturating_add(grace) < now
        };
        let deadlines = self.deadlines.iter();
        let old: Vec<FrameworkId> = deadlines
            .filter(|(id, deadline)| is_old(id, deadline))
            .map(|(id, _)| id.clone())
            .collect();
        if old.is_empty() || effects.is_busy() {
            return;
        }
        for id in &old {
            self.deadlines.remove(id);
        }
        let framework_ids = old.iter().map(ToString::to_string).collect();
        let removal = Mutation::RemoveDeadlines { framework_ids };
        effects.persist(removal, Pending::Nothing);
    }
}
