//! Registration and reregistration of agents.
//!
//! An agent identifies itself by the first frame of a connection. The master admits the agent once the registry has
//! stored it, and answers only then. Invariants: an agent id belongs to one live connection; an agent cannot bring an
//! id that this master has yet to assign.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
use meseta_proto::mesos::v1;
use meseta_resources::AgentId;

use super::adoption::ReregistrationKind;
use super::partial_reregistrations::{NOT_GIVEN, reregister_without_tasks};
use super::predecessors::said_before;
use super::profile::{profile, record};
use crate::core::effect::Output;
use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::agent::{Agent, AgentProfile, RecoveredAgent};
use crate::core::state::operation_usage::OperationUsage;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::{AgentRecord, Mutation};
use crate::core::state::rejection::Rejection;
use crate::core::state::task::{TaskRecord, is_terminal};
use crate::core::state::unknown_task_updates::UnknownTaskUpdates;

impl MasterCore {
    /// Handles the first frame of a connection.
    pub(in crate::core) fn handshake(
        &mut self,
        connection: ConnectionId,
        message: agent_frame::Message,
    ) {
        if self.agent_connections.is_in_handshake(connection) {
            self.counters.dropped_messages += 1;
            return;
        }
        if self.effects.is_busy() {
            self.refuse_agent(
                connection,
                Rejection::for_now("the master is busy admitting others"),
            );
            return;
        }
        let result = match message {
            agent_frame::Message::Register(register) => self.register(connection, register),
            agent_frame::Message::Reregister(report) => {
                let report = self.complete_reregistration(connection, report);
                self.reregister(connection, report)
            }
            agent_frame::Message::ReregisterPart(part) => {
                self.add_reregistration_part(connection, part)
            }
            _ => Err(Rejection::permanent(
                "the first frame must register the agent",
            )),
        };
        self.conclude_handshake(connection, result);
    }

    /// Sends the rejection if the agent is not accepted.
    pub(super) fn conclude_handshake(
        &mut self,
        connection: ConnectionId,
        result: Result<(), Rejection>,
    ) {
        if let Err(rejection) = result {
            self.forget_partial_reregistration(connection);
            self.refuse_agent(connection, rejection);
        }
    }

    pub(super) fn refuse_agent(&mut self, connection: ConnectionId, rejection: Rejection) {
        let Rejection {
            reason,
            is_permanent: permanent,
        } = rejection;
        tracing::warn!(%connection, %reason, permanent, "agent refused");
        self.frame_to(
            connection,
            master_frame::Message::Refused(meseta::Refused { reason, permanent }),
        );
        self.effects.emit(Output::CloseAgent {
            connection,
            reason: "refused",
        });
    }

    fn register(
        &mut self,
        connection: ConnectionId,
        register: meseta::Register,
    ) -> Result<(), Rejection> {
        let id = self.issued_ids.next_agent();
        let id = id.map_err(Rejection::permanent)?;
        let profile = profile(id, register.clone()).map_err(Rejection::permanent)?;
        self.check_agent_is_authorized(connection, &profile, None)?;
        self.check_domain(&profile)?;
        self.check_machine_is_up(connection, &profile)?;
        self.check_is_newest(connection, self.agents_at(&profile))?;
        if let Some(id) = self.silent_predecessor(&profile) {
            return self.reregister(connection, reregister_without_tasks(register, &id));
        }
        self.check_agents_of_host(connection, &profile.info.hostname)?;
        self.check_description(connection, &profile)?;
        self.issued_ids.assign_agent();
        self.counters.agent_frame("register");
        self.replace_lost_predecessor(&profile);
        self.replace_expected_predecessors(&profile);
        self.agent_connections.begin_handshake(connection);
        self.keep_description(connection, &profile);
        let profile = Arc::new(profile);
        self.effects.persist(
            Mutation::PutAgent(record(&profile)),
            Pending::Admit {
                connection,
                profile,
            },
        );
        Ok(())
    }

