//! Status updates for unknown tasks, which an agent repeats until they are acknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::time::Moment;
use meseta_resources::{FrameworkId, TaskId};

use crate::core::ids::UUID_BYTES;

/// The number of unacknowledged statuses of one framework.
const UNACKNOWLEDGED_MAX: usize = 64;

/// The number of frameworks with such statuses from one agent.
const FRAMEWORKS_MAX: usize = 1_024;

/// The time after which a forwarded update no longer counts, if it is neither acknowledged nor repeated.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The shortest time between repetitions; an earlier one is dropped. Agents wait longer.
const REPEATED: Duration = Duration::from_secs(1);

/// A task, and the uuid of an update.
type UpdateKey = (TaskId, Vec<u8>);

/// The forwarded, unacknowledged updates of one agent, with the times of forwarding.
#[derive(Debug, Default)]
pub(in crate::core) struct UnknownTaskUpdates(BTreeMap<FrameworkId, BTreeMap<UpdateKey, Moment>>);

impl UnknownTaskUpdates {
    /// Whether an update may be forwarded; records it if so.
    pub(in crate::core) fn admits(
        &mut self,
        framework: &FrameworkId,
        key: UpdateKey,
        now: Moment,
    ) -> bool {
        let is_recent = |last: &Moment| now.saturating_since(*last) < REMEMBERED;
        if !self.0.contains_key(framework) && self.0.len() >= FRAMEWORKS_MAX {
            self.0.retain(|_, of| of.values().any(is_recent));
            if self.0.len() >= FRAMEWORKS_MAX {
                return false;
            }
        }
        let of = self.0.entry(framework.clone()).or_default();
        if let Some(last) = of.get_mut(&key) {
            let is_due = now.saturating_since(*last) >= REPEATED;
            if is_due {
                *last = now;
            }
            return is_due;
        }
        if of.len() >= UNACKNOWLEDGED_MAX {
            of.retain(|_, last| is_recent(last));
        }
        let is_admitted = of.len() < UNACKNOWLEDGED_MAX;
        if is_admitted {
            of.insert(key, now);
        }
        is_admitted
    }

    pub(in crate::core) fn acknowledged(
        &mut self,
        framework: &FrameworkId,
        task: &TaskId,
        uuid: &[u8; UUID_BYTES],
    ) {
        let Some(of) = self.0.get_mut(framework) else {
            return;
        };
        of.remove(&(task.clone(), uuid.to_vec()));
        if of.is_empty() {
            self.0.remove(framework);
        }
    }
}
