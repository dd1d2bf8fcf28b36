//! Messages of registered agents: updates, exits, framework messages, pongs.

use std::sync::Arc;

use meseta_proto::meseta::v1::{self as meseta, agent_frame};
use meseta_proto::mesos::v1::scheduler::event;
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_proto::schema;
use meseta_resources::{AgentId, ExecutorId, FrameworkId, Resources, TaskId};
use prost::Message as _;

use super::profile::check_sums;
use crate::core::ids::{ConnectionId, UUID_BYTES};
use crate::core::master::MasterCore;
use crate::core::state::framework::TaskConflict;
use crate::core::state::offer::RefuseFilter;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::Mutation;
use crate::core::state::task::{TaskRecord, is_terminal, state_of};
use crate::core::state::usage::Usage;
use crate::core::tasks::status::update;
use crate::core::wire;
use crate::core::wire::event_of;

/// The number of characters of an agent's reason in a log line.
const REASON_CHARS_MAX: usize = 256;

impl MasterCore {
    pub(in crate::core) fn agent_frame(
        &mut self,
        connection: ConnectionId,
        message: agent_frame::Message,
    ) {
        let Some(agent) = self.agent_connections.agent(connection).cloned() else {
            self.handshake(connection, message);
            return;
        };
        // Only the agent's latest connection speaks for it.
        let speaks = self.agents.get(&agent).and_then(|agent| agent.connection);
        if speaks != Some(connection) {
            self.counters.dropped_messages += 1;
            return;
        }
        self.note_speech(&agent, &message);
        match message {
            agent_frame::Message::StatusUpdate(update) => self.status_update(&agent, update),
            agent_frame::Message::Pong(pong) => self.pong(&agent, &pong),
            agent_frame::Message::ExecutorExited(exited) => self.executor_exited(&agent, &exited),
            agent_frame::Message::ExecutorMessage(message) => {
                self.executor_message(&agent, message);
            }
            agent_frame::Message::AgentUpdate(update) => self.agent_update(&agent, &update),
            agent_frame::Message::Unregister(unregister) => self.unregister(&agent, &unregister),
            agent_frame::Message::OperationUpdate(update) => self.operation_update(&agent, update),
            agent_frame::Message::Register(_)
            | agent_frame::Message::Reregister(_)
            | agent_frame::Message::ReregisterPart(_) => {
                self.counters.dropped_messages += 1;
            }
        }
    }

    /// Records that the agent has stored its id: it sends messages other than pongs only afterwards.
    fn note_speech(&mut self, agent: &AgentId, message: &agent_frame::Message) {
        let is_pong = matches!(message, agent_frame::Message::Pong(_));
        if let Some(agent) = self.agents.get_mut_keeping_view(agent).filter(|_| !is_pong) {
            agent.keeps_id = true;
        }
    }

    fn pong(&mut self, id: &AgentId, pong: &meseta::Pong) {
        let Some(agent) = self.agents.get_mut_keeping_view(id) else {
            return;
        };
        let sequence = pong.sequence.min(agent.ping_sequence);
        agent.pong_sequence = agent.pong_sequence.max(sequence);
        agent.usage = pong.usage.as_ref().and_then(Usage::reported);
        let is_silent = pong.disk_silent.unwrap_or(false);
        let changes = std::mem::replace(&mut agent.disk_silent, is_silent) != is_silent;
        let is_heard_again = std::mem::take(&mut agent.missed_pings) > 0;
        if changes {
            self.disk_silence_changed(id, is_silent);
        }
        if is_heard_again {
            let census = self.census();
            self.silent_agents.hear(id, census);
        }
    }

    /// Stops offers of an agent whose disk does not respond, because the agent can start nothing, and resumes them
    /// later.
    fn disk_silence_changed(&mut self, id: &AgentId, is_silent: bool) {
        match is_silent {
            true => {
                tracing::warn!(agent_id = %id, "the agent's disk does not answer; making no offers from the agent");
            }
            false => tracing::info!(agent_id = %id, "the agent's disk answers again"),
        }
        self.update_offerability(id);
    }

