//! The loss of agents: disconnected, unreachable, removed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{self, OperationState, TaskState, TaskStatus};
use meseta_resources::{AgentId, FrameworkId};

use crate::core::effect::Output;
use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::agent::{Agent, UnreachableAgent};
use crate::core::state::offer::{Offer, RefuseFilter};
use crate::core::state::task::{TaskRecord, is_terminal};
use crate::core::tasks::status::MasterTaskStatus;
use crate::core::views::operator_event::OperatorEvent;

/// An agent that was removed from the tables.
struct RemovedAgent {
    agent: Agent,
    /// The agent's last offers, of which the frameworks have yet to learn the end.
    void_offers: Vec<Arc<Offer>>,
}

/// The reason for the loss of an agent's tasks.
#[derive(Clone, Copy)]
enum Loss {
    Unreachable { since: Duration },
    Removed { why: &'static str },
    Gone,
}

impl MasterCore {
    /// Handles the end of an agent's stream. Its tasks continue; the agent may return until the ping timeout.
    pub(in crate::core) fn agent_gone(&mut self, connection: ConnectionId) {
        self.forget_partial_reregistration(connection);
        let Some(id) = self.agent_connections.close(connection) else {
            return;
        };
        let Some(agent) = self.agents.get_mut(&id) else {
            return;
        };
        if agent.connection != Some(connection) {
            return;
        }
        agent.connection = None;
        tracing::info!(agent_id = %id, "agent disconnected");
        let deactivated = self.allocator.deactivate_agent(&id);
        self.agreed("deactivating an agent", deactivated);
        self.rescind_offers_of_agent(&id);
    }

    pub(in crate::core) fn agent_unreachable(&mut self, id: &AgentId, since: Duration) {
        let Some(removed) = self.take_agent(id) else {
            return;
        };
        tracing::warn!(agent_id = %id, "agent unreachable");
        self.counters.agent_unreachable_completed += 1;
        self.counters.agent_removals_unhealthy += 1;
        let hostname = removed.agent.profile.info.hostname.clone();
        let lost = UnreachableAgent { since, hostname };
        self.absent_agents.mark_unreachable(id.clone(), lost);
        self.lose(removed, Loss::Unreachable { since });
    }

    pub(in crate::core) fn recovered_unreachable(&mut self, id: AgentId, since: Duration) {
        let Some(agent) = self.take_expected(&id) else {
            return;
        };
        self.counters.agent_unreachable_completed += 1;
        let hostname = agent.info.hostname.clone();
        let lost = UnreachableAgent { since, hostname };
        self.absent_agents.mark_unreachable(id.clone(), lost);
        self.confirm_unproven_owners();
        self.agent_failure(&id);
    }

    pub(in crate::core) fn agent_removed(&mut self, id: &AgentId, why: &'static str) {
        let was_expected = self.take_expected(id).is_some();
        let removed = self.take_agent(id);
        if removed.is_some() || was_expected {
            tracing::info!(agent_id = %id, why, "agent removed");
            self.allocator.forget_awaited(id);
            self.forget_deactivation(id);
        }
        if let Some(removed) = removed {
            self.lose(removed, Loss::Removed { why });
        } else if was_expected {
            self.confirm_unproven_owners();
            self.agent_failure(id);
        }
    }

    /// Removes an agent that an operator has marked gone, wherever it is now.
    pub(in crate::core) fn agent_marked_gone(&mut self, id: &AgentId) {
        tracing::warn!(agent_id = %id, "agent marked gone");
        let expected = self.take_expected(id);
        let was_expected = expected.is_some();
        if self.absent_agents.forget_unreachable(id)
            || expected.is_some_and(|expected| expected.was_unreachable)
        {
            self.unreachable_tasks_gone(id);
        }
        self.confirm_unproven_owners();
        self.allocator.forget_awaited(id);
        if let Some(removed) = self.take_agent(id) {
            self.lose(removed, Loss::Gone);
        } else if was_expected {
            self.agent_failure(id);
        }
    }

    /// Informs frameworks that their unreachable tasks are gone.
    fn unreachable_tasks_gone(&mut self, id: &AgentId) {
        let frameworks: Vec<FrameworkId> = self.frameworks.keys().cloned().collect();
        for framework_id in frameworks {
            let state = self.state_for(&framework_id, TaskState::TaskGoneByOperator);
            for mut task in self.take_unreachable_on(&framework_id, id) {
                let status = self.status(MasterTaskStatus {
                    task_id: task.task_id.as_str(),
                    agent_id: Some(id.as_str()),
                    state,
                    reason: Reason::AgentRemovedByOperator,
                    message: "The task's agent was marked gone by an operator".to_owned(),
                });
                let record = Arc::make_mut(&mut task);
                record.state = state;
                record.push_status(&status);
                let task_user = Some(record.user.clone());
                self.keep_completed(&framework_id, task);
                self.publish_status(&framework_id, &status, state, task_user);
                self.send_status(&framework_id, status);
            }
        }
    }

