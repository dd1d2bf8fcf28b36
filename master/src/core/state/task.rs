//! The master's records of tasks and executors.
//!
//! A task's description stays encoded: only views decode it. Snapshots share the tables, which are copied on write.
//! Invariant: a terminal state is final.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use meseta_proto::meseta::v1::{ReportedStatus, ReportedTask};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::{AgentId, ExecutorId, FrameworkId, Resources, Role, TaskId};
use prost::Message;

use crate::core::ids::UUID_BYTES;

/// The number of stored statuses per task. Mesos stores one per run of equal states; a task that alternates between
/// healthy and unhealthy forever keeps the newest.
const STATUSES_PER_TASK_MAX: usize = 32;

/// The largest status in bytes that is stored whole; a larger status is reduced to its essential fields.
const STATUS_BYTES_MAX: usize = 64 * 1024;

/// The tasks of one agent.
pub type TaskTable = Arc<BTreeMap<(FrameworkId, TaskId), Arc<TaskRecord>>>;

#[derive(Clone, Debug)]
pub struct TaskRecord {
    pub task_id: TaskId,
    pub framework_id: FrameworkId,
    pub agent_id: AgentId,
    /// Whether this master launched the task on the agent; otherwise only the agent reports it.
    pub is_launched: bool,
    /// The executor; `None` for command tasks.
    pub executor_id: Option<ExecutorId>,
    pub role: Role,
    /// The resources, with the allocation role set.
    pub resources: Resources,
    /// The newest state from the agent.
    pub state: TaskState,
    /// The state of the last forwarded update; below, that update's uuid.
    pub update_state: Option<TaskState>,
    pub update_uuid: Option<Vec<u8>>,
    pub statuses: Vec<StatusRecord>,
    /// The user named in the task itself.
    pub user: Option<Arc<str>>,
    /// Whether the task shares the cgroups of its executor.
    pub shares_groups: bool,
    /// An encoded `mesos.v1.Task` without the fields above.
    pub description: Bytes,
    /// The time since the Unix epoch from which the agent is unreachable; `None` otherwise.
    pub unreachable_since: Option<std::time::Duration>,
}

/// A status in a task's history.
#[derive(Clone, Debug)]
pub struct StatusRecord {
    pub state: TaskState,
    /// An encoded `mesos.v1.TaskStatus` without its `data`.
    pub encoded: Bytes,
}

impl TaskRecord {
    /// The approximate memory taken by the record.
    #[must_use]
    pub(in crate::core) fn bytes(&self) -> usize {
        let statuses = self.statuses.iter().map(|status| status.encoded.len());
        size_of::<Self>() + self.description.len() + statuses.sum::<usize>()
    }

    /// The executor of the task; `None` for a command task.
    pub(in crate::core) fn executor(&self) -> Option<(FrameworkId, ExecutorId)> {
        let executor = self.executor_id.clone()?;
        Some((self.framework_id.clone(), executor))
    }

    /// The executor whose cgroups the task does not share.
    pub(super) fn apart_of(&self) -> Option<(FrameworkId, ExecutorId)> {
        self.executor().filter(|_| !self.shares_groups)
    }

    /// The state for reconciliation and history.
    #[must_use]
    pub fn reported_state(&self) -> TaskState {
        self.update_state.unwrap_or(self.state)
    }

    /// The newest status, which reconciliation repeats.
    #[must_use]
    pub fn latest_status(&self) -> Option<TaskStatus> {
        let last = self.statuses.last()?;
        TaskStatus::decode(last.encoded.clone()).ok()
    }

    /// Records a forwarded status. The newest of a run of equal states replaces the others.
    pub(in crate::core) fn push_status(&mut self, status: &TaskStatus) {
        let Some(state) = state_of(status) else {
            return;
        };
        let encoded = if status.data.is_none() && status.encoded_len() <= STATUS_BYTES_MAX {
            status.encode_to_vec()
        } else {
            self.reduced(status).encode_to_vec()
        };
        self.push_encoded(state, encoded);
    }

    /// Records an encoded status like [`Self::push_status`]. Nearly all are stored without decoding them fully:
    /// returning agents send very many.
    pub(in crate::core) fn push_reported_status(&mut self, encoded: Vec<u8>) {
        let Ok(outline) = ReportedStatus::decode(encoded.as_slice()) else {
            return;
        };
        match TaskState::try_from(outline.state) {
            Ok(state) if outline.data.is_none() && encoded.len() <= STATUS_BYTES_MAX => {
                self.push_encoded(state, encoded);
            }
            _ => {
                if let Ok(status) = TaskStatus::decode(encoded.as_slice()) {
                    self.push_status(&status);
                }
            }
        }
    }

    fn push_encoded(&mut self, state: TaskState, encoded: Vec<u8>) {
        let record = StatusRecord {
            state,
            encoded: encoded.into(),
        };
        match self.statuses.last_mut() {
            Some(last) if last.state == state => *last = record,
            _ => {
                // Exact growth, because there are very many tasks with two or three statuses each.
                self.statuses.reserve_exact(1);
                self.statuses.push(record);
            }
        }
        if self.statuses.len() > STATUSES_PER_TASK_MAX {
            self.statuses.remove(0);
        }
    }

