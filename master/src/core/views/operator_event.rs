//! Events for operators that watch the cluster.

use std::sync::Arc;

use meseta_proto::budget::waiting_bytes;
use meseta_proto::mesos::v1::{FrameworkInfo, TaskState, TaskStatus};
use meseta_resources::{AgentId, FrameworkId};
use prost::Message as _;

use super::snapshot::{AgentView, FrameworkView};
use crate::core::state::task::TaskRecord;

/// The user that a task names, if any; `None` if the task is unknown.
pub type TaskUser = Option<Option<Arc<str>>>;

/// A change of the cluster.
#[derive(Clone, Debug)]
pub enum OperatorEvent {
    TaskAdded(Arc<TaskRecord>),
    TaskUpdated {
        framework_id: FrameworkId,
        status: Box<TaskStatus>,
        state: TaskState,
        task_user: TaskUser,
    },
    AgentAdded(Box<AgentView>),
    AgentRemoved(AgentId),
    FrameworkAdded(Arc<FrameworkView>),
    FrameworkUpdated(Arc<FrameworkView>),
    FrameworkRemoved(Arc<FrameworkInfo>),
}

impl OperatorEvent {
    /// The approximate memory taken by a waiting event.
    pub(crate) fn bytes(&self) -> usize {
        const SMALL: usize = 1_024;
        let parts = match self {
            Self::TaskUpdated { status, .. } => waiting_bytes(&**status),
            Self::AgentAdded(view) => view.profile.info.encoded_len(),
            // Shared with the core's tables.
            Self::TaskAdded(_)
            | Self::AgentRemoved(_)
            | Self::FrameworkAdded(_)
            | Self::FrameworkUpdated(_)
            | Self::FrameworkRemoved(_) => 0,
        };
        parts.saturating_add(SMALL)
    }
}