    /// Forwards an update, and updates the record of the task.
    fn status_update(&mut self, agent: &AgentId, message: meseta::StatusUpdate) {
        self.counters.agent_frame("status_update");
        let mut status = message.status;
        let state = state_of(&status);
        let framework = FrameworkId::new(&message.framework_id.value).ok();
        let task = TaskId::new(&status.task_id.value).ok();
        let uuid = status.uuid.as_ref();
        let is_named = uuid.is_none_or(|uuid| uuid.len() <= UUID_BYTES);
        let task = task.filter(|_| is_named);
        let (Some(framework), Some(task), Some(state)) = (framework, task, state) else {
            self.counters.invalid_status_updates += 1;
            return;
        };
        if !self.frameworks.contains_key(&framework) {
            self.counters.invalid_status_updates += 1;
            if self.histories.has_completed(&framework) {
                self.shut_down_on(agent, &framework);
            }
            return;
        }
        status.agent_id = Some(agent.into());
        let latest = message
            .latest_state
            .and_then(|state| TaskState::try_from(state).ok())
            .unwrap_or(state);
        let record = self
            .agents
            .get_mut(agent)
            .and_then(|agent| agent.task_mut(&framework, &task));
        let known = record.map(|record| take_over(record, &status, state, latest));
        if known.is_none()
            && !self.may_speak_of_what_it_has_not(agent, &framework, &task, &mut status)
        {
            self.counters.invalid_status_updates += 1;
            return;
        }
        self.counters.valid_status_updates += 1;
        let (task_user, repeated) = match known {
            Some((user, repeated)) => (Some(user), repeated),
            None => (None, false),
        };
        if is_terminal(latest) {
            self.task_ended(agent, &framework, &task, latest);
        }
        if !repeated {
            self.count_status(&framework, &status);
            self.publish_status(&framework, &status, state, task_user);
        }
        self.event(&framework, update(status));
    }

    /// Whether an agent may report a task that it does not have: only a task that no agent has. If this master
    /// launched the task on another agent, the master acknowledges the update, so that the agent stops repeating it.
    fn may_speak_of_what_it_has_not(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
        status: &mut v1::TaskStatus,
    ) -> bool {
        let elsewhere = self.frameworks.get(framework);
        let elsewhere = elsewhere.map_or_else(TaskConflict::default, |framework| {
            framework.task_conflict(agent, task)
        });
        if elsewhere.is_on_another_agent {
            tracing::warn!(agent_id = %agent, framework_id = %framework, task_id = %task, "status update of another agent's task dropped");
            if let Some(uuid) = status.uuid.clone().filter(|_| elsewhere.is_launched) {
                self.send_acknowledgement(agent, framework, task, uuid);
            }
            return false;
        }
        // The task of a framework from before this master's start could be on an agent that is not back yet. The
        // agent repeats unacknowledged updates.
        let may_speak =
            !self.absent_agents.expects_any() || self.issued_ids.is_own_framework(framework);
        may_speak && self.admit_unknown_task_update(agent, framework, task, status)
    }

    /// Releases the resources of an ended task at once, even if its updates are unacknowledged.
    pub(super) fn task_ended(
        &mut self,
        agent_id: &AgentId,
        framework: &FrameworkId,
        task: &TaskId,
        state: TaskState,
    ) {
        let Some(agent) = self.agents.get_mut(agent_id) else {
            return;
        };
        let Some(record) = agent.task_mut(framework, task) else {
            return;
        };
        if is_terminal(record.state) {
            return;
        }
        record.state = state;
        let resources = record.resources.clone();
        agent.kills.remove(&(framework.clone(), task.clone()));
        agent.discharge(framework, &resources);
        self.recover_resources(framework, agent_id, &resources, RefuseFilter::None);
        self.allocate_due = true;
    }

    fn executor_exited(&mut self, agent: &AgentId, message: &meseta::ExecutorExited) {
        self.counters.agent_frame("executor_exited");
        let framework = FrameworkId::new(&message.framework_id.value).ok();
        let executor = ExecutorId::new(&message.executor_id.value).ok();
        let (Some(framework), Some(executor)) = (framework, executor) else {
            return;
        };
        if !self.has_executor(agent, &framework, &executor) {
            self.counters.dropped_messages += 1;
            return;
        }
        self.remove_executor(agent, &framework, &executor);
        let mut event = event_of(event::Type::Failure);
        event.failure = Some(event::Failure {
            agent_id: Some(agent.into()),
            executor_id: Some(executor.into()),
            status: message.status,
        });
        self.event(&framework, event);
    }

    /// Removes an executor and releases its resources.
    pub(super) fn remove_executor(
        &mut self,
        agent_id: &AgentId,
        framework: &FrameworkId,
        executor: &ExecutorId,
    ) {
        let Some(agent) = self.agents.get_mut(agent_id) else {
            return;
        };
        let key = (framework.clone(), executor.clone());
        let Some(record) = Arc::make_mut(&mut agent.executors).remove(&key) else {
            return;
        };
        if let Some(framework) = self.frameworks.get_mut(framework) {
            framework.remove_on(agent_id);
        }
        agent.discharge(framework, &record.resources);
        let resources: Resources = record.resources.clone();
        self.recover_resources(framework, agent_id, &resources, RefuseFilter::None);
        self.allocate_due = true;
    }