    pub(super) fn reregister(
        &mut self,
        connection: ConnectionId,
        report: meseta::Reregister,
    ) -> Result<(), Rejection> {
        let id = report
            .register
            .agent_info
            .id
            .as_ref()
            .map_or("", |id| id.value.as_str());
        let id = AgentId::new(id).map_err(Rejection::permanent)?;
        if self.issued_ids.is_future_agent(&id) {
            return Err(Rejection::permanent(NOT_GIVEN));
        }
        // An agent without the right certificate must not learn the fate of the agent with this id.
        self.check_agent_is_certified(connection, &report.register.agent_info.hostname, Some(&id))?;
        if self.absent_agents.is_gone(&id) {
            // An agent that obeys only higher epochs would ignore this shutdown too.
            if let Some(epoch) = self.epoch_needed(&report.register)? {
                return self.raise_epoch(&id, epoch, connection, report);
            }
            let shutdown = meseta::Shutdown {
                reason: "the agent was marked gone".to_owned(),
            };
            self.frame_to(connection, master_frame::Message::Shutdown(shutdown));
            return Err(Rejection::permanent("the agent was marked gone"));
        }
        // An agent admitted now would be back after frameworks learned that it is gone.
        if self.absent_agents.is_going(&id) {
            return Err(Rejection::for_now("the agent is being marked gone"));
        }
        let profile = profile(id.clone(), report.register.clone()).map_err(Rejection::permanent)?;
        self.check_agent_is_authorized(connection, &profile, Some(&id))?;
        self.check_domain(&profile)?;
        self.check_machine_is_up(connection, &profile)?;
        if let Some(epoch) = self.epoch_needed(&report.register)? {
            return self.raise_epoch(&id, epoch, connection, report);
        }
        let profile = Arc::new(profile);
        self.counters.agent_frame("reregister");
        if self.absent_agents.is_returning(&id) {
            return Err(Rejection::for_now(
                "an earlier return of this agent is still being admitted",
            ));
        }
        let Some(agent) = self.agents.get(&id) else {
            if self.absent_agents.find_expected(&id).is_none() {
                self.check_agents_of_host(connection, &profile.info.hostname)?;
            }
            self.check_description(connection, &profile)?;
            self.agent_connections.begin_handshake(connection);
            self.keep_description(connection, &profile);
            let record = record(&profile);
            if self.is_registered_as(&record, &id) {
                self.readmit(connection, profile, report);
                return Ok(());
            }
            self.absent_agents.begin_return(id);
            self.effects.persist(
                Mutation::PutAgent(record),
                Pending::Readmit {
                    connection,
                    profile,
                    report: Box::new(report),
                },
            );
            return Ok(());
        };
        self.check_is_newest(connection, std::iter::once(agent))?;
        if agent.removal_pending {
            return Err(Rejection::for_now(
                "the agent is being marked unreachable or removed",
            ));
        }
        if agent.connection.is_some() && agent.profile.pid() != profile.pid() {
            return Err(Rejection::for_now(format!(
                "an agent with this id is connected from {}",
                agent.profile.pid()
            )));
        }
        self.check_description(connection, &profile)?;
        if agent.profile.info == profile.info {
            self.resume(connection, profile, report);
        } else {
            self.agent_connections.begin_handshake(connection);
            self.keep_larger_description(connection, &profile);
            self.effects.persist(
                Mutation::PutAgent(record(&profile)),
                Pending::Refresh {
                    connection,
                    profile,
                    report: Box::new(report),
                },
            );
        }
        Ok(())
    }

    /// Whether the registry already has this record and will keep it: after a failover most agents are unchanged, and
    /// need no write.
    fn is_registered_as(&self, record: &AgentRecord, id: &AgentId) -> bool {
        let expected = self.absent_agents.find_expected(id);
        expected.is_some_and(|agent| !agent.removal_pending && agent.encoded == record.info)
    }

