//! The calls of a subscribed scheduler.
//!
//! Entered through [`MasterCore::call`], which first checks that the caller may make calls at all, in the order of
//! Mesos.

use std::collections::BTreeSet;

use meseta_allocator::InverseAnswer;
use meseta_daemon::authentication::Caller;
use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::mesos::v1::{self};
use meseta_resources::{AgentId, ExecutorId, FrameworkId, Role, TaskId};

use super::teardown::RemovalReason;
use crate::core::answer::Answer;
use crate::core::authorization;
use crate::core::ids::UUID_BYTES;
use crate::core::master::MasterCore;
use crate::core::state::framework::Link;
use crate::core::state::task::is_terminal;
use crate::core::validation::call::Action;
use crate::core::validation::frame_size;

impl MasterCore {
    pub(in crate::core) fn call(
        &mut self,
        framework: &str,
        stream: Option<&str>,
        action: Action,
        caller: &Caller,
    ) -> Answer {
        // A clone of the stored id, which the results of the call then share.
        let known = self.frameworks.get(framework);
        let Some(id) = known.map(|framework| framework.id.clone()) else {
            return Answer::BadRequest("Framework cannot be found".to_owned());
        };
        if let Some(rejection) = self
            .frameworks
            .get(&id)
            .and_then(|framework| authorization::is_not_its_own(&framework.terms.info, caller))
        {
            return Answer::BadRequest(rejection);
        }
        let link = self.frameworks.get(&id).map(|framework| &framework.link);
        let Some(Link::Subscribed { stream_id, .. }) = link else {
            return Answer::Forbidden("Framework is not subscribed".to_owned());
        };
        match stream {
            None => {
                return Answer::BadRequest(
                    "All non-subscribe calls should include the 'Mesos-Stream-Id' header"
                        .to_owned(),
                );
            }
            Some(stream) if stream != stream_id => {
                return Answer::BadRequest(format!(
                    "The stream ID '{}' included in this request didn't match the stream ID \
                     currently associated with framework ID {id}",
                    stream.escape_debug()
                ));
            }
            Some(_) => {}
        }
        if matches!(action, Action::Teardown) {
            caller.audit("TEARDOWN", id.as_str(), "accepted");
        }
        self.act(&id, action, caller)
    }

    fn act(&mut self, id: &FrameworkId, action: Action, caller: &Caller) -> Answer {
        self.counters.call(name(&action));
        if let Some(framework) = self.frameworks.get_mut(id) {
            framework.counters().call(name(&action));
        }
        match action {
            Action::Teardown => {
                self.remove_framework(id, RemovalReason::OwnTeardown);
                Answer::Accepted
            }
            Action::Accept(call) => self.accept(id, call),
            Action::Decline(call) => self.decline(id, &call),
            Action::AnswerInverseOffers {
                answer,
                ids,
                filters,
            } => self.answer_inverse_offers(id, &ids, filters.as_ref(), answer),
            // The allocator offers all available resources, whatever the framework requests.
            Action::Request => Answer::Accepted,
            Action::AcknowledgeOperationStatus {
                agent_id,
                operation_id,
                uuid,
            } => self.acknowledge_operation(id, &agent_id, &operation_id, &uuid),
            Action::Revive { roles } => self.revive(id, &roles),
            Action::Suppress { roles } => self.suppress(id, &roles),
            Action::Kill(call) => self.kill(id, &call),
            Action::Shutdown(call) => self.shutdown_executor(id, call),
            Action::Acknowledge {
                agent_id,
                task_id,
                uuid,
            } => self.acknowledge(id, &agent_id, &task_id, &uuid),
            Action::Reconcile(call) => self.reconcile(id, call),
            Action::ReconcileOperations(call) => self.reconcile_operations(id, call),
            Action::Message(call) => self.message(id, call),
            Action::UpdateFramework(call) => self.update_framework(id, *call, caller),
            Action::Unknown => Answer::NotImplemented(String::new()),
        }
    }