    fn executor_message(&mut self, agent: &AgentId, message: meseta::ExecutorMessage) {
        self.counters.agent_frame("executor_message");
        let framework = FrameworkId::new(&message.framework_id.value).ok();
        let known = framework.filter(|framework| self.frameworks.contains_key(framework));
        let executor = ExecutorId::new(&message.executor_id.value).ok();
        let known = known.filter(|framework| {
            let executor = executor.as_ref();
            executor.is_some_and(|executor| self.has_executor(agent, framework, executor))
        });
        let Some(framework) = known else {
            self.counters.invalid_executor_messages += 1;
            return;
        };
        self.counters.valid_executor_messages += 1;
        let mut event = event_of(event::Type::Message);
        event.message = Some(event::Message {
            agent_id: agent.into(),
            executor_id: message.executor_id,
            data: message.data,
        });
        self.event(&framework, event);
    }

    /// Whether an agent has the executor, or a task in it.
    fn has_executor(
        &self,
        agent: &AgentId,
        framework: &FrameworkId,
        executor: &ExecutorId,
    ) -> bool {
        let agent = self.agents.get(agent);
        agent.is_some_and(|agent| agent.has_executor(framework, executor))
    }

    /// Replaces the estimate of revocable resources, and rescinds offers made from the old estimate.
    fn agent_update(&mut self, id: &AgentId, message: &meseta::AgentUpdate) {
        self.counters.agent_frame("agent_update");
        let Some(oversubscribed) = &message.oversubscribed else {
            return;
        };
        let (bytes, max) = (oversubscribed.encoded_len(), self.config.memory.agent_info);
        if bytes > max {
            tracing::warn!(agent_id = %id, bytes, max, "agent sent an estimate of revocable resources that is too large; the one before holds");
            return;
        }
        let Ok(revocable) = wire::from_wire(&oversubscribed.resources) else {
            tracing::warn!(agent_id = %id, "agent sent an invalid estimate of revocable resources");
            return;
        };
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let total = &agent.profile.total.unrevocable() + &revocable.revocable();
        if total == agent.profile.total {
            return;
        }
        if let Err(reason) = check_sums(&total) {
            tracing::warn!(agent_id = %id, %reason, "agent sent an estimate of revocable resources that is too much; the one before holds");
            return;
        }
        if let Err(reason) = self.keep_estimate(id, schema::bytes_of(oversubscribed)) {
            tracing::warn!(agent_id = %id, %reason, "estimate of revocable resources exceeds the memory limit; the previous one stays");
            return;
        }
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        Arc::make_mut(&mut agent.profile).set_total(total);
        let void: Vec<_> = agent
            .offers
            .iter()
            .filter(|offer| {
                self.offers
                    .get(*offer)
                    .is_some_and(|offer| !offer.resources.revocable().is_empty())
            })
            .cloned()
            .collect();
        for offer in void {
            self.rescind(&offer);
        }
        if let Some(agent) = self.agents.get(id) {
            let updated = self.allocator.update_agent(agent);
            self.agreed("updating an agent", updated);
        }
        self.allocate_due = true;
    }

    /// Removes an agent that leaves permanently.
    fn unregister(&mut self, id: &AgentId, message: &meseta::Unregister) {
        self.counters.agent_frame("unregister");
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut agent.removal_pending, true) {
            return;
        }
        let reason: String = message.reason.chars().take(REASON_CHARS_MAX).collect();
        tracing::info!(agent_id = %id, reason = %reason.escape_debug(), "agent unregisters");
        self.counters.agent_removals_unregistered += 1;
        self.effects.persist(
            Mutation::RemoveAgent {
                agent_id: id.to_string(),
            },
            Pending::Removed {
                agent: id.clone(),
                why: "the agent unregistered",
            },
        );
    }
}

/// Updates the record of a task. Returns the task's user, and whether the update is a repetition.
fn take_over(
    record: &mut TaskRecord,
    status: &v1::TaskStatus,
    state: TaskState,
    latest: TaskState,
) -> (Option<Arc<str>>, bool) {
    let repeated = status.uuid.is_some() && record.update_uuid == status.uuid;
    if !repeated {
        record.push_status(status);
        record.update_state = Some(state);
        record.update_uuid.clone_from(&status.uuid);
    }
    if !is_terminal(record.state) && !is_terminal(latest) {
        record.state = latest;
    }
    (record.user.clone(), repeated)
}