    /// Rejects an agent whose machine is down, or is being brought down.
    fn check_machine_is_up(
        &mut self,
        connection: ConnectionId,
        profile: &AgentProfile,
    ) -> Result<(), Rejection> {
        if !self.policies.maintenance().is_down(profile) {
            // An agent admitted now would remain after all agents of the machine were shut down.
            return match self.policies.requested_maintenance().is_down(profile) {
                true => Err(Rejection::for_now(
                    "the machine is being brought down for maintenance",
                )),
                false => Ok(()),
            };
        }
        let reason = "the machine is down for maintenance".to_owned();
        let shutdown = meseta::Shutdown {
            reason: reason.clone(),
        };
        self.frame_to(connection, master_frame::Message::Shutdown(shutdown));
        Err(Rejection::permanent(reason))
    }

    pub(in crate::core) fn admit_agent(
        &mut self,
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
    ) {
        if !self.agent_connections.end_handshake(connection) {
            self.drop_description(&profile.id);
            // The agent left before it learned its id, so nobody will ever use the id.
            let agent = profile.id.clone();
            self.effects.persist(
                Mutation::RemoveAgent {
                    agent_id: agent.to_string(),
                },
                Pending::Removed {
                    agent,
                    why: "it left before it was admitted",
                },
            );
            return;
        }
        self.counters.agent_registrations += 1;
        let id = profile.id.clone();
        tracing::info!(agent_id = %id, hostname = %profile.info.hostname.escape_debug(), resources = %profile.total, "agent registered");
        if self.insert_agent(connection, profile, self.now.unix) {
            self.announce_agent(&id, Vec::new());
        }
    }

    /// Adds a new agent without tasks to the tables. An agent that exists already stays.
    pub(in crate::core) fn insert_agent(
        &mut self,
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
        registered: Duration,
    ) -> bool {
        let id = profile.id.clone();
        if self.agents.contains_key(&id) {
            self.keep_former_description(&id);
            self.counters.invariant_violations += 1;
            let text = "there is an agent with this id".to_owned();
            self.refuse_agent(connection, Rejection::for_now(text));
            return false;
        }
        self.agent_connections.assign(connection, id.clone());
        self.keep_description(connection, &profile);
        self.locations.add(&profile);
        self.count_missing();
        self.agents.insert(
            id,
            Agent {
                profile,
                oversubscribed_bytes: 0,
                connection: Some(connection),
                newest_connection: connection,
                generation: 1,
                registered,
                reregistered: None,
                tasks: Arc::default(),
                apart: BTreeMap::new(),
                in_executors: BTreeMap::new(),
                executors: Arc::default(),
                operations: Arc::default(),
                operation_usage: OperationUsage::default(),
                offers: BTreeSet::new(),
                inverse_replies: BTreeMap::new(),
                used: Arc::default(),
                kills: BTreeMap::new(),
                unknown_task_updates: UnknownTaskUpdates::default(),
                ping_sequence: 0,
                pong_sequence: 0,
                missed_pings: 0,
                usage: None,
                disk_silent: false,
                removal_pending: false,
                keeps_id: false,
            },
        );
        self.count_missing();
        true
    }

    /// Adds the agent to the allocator and sends the agent its registration.
    fn announce_agent(&mut self, id: &AgentId, unknown: Vec<meseta::TaskToReconcile>) {
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let generation = agent.generation;
        let is_offerable = agent.profile.is_offerable();
        let added = self.allocator.add_agent(agent);
        self.agreed("adding an agent", added);
        self.schedule_agent(id);
        if !is_offerable {
            tracing::warn!(agent_id = %id, "agent has no cpus or no mem and is never offered");
        }
        if !self.may_be_offered(id) {
            let deactivated = self.allocator.deactivate_agent(id);
            self.agreed("deactivating an agent", deactivated);
        }
        self.send_registered(id, unknown, Vec::new());
        self.send_drain(id);
        self.publish_agent(id);
        self.set_ping(id.clone(), generation, Duration::ZERO);
        self.allocate_due = true;
    }