    /// Removes an agent from the tables.
    fn take_agent(&mut self, id: &AgentId) -> Option<RemovedAgent> {
        // Offers end first, while the agent still exists in the allocator.
        let offers = self.agents.get(id)?.offers.clone();
        let offers = offers.iter();
        let void_offers = offers
            .filter_map(|offer| self.end_offer(offer, RefuseFilter::None))
            .collect();
        self.forget_inverse_replies_on(id);
        let agent = self.agents.remove(id)?;
        self.drop_description(id);
        self.locations.remove(&agent.profile);
        let of_tasks = agent.tasks.keys().map(|(framework, _)| framework);
        let of_executors = agent.executors.keys().map(|(framework, _)| framework);
        let frameworks: BTreeSet<&FrameworkId> = of_tasks.chain(of_executors).collect();
        for framework in frameworks {
            if let Some(framework) = self.frameworks.get_mut(framework) {
                framework.forget_agent(id);
            }
        }
        let census = self.census();
        self.silent_agents.forget(id, census);
        let removed = self.allocator.remove_agent(id);
        self.agreed("removing an agent", removed);
        self.publish(|_| Some(OperatorEvent::AgentRemoved(id.clone())));
        if let Some(connection) = agent.connection {
            self.agent_connections.release(connection);
            self.effects.emit(Output::CloseAgent {
                connection,
                reason: "the agent was removed",
            });
        }
        self.allocate_due = true;
        Some(RemovedAgent { agent, void_offers })
    }

    /// Informs the frameworks of their losses: tasks, offers, the agent, in the order of Mesos.
    fn lose(&mut self, removed: RemovedAgent, loss: Loss) {
        let RemovedAgent { agent, void_offers } = removed;
        let hostname = agent.profile.info.hostname.escape_debug().to_string();
        for task in agent.tasks.values() {
            self.lose_task(task.clone(), &hostname, loss);
        }
        for offer in &void_offers {
            self.tell_rescinded(offer);
        }
        self.void_inverse_of_agent(agent.id());
        match loss {
            Loss::Unreachable { .. } => self.lose_operations(
                &agent.operations,
                OperationState::OperationUnreachable,
                "Agent was marked unreachable",
            ),
            Loss::Removed { why } => self.lose_operations(
                &agent.operations,
                OperationState::OperationGoneByOperator,
                why,
            ),
            Loss::Gone => self.lose_operations(
                &agent.operations,
                OperationState::OperationGoneByOperator,
                "Agent was marked gone by an operator",
            ),
        }
        self.agent_failure(agent.id());
    }

    fn lose_task(&mut self, mut task: Arc<TaskRecord>, hostname: &str, loss: Loss) {
        let framework_id = task.framework_id.clone();
        let was_terminal = is_terminal(task.state);
        let state = match loss {
            Loss::Unreachable { .. } => self.state_for(&framework_id, TaskState::TaskUnreachable),
            Loss::Removed { .. } => TaskState::TaskLost,
            Loss::Gone => self.state_for(&framework_id, TaskState::TaskGoneByOperator),
        };
        let Some(framework) = self.frameworks.get_mut(&framework_id) else {
            return;
        };
        framework.forget_task(&task.task_id, &task.agent_id);
        if was_terminal {
            self.keep_completed(&framework_id, task);
            return;
        }
        let record = Arc::make_mut(&mut task);
        record.state = state;
        let message = match loss {
            Loss::Unreachable { since } => {
                record.unreachable_since = Some(since);
                format!("Agent {hostname} is unreachable: health check timed out")
            }
            Loss::Removed { why } => format!("Agent {hostname} removed: {why}"),
            Loss::Gone => format!("Agent {hostname} was marked gone by an operator"),
        };
        let mut status = self.status(MasterTaskStatus {
            task_id: task.task_id.as_str(),
            agent_id: Some(task.agent_id.as_str()),
            state,
            reason: match loss {
                Loss::Unreachable { .. } | Loss::Removed { .. } => Reason::AgentRemoved,
                Loss::Gone => Reason::AgentRemovedByOperator,
            },
            message,
        });
        if let Loss::Unreachable { since } = loss {
            let nanoseconds = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
            status.unreachable_time = Some(v1::TimeInfo { nanoseconds });
        }
        Arc::make_mut(&mut task).push_status(&status);
        let task_user = Some(task.user.clone());
        match loss {
            Loss::Unreachable { .. } => self.keep_unreachable(&framework_id, task),
            Loss::Removed { .. } | Loss::Gone => self.keep_completed(&framework_id, task),
        }
        self.publish_status(&framework_id, &status, state, task_user);
        self.send_status(&framework_id, status);
    }

    /// Sends the current state and last health of each task of an agent that was considered lost and came back.
    pub(super) fn tell_tasks_are_back(&mut self, id: &AgentId) {
        self.paced_messages.cancel_failure(id);
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let statuses: Vec<(FrameworkId, TaskStatus)> = agent
            .tasks
            .values()
            .map(|task| {
                let latest = task.latest_status().unwrap_or_default();
                let status = TaskStatus {
                    healthy: latest.healthy,
                    check_status: latest.check_status,
                    container_status: latest.container_status,
                    ..self.status(MasterTaskStatus {
                        task_id: task.task_id.as_str(),
                        agent_id: Some(id.as_str()),
                        state: task.reported_state(),
                        reason: Reason::AgentReregistered,
                        message: "Unreachable agent re-registered".to_owned(),
                    })
                };
                (task.framework_id.clone(), status)
            })
            .collect();
        for (framework, status) in statuses {
            self.event(&framework, crate::core::tasks::status::update(status));
        }
    }
}
