//! Bounded forwarding of status updates of tasks that the master does not know.
//!
//! An agent reports tasks that it never received, and retries unacknowledged updates, also to a master that knows
//! nothing of them. An agent that lies must not fill its frameworks' streams in this way. Invariants: such a status
//! takes few bytes; of one agent and framework few of them are unacknowledged.

use meseta_proto::mesos::v1::TaskStatus;
use meseta_resources::{AgentId, FrameworkId, TaskId};
use prost::Message;

use crate::core::master::MasterCore;
use crate::core::state::task::essence;

/// The largest status in bytes forwarded whole; a larger one is reduced to its essential fields.
const STATUS_BYTES_MAX: usize = 4 * 1024;

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