    /// The status without its data, or only its essential fields if that is still too large.
    fn reduced(&self, status: &TaskStatus) -> TaskStatus {
        let mut kept = status.clone();
        kept.data = None;
        if kept.encoded_len() > STATUS_BYTES_MAX {
            kept = essence(&kept);
            kept.task_id.value = self.task_id.to_string();
        }
        kept
    }

    /// The task in the form of the operator API. The caller adds `resources` in the necessary format.
    #[must_use]
    pub fn to_wire(&self) -> v1::Task {
        let mut task = v1::Task::decode(self.description.clone()).unwrap_or_default();
        task.task_id.value = self.task_id.to_string();
        task.framework_id.value = self.framework_id.to_string();
        task.agent_id.value = self.agent_id.to_string();
        task.executor_id = self.executor_id.as_ref().map(|id| id.into());
        task.state = self.state.into();
        task.statuses = self
            .statuses
            .iter()
            .filter_map(|status| TaskStatus::decode(status.encoded.clone()).ok())
            .collect();
        task.status_update_state = self.update_state.map(Into::into);
        task.status_update_uuid.clone_from(&self.update_uuid);
        task
    }
}

/// The small, essential fields of a status.
pub(in crate::core) fn essence(status: &TaskStatus) -> TaskStatus {
    TaskStatus {
        task_id: status.task_id.clone(),
        state: status.state,
        source: status.source,
        reason: status.reason,
        timestamp: status.timestamp,
        uuid: status.uuid.clone().filter(|uuid| uuid.len() == UUID_BYTES),
        healthy: status.healthy,
        unreachable_time: status.unreachable_time,
        ..TaskStatus::default()
    }
}

/// The user named in a task itself.
pub(in crate::core) fn user_of(info: &v1::TaskInfo) -> Option<&str> {
    let executor = info
        .executor
        .as_ref()
        .and_then(|executor| executor.command.as_ref());
    let command = info.command.as_ref().or(executor)?;
    command.user.as_deref()
}

/// Encodes the part of a launched task that views show.
pub(in crate::core) fn describe(info: &v1::TaskInfo) -> Bytes {
    v1::Task {
        name: info.name.clone(),
        labels: info.labels.clone(),
        discovery: info.discovery.clone(),
        container: info.container.clone(),
        health_check: info.health_check.clone(),
        kill_policy: info.kill_policy,
        user: user_of(info).map(str::to_owned),
        limits: info.limits.clone(),
        ..v1::Task::default()
    }
    .encode_to_vec()
    .into()
}

/// Encodes the description of a task that an agent reported.
pub(in crate::core) fn describe_reported(task: ReportedTask) -> Bytes {
    ReportedTask {
        name: task.name,
        labels: task.labels,
        discovery: task.discovery,
        container: task.container,
        health_check: task.health_check,
        kill_policy: task.kill_policy,
        user: task.user,
        limits: task.limits,
        ..ReportedTask::default()
    }
    .encode_to_vec()
    .into()
}

/// The master's record of a framework's executor.
#[derive(Clone, Debug)]
pub struct ExecutorRecord {
    pub executor_id: ExecutorId,
    pub framework_id: FrameworkId,
    pub agent_id: AgentId,
    pub resources: Resources,
    /// The user named in the executor itself.
    pub user: Option<Arc<str>>,
    /// The executor's info, an encoded `mesos.v1.ExecutorInfo`.
    pub info: Bytes,
    /// The length of the description as [`bytes_without_resources`] computes it.
    pub compared_bytes: usize,
}

/// The length of an executor's encoded description without its resources: executors of different lengths need no
/// further comparison.
pub(crate) fn bytes_without_resources(info: &v1::ExecutorInfo) -> usize {
    const RESOURCES_FIELD: u32 = 5;
    let resources =
        prost::encoding::message::encoded_len_repeated(RESOURCES_FIELD, &info.resources);
    info.encoded_len().saturating_sub(resources)
}

/// The user named in an executor itself.
pub(in crate::core) fn user_of_executor(info: &v1::ExecutorInfo) -> Option<Arc<str>> {
    let command = info.command.as_ref()?;
    command.user.as_deref().map(Into::into)
}

/// The state of a status, if this build knows the state.
#[must_use]
pub(in crate::core) fn state_of(status: &TaskStatus) -> Option<TaskState> {
    TaskState::try_from(status.state).ok()
}

/// Whether this state is final.
#[must_use]
pub fn is_terminal(state: TaskState) -> bool {
    match state {
        TaskState::TaskStaging
        | TaskState::TaskStarting
        | TaskState::TaskRunning
        | TaskState::TaskKilling
        | TaskState::TaskUnreachable
        | TaskState::TaskUnknown => false,
        TaskState::TaskFinished
        | TaskState::TaskFailed
        | TaskState::TaskKilled
        | TaskState::TaskError
        | TaskState::TaskLost
        | TaskState::TaskDropped
        | TaskState::TaskGone
        | TaskState::TaskGoneByOperator => true,
    }
}
