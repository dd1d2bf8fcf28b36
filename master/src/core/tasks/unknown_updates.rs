//! Bounded forwarding of status updates of tasks that the master does not know.
//!
//! An agent reports tasks that it never received, and retries unacknowledged updates, also to a master that knows
//! nothing of them. An agent that lies must not fill its frameworks' streams in this way. Invariants: such a status
//! takes few bytes; of one agent and framework few of them are unacknowledged.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_proto::mesos::v1::TaskStatus;
use meseta_resources::time::Moment;
use meseta_resources::{AgentId, FrameworkId, TaskId};
use prost::Message;

use crate::core::MasterCore;
use crate::core::state::task::essence;
use crate::core::validation::call::UUID_BYTES;

/// Bytes of a status; of a larger one only what is needed is forwarded.
const STATUS_BYTES_MAX: usize = 4 * 1024;

/// Statuses without acknowledgement, of one framework.
const UNACKNOWLEDGED_MAX: usize = 64;

/// Frameworks of which one agent has such statuses.
const FRAMEWORKS_MAX: usize = 1_024;

/// For how long one counts that is neither acknowledged nor repeated.
const REMEMBERED: Duration = Duration::from_secs(600);

/// One that is repeated sooner is dropped. Agents wait for longer.
const REPEATED: Duration = Duration::from_secs(1);

/// A task, and the uuid of what was said of it.
type UpdateKey = (TaskId, Vec<u8>);

/// What of one agent was forwarded and is not acknowledged, and when.
#[derive(Debug, Default)]
pub(in crate::core) struct UnknownTaskUpdates(BTreeMap<FrameworkId, BTreeMap<UpdateKey, Moment>>);

impl UnknownTaskUpdates {
    /// Whether a status may be forwarded, which then counts.
    fn admits(&mut self, framework: &FrameworkId, key: UpdateKey, now: Moment) -> bool {
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

impl MasterCore {
    /// Shrinks the update of an unknown task. Returns whether it may be forwarded.
    pub(in crate::core) fn admit_unknown_task_update(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
        status: &mut TaskStatus,
    ) -> bool {
        let uuid = status.uuid.clone().unwrap_or_default();
        if status.encoded_len() > STATUS_BYTES_MAX {
            *status = essence(status);
        }
        let now = self.now.moment;
        let Some(agent) = self.agents.get_mut_keeping_view(agent) else {
            return false;
        };
        let is_admitted = agent
            .unknown_task_updates
            .admits(framework, (task.clone(), uuid), now);
        if !is_admitted {
            tracing::debug!(agent_id = %agent.id(), framework_id = %framework, task_id = %task, "status update of an unknown task dropped: too many are unacknowledged");
        }
        is_admitted
    }
}