    fn send_registered(
        &mut self,
        id: &AgentId,
        unknown_tasks: Vec<meseta::TaskToReconcile>,
        unknown_operations: Vec<v1::Uuid>,
    ) {
        let registered = meseta::Registered {
            agent_id: id.into(),
            total_ping_timeout_seconds: self.config.total_ping_timeout().as_secs_f64(),
            unknown_tasks,
            master_info: Some(self.config.identity.to_wire()),
            unknown_operations,
        };
        self.frame(id, master_frame::Message::Registered(registered));
    }

    /// Readmits an agent of the registry, or an unreachable one, with its tasks.
    pub(in crate::core) fn readmit(
        &mut self,
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
        mut report: meseta::Reregister,
    ) {
        let id = profile.id.clone();
        self.absent_agents.end_return(&id);
        let expected = self.absent_agents.find_expected(&id);
        let was_expected_back = expected.is_some_and(|expected| expected.was_unreachable);
        let was_unreachable = self.absent_agents.forget_unreachable(&id) || was_expected_back;
        if !self.agent_connections.end_handshake(connection) {
            // Admitted, but disconnected again: it is expected like any other agent of the registry.
            let agent = RecoveredAgent {
                info: Arc::new(profile.info.clone()),
                encoded: record(&profile).info,
                removal_pending: false,
                was_unreachable,
            };
            self.expect_agent(id, agent);
            let until = self.now.moment + self.config.agent_reregister_timeout;
            self.expect_returns_until(until);
            return;
        }
        self.count_missing();
        let is_expected = self.absent_agents.take_expected(&id).is_some();
        self.counters.agent_reregistrations += 1;
        tracing::info!(agent_id = %id, tasks = report.tasks.len(), "agent back");
        self.replace_expected_predecessors(&profile);
        if !self.insert_agent(connection, profile, self.now.unix) {
            return;
        }
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.reregistered = Some(self.now.unix);
            agent.keeps_id = true;
        }
        let back = if is_expected {
            ReregistrationKind::Expected
        } else {
            ReregistrationKind::Unexpected
        };
        let tasks = self.read_reported_tasks(&id, std::mem::take(&mut report.tasks));
        let finished = self.adopt(&id, &report, tasks, back);
        self.confirm_unproven_owners();
        self.adopt_operations(&id, &report);
        self.announce_agent(&id, Vec::new());
        for framework in finished {
            self.shut_down_on(&id, &framework);
        }
        self.resend_kills(&id);
        if was_unreachable {
            self.tell_tasks_are_back(&id);
        }
    }

    /// Resumes a registered agent, on this or a new connection.
    pub(in crate::core) fn resume(
        &mut self,
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
        mut report: meseta::Reregister,
    ) {
        let id = profile.id.clone();
        let Some(agent) = self.agents.get_mut(&id) else {
            self.refuse_agent(
                connection,
                Rejection::for_now("the agent was removed meanwhile"),
            );
            return;
        };
        if agent.is_newer_than(connection) {
            let rejection = said_before(agent);
            self.keep_changed_description(&id);
            self.refuse_agent(connection, rejection);
            return;
        }
        let previous = agent.connection.replace(connection);
        agent.newest_connection = connection;
        agent.generation += 1;
        agent.reregistered = Some(self.now.unix);
        agent.missed_pings = 0;
        agent.pong_sequence = agent.ping_sequence;
        let before = std::mem::replace(&mut agent.profile, profile.clone());
        agent.oversubscribed_bytes = 0;
        self.locations.remove(&before);
        self.locations.add(&profile);
        let generation = agent.generation;
        self.keep_description(connection, &profile);
        // The description from an earlier connection may still wait for the registry.
        self.keep_changed_description(&id);
        let census = self.census();
        self.silent_agents.hear(&id, census);
        self.agent_connections.assign(connection, id.clone());
        if let Some(previous) = previous {
            self.agent_connections.release(previous);
            self.effects.emit(Output::CloseAgent {
                connection: previous,
                reason: "the agent has a newer connection",
            });
            self.rescind_offers_of_agent(&id);
        }
        self.counters.agent_reregistrations += 1;
        tracing::info!(agent_id = %id, tasks = report.tasks.len(), "agent reconnected");
        let tasks = self.read_reported_tasks(&id, std::mem::take(&mut report.tasks));
        let unknown = self.tasks_unknown_to(&id, &tasks);
        self.drop_executors_unknown_to(&id, &report);
        let finished = self.adopt(&id, &report, tasks, ReregistrationKind::Registered);
        let unknown_operations = self.adopt_operations(&id, &report);
        if let Some(agent) = self.agents.get(&id) {
            let updated = self.allocator.update_agent(agent);
            self.agreed("updating an agent", updated);
            let switched = if self.may_be_offered(&id) {
                self.allocator.activate_agent(&id)
            } else {
                self.allocator.deactivate_agent(&id)
            };
            self.agreed("activating an agent", switched);
        }
        self.schedule_agent(&id);
        self.send_registered(&id, unknown, unknown_operations);
        self.send_drain(&id);
        for framework in finished {
            self.shut_down_on(&id, &framework);
        }
        self.resend_kills(&id);
        self.set_ping(id, generation, Duration::ZERO);
        self.allocate_due = true;
    }

    fn resend_kills(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        // A kill for a task without a record is sent only once, because nobody gets a status of its end.
        let sent = agent.kills.clone();
        let tasks = agent.tasks.clone();
        agent.kills.retain(|key, _| tasks.contains_key(key));
        for ((framework, task), policy) in sent {
            self.send_kill(id, &framework, &task, policy);
        }
    }

    /// Live tasks of the master's record that the agent did not report: the agent must report their states. Ended
    /// ones need no report.
    fn tasks_unknown_to(
        &mut self,
        id: &AgentId,
        reported: &[meseta::ReportedTask],
    ) -> Vec<meseta::TaskToReconcile> {
        let named: BTreeSet<(&str, &str)> = reported
            .iter()
            .map(|task| {
                (
                    task.framework_id.value.as_str(),
                    task.task_id.value.as_str(),
                )
            })
            .collect();
        let Some(agent) = self.agents.get(id) else {
            return Vec::new();
        };
        let missing: Vec<Arc<TaskRecord>> = agent
            .tasks
            .values()
            .filter(|task| !named.contains(&(task.framework_id.as_str(), task.task_id.as_str())))
            .cloned()
            .collect();
        let mut unknown = Vec::new();
        for task in missing {
            if is_terminal(task.state) {
                self.complete_task(id, &task.framework_id, &task.task_id);
                continue;
            }
            let framework = self.frameworks.get(&task.framework_id);
            unknown.push(meseta::TaskToReconcile {
                framework_id: (&task.framework_id).into(),
                task_id: (&task.task_id).into(),
                partition_aware: framework
                    .is_some_and(|framework| framework.terms.capabilities.partition_aware),
            });
        }
        unknown
    }

    /// Removes executors that the agent did not report.
    fn drop_executors_unknown_to(&mut self, id: &AgentId, report: &meseta::Reregister) {
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let named: BTreeSet<(&str, &str)> = report
            .executors
            .iter()
            .filter_map(|info| {
                let framework = info.framework_id.as_ref()?;
                Some((framework.value.as_str(), info.executor_id.value.as_str()))
            })
            .collect();
        let missing: Vec<_> = agent
            .executors
            .keys()
            .filter(|(framework, executor)| {
                !named.contains(&(framework.as_str(), executor.as_str()))
            })
            .cloned()
            .collect();
        for (framework, executor) in missing {
            self.remove_executor(id, &framework, &executor);
        }
    }
}
