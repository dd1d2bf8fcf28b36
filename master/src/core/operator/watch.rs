//! Events for operators that watch the cluster.
//!
//! The core creates no events until an operator watches. Invariant: an event follows the change of the state, so a
//! snapshot and the later events have no gap.

use std::sync::Arc;

use meseta_proto::mesos::v1::{TaskState, TaskStatus};
use meseta_resources::{AgentId, FrameworkId, TaskId};

use crate::core::effect::Output;
use crate::core::master::MasterCore;
use crate::core::views::operator_event::{OperatorEvent, TaskUser};
use crate::core::views::snapshot::FrameworkView;

impl MasterCore {
    /// Starts creating operator events.
    pub fn watch(&mut self) {
        self.readers.watch();
    }

    pub(in crate::core) fn publish(&mut self, make: impl FnOnce(&Self) -> Option<OperatorEvent>) {
        if !self.readers.is_watching() {
            return;
        }
        if let Some(event) = make(self) {
            self.effects.emit(Output::OperatorEvent(Box::new(event)));
        }
    }

    pub(in crate::core) fn publish_task(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
    ) {
        self.publish(|core| {
            let agent = core.agents.get(agent)?;
            Some(OperatorEvent::TaskAdded(
                agent.task(framework, task)?.clone(),
            ))
        });
    }

    pub(in crate::core) fn publish_status(
        &mut self,
        framework: &FrameworkId,
        status: &TaskStatus,
        state: TaskState,
        task_user: TaskUser,
    ) {
        self.publish(|_| {
            Some(OperatorEvent::TaskUpdated {
                framework_id: framework.clone(),
                status: Box::new(status.clone()),
                state,
                task_user,
            })
        });
    }

    pub(in crate::core) fn publish_agent(&mut self, id: &AgentId) {
        self.publish(|core| {
            let agent = core.agents.get(id)?;
            Some(OperatorEvent::AgentAdded(Box::new(core.view(agent))))
        });
    }

    /// Publishes a framework, as added or updated.
    pub(in crate::core) fn publish_framework(&mut self, id: &FrameworkId, is_new: bool) {
        self.publish(|core| {
            let view = Arc::new(FrameworkView::from_framework(
                core.frameworks.get(id)?,
                false,
            ));
            Some(if is_new {
                OperatorEvent::FrameworkAdded(view)
            } else {
                OperatorEvent::FrameworkUpdated(view)
            })
        });
    }
}