    /// The roles that a call concerns; `None` if one of them is not the framework's.
    fn roles_meant(&self, id: &FrameworkId, names: &[String]) -> Option<BTreeSet<Role>> {
        let roles = &self.frameworks.get(id)?.terms.roles;
        if names.is_empty() {
            return Some(roles.clone());
        }
        names
            .iter()
            .map(|name| roles.get(name.as_str()).cloned())
            .collect()
    }

    fn revive(&mut self, id: &FrameworkId, names: &[String]) -> Answer {
        let Some(roles) = self.roles_meant(id, names) else {
            tracing::info!(framework_id = %id, "REVIVE names a role that is not the framework's");
            return Answer::Accepted;
        };
        if let Some(framework) = self.frameworks.get_mut(id) {
            framework
                .terms
                .suppressed
                .retain(|role| !roles.contains(role));
        }
        let revived = self.allocator.revive(id, &roles);
        self.agreed("reviving roles", revived);
        self.allocate_due = true;
        Answer::Accepted
    }

    fn suppress(&mut self, id: &FrameworkId, names: &[String]) -> Answer {
        let Some(roles) = self.roles_meant(id, names) else {
            tracing::info!(framework_id = %id, "SUPPRESS names a role that is not the framework's");
            return Answer::Accepted;
        };
        let suppressed = self.allocator.suppress(id, &roles);
        self.agreed("suppressing roles", suppressed);
        if let Some(framework) = self.frameworks.get_mut(id) {
            framework.terms.suppressed.extend(roles);
        }
        Answer::Accepted
    }

    fn kill(&mut self, id: &FrameworkId, call: &call::Kill) -> Answer {
        let requested_agent = call.agent_id.as_ref().map(|agent| agent.value.as_str());
        let task = TaskId::new(&call.task_id.value).ok();
        let framework = self.frameworks.get(id);
        let known = task.zip(framework).map(|(task, framework)| {
            let holders: Vec<AgentId> = framework.holders(&task).cloned().collect();
            (holders, task)
        });
        let Some((holders, task)) = known.filter(|(holders, _)| !holders.is_empty()) else {
            self.reconcile_task(id, &call.task_id.value, requested_agent);
            return Answer::Accepted;
        };
        let mut meant = holders;
        meant.retain(|agent| requested_agent.is_none_or(|requested| requested == agent.as_str()));
        if meant.is_empty() {
            tracing::info!(framework_id = %id, task_id = %task, "KILL names another agent than the task's");
        }
        for agent_id in meant {
            self.kill_on(&agent_id, id, &task, call.kill_policy);
        }
        Answer::Accepted
    }

    /// Kills a task on an agent: now, and again whenever the agent reregisters before the task has ended.
    fn kill_on(
        &mut self,
        agent_id: &AgentId,
        id: &FrameworkId,
        task: &TaskId,
        kill_policy: Option<v1::KillPolicy>,
    ) {
        let Some(agent) = self.agents.get_mut(agent_id) else {
            return;
        };
        agent.remember_kill(id, task, kill_policy);
        if agent.connection.is_some() {
            self.send_kill(agent_id, id, task, kill_policy);
        }
    }

    pub(in crate::core) fn send_kill(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
        kill_policy: Option<v1::KillPolicy>,
    ) {
        let message = meseta::KillTask {
            framework_id: framework.into(),
            task_id: task.into(),
            kill_policy,
        };
        self.frame(agent, master_frame::Message::KillTask(message));
    }

    fn shutdown_executor(&mut self, id: &FrameworkId, call: call::Shutdown) -> Answer {
        // An invalid executor id goes to no agent.
        let is_id = ExecutorId::new(&call.executor_id.value).is_ok();
        let agent = self.connected_agent(&call.agent_id.value);
        if let Some(agent) = agent.filter(|_| is_id) {
            let message = meseta::ShutdownExecutor {
                framework_id: id.into(),
                executor_id: call.executor_id,
            };
            self.frame(&agent, master_frame::Message::ShutdownExecutor(message));
        }
        Answer::Accepted
    }

