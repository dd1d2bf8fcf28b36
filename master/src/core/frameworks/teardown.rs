//! The end of a framework, for any reason.

use std::collections::BTreeSet;
use std::sync::Arc;

use meseta_daemon::authentication::Caller;
use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::TaskState;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{AgentId, FrameworkId};

use crate::core::answer::Answer;
use crate::core::effect::Output;
use crate::core::ids::ReplyId;
use crate::core::master::MasterCore;
use crate::core::state::framework::Framework;
use crate::core::state::ownership::Identity;
use crate::core::state::task::{TaskRecord, is_terminal};
use crate::core::tasks::status::MasterTaskStatus;
use crate::core::views::operator_event::OperatorEvent;
use crate::core::views::snapshot::FrameworkView;

/// The reason for removing a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::core) enum RemovalReason {
    /// The framework's own call TEARDOWN, or that of its owner as an operator.
    OwnTeardown,
    OperatorTeardown,
    FailoverTimeout,
}

impl RemovalReason {
    const fn as_str(self) -> &'static str {
        match self {
            Self::OwnTeardown | Self::OperatorTeardown => "teardown",
            Self::FailoverTimeout => "failover timeout",
        }
    }
}

impl MasterCore {
    pub(in crate::core) fn operator_teardown(&mut self, reply: ReplyId, id: &str, caller: &Caller) {
        let id = FrameworkId::new(id).ok();
        let Some(id) = id.filter(|id| self.frameworks.contains_key(id)) else {
            let text = "No framework found with specified ID".to_owned();
            return self.reply(reply, Answer::BadRequest(text));
        };
        let reason = if self.is_own(&id, caller) {
            RemovalReason::OwnTeardown
        } else {
            RemovalReason::OperatorTeardown
        };
        self.remove_framework(&id, reason);
        self.reply_once_removed(reply, Answer::Done);
    }

    /// Whether a framework belongs to the caller. If the framework has a local user, its principal is only claimed,
    /// and may be that of any operator.
    fn is_own(&self, id: &FrameworkId, caller: &Caller) -> bool {
        let Some(framework) = self.frameworks.get(id) else {
            return false;
        };
        if let Some(user) = self.ownership.user_of(id).or(framework.user) {
            return caller.uid == Some(user);
        }
        let principal = framework.terms.info.principal.as_deref();
        principal.is_some() && caller.principal() == principal
    }

    /// Ends everything that a framework has, and records the removal.
    pub(in crate::core) fn remove_framework(&mut self, id: &FrameworkId, reason: RemovalReason) {
        let Some(framework) = self.end_framework(id, reason.as_str()) else {
            return;
        };
        let identity = match framework.told_by {
            // Agents with false reports could name any number of principals.
            Some(_) => Identity::default(),
            None => Identity {
                principal: framework.terms.info.principal.clone(),
                user: framework.user,
            },
        };
        let by_operator = reason == RemovalReason::OperatorTeardown;
        self.note_removal(id, identity, by_operator);
        self.keep_framework(FrameworkView::from_framework(&framework, true));
    }

    /// Ends everything that a framework has, without recording the removal.
    pub(super) fn end_framework(
        &mut self,
        id: &FrameworkId,
        reason: &'static str,
    ) -> Option<Framework> {
        self.discard_offers(id);
        let agents = self.agents_of(id);
        for agent in &agents {
            self.shut_down_on(agent, id);
            self.forget_on(agent, id);
        }
        self.forget_inverse_replies_of(id);
        let removed = self.allocator.remove_framework_from(id, &agents);
        self.agreed("removing a framework", removed);
        let mut framework = self.frameworks.remove(id)?;
        tracing::info!(framework_id = %id, reason, "framework removed");
        self.publish(|_| {
            Some(OperatorEvent::FrameworkRemoved(
                framework.terms.info.clone(),
            ))
        });
        if let Some(timer) = framework.failover.take() {
            self.timers.cancel(timer);
        }
        if let Some(connection) = framework.connection() {
            self.schedulers.remove(&connection);
            self.effects
                .emit(Output::CloseScheduler { connection, reason });
        }
        self.framework_deadlines.clear(id, &mut self.effects);
        self.reconciliations.forget(id);
        self.framework_info_usage.remove(&framework);
        let remembered = framework.completed.bytes() + framework.unreachable.bytes();
        self.histories.free(remembered);
        framework.unregistered = Some(self.now.unix);
        self.end_operations_of(id);
        self.allocate_due = true;
        Some(framework)
    }

    /// The agents with tasks or executors of the framework.
    pub(in crate::core) fn agents_of(&self, id: &FrameworkId) -> BTreeSet<AgentId> {
        let framework = self.frameworks.get(id);
        let agents = framework.map(|framework| framework.agents().keys());
        agents.into_iter().flatten().cloned().collect()
    }

    pub(in crate::core) fn shut_down_on(&mut self, agent: &AgentId, id: &FrameworkId) {
        let message = meseta::ShutdownFramework {
            framework_id: id.into(),
        };
        self.frame(agent, master_frame::Message::ShutdownFramework(message));
    }

    /// Removes a framework's tasks and executors from an agent; live tasks count as killed. Removing the framework
    /// from the allocator frees their resources.
    fn forget_on(&mut self, agent_id: &AgentId, id: &FrameworkId) {
        let Some(agent) = self.agents.get_mut(agent_id) else {
            return;
        };
        let keys: Vec<_> = agent
            .tasks_of(id)
            .map(|task| (id.clone(), task.task_id.clone()))
            .collect();
        let mut gone: Vec<_> = keys
            .iter()
            .filter_map(|key| agent.remove_task(key))
            .collect();
        Arc::make_mut(&mut agent.executors).retain(|(owner, _), _| owner != id);
        Arc::make_mut(&mut agent.used).remove(id);
        for task in &mut gone {
            if !is_terminal(task.state) {
                self.end_with_framework(Arc::make_mut(task));
            }
        }
        if let Some(framework) = self.frameworks.get_mut(id) {
            framework.forget_agent(agent_id);
        }
        for task in gone {
            if let Some(framework) = self.frameworks.get_mut(id) {
                framework.forget_task(&task.task_id, agent_id);
            }
            self.keep_completed(id, task);
        }
    }

    /// Adds the closest matching final status to a task that ends with its framework. Readers of the history need a
    /// last status; the framework itself is no longer connected.
    fn end_with_framework(&mut self, task: &mut TaskRecord) {
        let state = TaskState::TaskKilled;
        let status = self.status(MasterTaskStatus {
            task_id: task.task_id.as_str(),
            agent_id: Some(task.agent_id.as_str()),
            state,
            reason: Reason::FrameworkRemoved,
            message: format!("Framework {} removed", task.framework_id),
        });
        task.state = state;
        task.push_status(&status);
        self.count_status(&task.framework_id, &status);
        let task_user = Some(task.user.clone());
        self.publish_status(&task.framework_id, &status, state, task_user);
    }

    /// Completes a task whose end was acknowledged, or can no longer be.
    pub(in crate::core) fn complete_task(
        &mut self,
        agent_id: &AgentId,
        framework: &FrameworkId,
        task: &meseta_resources::TaskId,
    ) {
        let Some(agent) = self.agents.get_mut(agent_id) else {
            return;
        };
        let key = (framework.clone(), task.clone());
        let Some(record) = agent.remove_task(&key) else {
            return;
        };
        if let Some(framework) = self.frameworks.get_mut(framework) {
            framework.remove_on(agent_id);
            framework.forget_task(task, agent_id);
        }
        self.keep_completed(framework, record);
    }
}
