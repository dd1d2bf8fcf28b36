//! Limited forwarding of status updates for unknown tasks.
//!
//! An agent may report tasks that it never received, and repeats unacknowledged updates even to a master without a
//! record of the task. An agent with false reports must not fill the streams of frameworks. Invariants: such a status
//! takes few bytes; few statuses of one agent and framework are unacknowledged.

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
