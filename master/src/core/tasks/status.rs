//! Task statuses that the master itself creates: without uuid, so never acknowledged.

use meseta_proto::mesos::v1::scheduler::{Event, event};
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::{FrameworkId, TaskId};

use crate::core::master::MasterCore;
use crate::core::state::counters::is_failure;
use crate::core::wire::event_of;

/// A task status created by the master itself.
#[derive(Clone, Debug)]
pub(in crate::core) struct MasterTaskStatus<'a> {
    pub(in crate::core) task_id: &'a str,
    pub(in crate::core) agent_id: Option<&'a str>,
    pub(in crate::core) state: TaskState,
    pub(in crate::core) reason: Reason,
    pub(in crate::core) message: String,
}

impl MasterCore {
    pub(in crate::core) fn status(&self, task_status: MasterTaskStatus<'_>) -> TaskStatus {
        TaskStatus {
            task_id: v1::TaskId {
                value: task_status.task_id.to_owned(),
            },
            state: task_status.state.into(),
            message: Some(task_status.message),
            source: Some(Source::Master.into()),
            reason: Some(task_status.reason.into()),
            agent_id: task_status.agent_id.map(|id| v1::AgentId {
                value: id.to_owned(),
            }),
            timestamp: Some(self.now.unix.as_secs_f64()),
            ..TaskStatus::default()
        }
    }

    /// Sends a status that the master created.
    pub(in crate::core) fn send_master_status(
        &mut self,
        framework: &FrameworkId,
        task_status: MasterTaskStatus<'_>,
    ) {
        let status = self.status(task_status);
        self.send_status(framework, status);
    }

    /// Counts a terminal status sent to a framework.
    pub(in crate::core) fn count_status(&mut self, framework: &FrameworkId, status: &TaskStatus) {
        let Some(state) = self.counters.count_status(status) else {
            return;
        };
        if is_failure(state) {
            let role = self.role_of_task(framework, status);
            self.counters.count_failure(&role, state);
        }
        if let Some(framework) = self.frameworks.get_mut(framework) {
            framework.counters().terminal(state);
        }
    }

    /// The role of an ended task: its own if known, else the only role of its framework.
    fn role_of_task(&self, framework: &FrameworkId, status: &TaskStatus) -> String {
        let known = || {
            let agent = self.agents.get(status.agent_id.as_ref()?.value.as_str())?;
            let task = TaskId::new(&status.task_id.value).ok()?;
            agent.tasks.get(&(framework.clone(), task))
        };
        if let Some(task) = known() {
            return task.role.to_string();
        }
        let roles = self.frameworks.get(framework).map(|one| &one.terms.roles);
        let only = roles.filter(|roles| roles.len() == 1);
        only.and_then(|roles| roles.first())
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    pub(in crate::core) fn send_status(&mut self, framework: &FrameworkId, status: TaskStatus) {
        self.count_status(framework, &status);
        self.event(framework, update(status));
    }

    /// The given state for a PARTITION_AWARE framework, else TASK_LOST.
    pub(in crate::core) fn state_for(
        &self,
        framework: &FrameworkId,
        aware: TaskState,
    ) -> TaskState {
        let partition_aware = self
            .frameworks
            .get(framework)
            .is_some_and(|framework| framework.terms.capabilities.partition_aware);
        if partition_aware {
            aware
        } else {
            TaskState::TaskLost
        }
    }
}

pub(in crate::core) fn update(status: TaskStatus) -> Event {
    Event {
        update: Some(event::Update { status }),
        ..event_of(event::Type::Update)
    }
}