    fn connected_agent(&self, id: &str) -> Option<AgentId> {
        let agent = self.agents.get(id)?;
        agent.connection?;
        Some(agent.id().clone())
    }

    /// Forwards an acknowledgement. The acknowledged end of a task ends the master's record of it.
    fn acknowledge(
        &mut self,
        id: &FrameworkId,
        agent: &str,
        task: &str,
        uuid: &[u8; UUID_BYTES],
    ) -> Answer {
        let (Some(agent), Ok(task)) = (self.connected_agent(agent), TaskId::new(task)) else {
            self.counters.invalid_acknowledgements += 1;
            return Answer::Accepted;
        };
        self.counters.valid_acknowledgements += 1;
        let ended = self
            .agents
            .get(&agent)
            .and_then(|agent| agent.task(id, &task))
            .is_some_and(|record| {
                record.update_state.is_some_and(is_terminal)
                    && record.update_uuid.as_deref() == Some(uuid.as_slice())
            });
        if ended {
            self.complete_task(&agent, id, &task);
        }
        if let Some(agent) = self.agents.get_mut_keeping_view(&agent) {
            agent.unknown_task_updates.acknowledged(id, &task, uuid);
        }
        self.send_acknowledgement(&agent, id, &task, uuid.to_vec());
        Answer::Accepted
    }

    pub(in crate::core) fn send_acknowledgement(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
        uuid: Vec<u8>,
    ) {
        let message = meseta::Acknowledge {
            framework_id: framework.into(),
            task_id: task.into(),
            uuid,
        };
        self.frame(agent, master_frame::Message::Acknowledge(message));
    }

    /// Counts a message for an executor that found no room in the agent's queue.
    pub(crate) fn count_dropped_message(&mut self) {
        self.counters.dropped_messages += 1;
    }

    fn message(&mut self, id: &FrameworkId, call: call::Message) -> Answer {
        let is_id = ExecutorId::new(&call.executor_id.value).is_ok();
        let agent = self.connected_agent(&call.agent_id.value);
        let takes_it = |id: &AgentId| {
            let agent = self.agents.get(id);
            is_id && agent.is_some_and(|agent| frame_size::takes_message(agent, &call))
        };
        let Some(agent) = agent.filter(takes_it) else {
            self.counters.invalid_framework_messages += 1;
            return Answer::Accepted;
        };
        self.counters.valid_framework_messages += 1;
        let message = meseta::ExecutorMessage {
            framework_id: id.into(),
            executor_id: call.executor_id,
            data: call.data,
        };
        self.frame(&agent, master_frame::Message::ExecutorMessage(message));
        Answer::Accepted
    }
}

/// The call's name in metrics.
fn name(action: &Action) -> &'static str {
    match action {
        Action::Teardown => "teardown",
        Action::Accept(_) => "accept",
        Action::Decline(_) => "decline",
        Action::AnswerInverseOffers { answer, .. } => match answer {
            InverseAnswer::Accept => "accept_inverse_offers",
            InverseAnswer::Decline => "decline_inverse_offers",
        },
        Action::Revive { .. } => "revive",
        Action::Suppress { .. } => "suppress",
        Action::Kill(_) => "kill",
        Action::Shutdown(_) => "shutdown",
        Action::Acknowledge { .. } => "acknowledge",
        Action::AcknowledgeOperationStatus { .. } => "acknowledge_operation_status",
        Action::Reconcile(_) => "reconcile",
        Action::ReconcileOperations(_) => "reconcile_operations",
        Action::Message(_) => "message",
        Action::Request => "request",
        Action::UpdateFramework(_) => "update_framework",
        Action::Unknown => "unknown",
    }
}
