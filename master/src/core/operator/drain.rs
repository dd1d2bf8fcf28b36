//! Agents that get no more work: deactivated, drained, marked gone.
//!
//! The agent itself ends the tasks of a drain. When the last of them is acknowledged, the agent is drained, or gone
//! if the operator requested that. Invariant: a deactivated agent is not offered until it is reactivated, across
//! restarts of master and agent.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_resources::{AgentId, FrameworkId};

use super::refused;
use crate::core::answer::Answer;
use crate::core::ids::ReplyId;
use crate::core::master::MasterCore;
use crate::core::state::absent_agents::AgentLife;
use crate::core::state::deactivation::{Deactivation, Drain};
use crate::core::state::framework::Framework;
use crate::core::state::pending::{OperatorPending, Pending};
use crate::core::state::persisted::Mutation;

impl MasterCore {
    /// The id of an agent for an operator's request, if it is known and not gone.
    fn known_agent(&self, id: &str) -> Result<AgentId, Answer> {
        let id = AgentId::new(id).map_err(|_| refused("Unknown agent"))?;
        if self.absent_agents.is_gone(&id) {
            return Err(refused(format!(
                "Agent '{id}' was marked gone: it runs nothing, and is not taken back"
            )));
        }
        if !self.is_known_agent(&id) {
            return Err(refused("Unknown agent"));
        }
        if self.absent_agents.is_going(&id) {
            return Err(Answer::Conflict("Agent is being marked gone".to_owned()));
        }
        if self.effects.removes(&id) {
            return Err(Answer::Conflict(format!(
                "Agent '{id}' is being removed: there is nothing left to drain or to deactivate"
            )));
        }
        Ok(id)
    }

    fn is_known_agent(&self, id: &AgentId) -> bool {
        match self.life_of(id.as_str()) {
            AgentLife::Registered(_) | AgentLife::Expected(_) | AgentLife::Unreachable(_) => true,
            AgentLife::Gone | AgentLife::Unknown => false,
        }
    }

    pub(super) fn drain_agent(
        &mut self,
        reply: ReplyId,
        id: &str,
        max_grace: Option<Duration>,
        mark_gone: bool,
    ) -> Result<(), Answer> {
        let id = self.known_agent(id)?;
        let maintenance = self.policies.requested_maintenance();
        let is_scheduled = match self.agents.get(&id) {
            Some(agent) if !agent.profile.has(Capability::AgentDraining) => {
                return Err(refused("Agent is not capable of draining"));
            }
            Some(agent) => maintenance.of_agent(&agent.profile).is_some(),
            // The address of an agent that is not back is unknown.
            None => self
                .host_of(&id)
                .is_some_and(|host| maintenance.names_host(host)),
        };
        if is_scheduled {
            return Err(refused(
                "Agent is part of a maintenance schedule: remove its machine from the schedule \
                 to drain it",
            ));
        }
        let deactivation = Deactivation {
            since: self.now.unix,
            drain: Some(Drain {
                max_grace,
                mark_gone,
                drained: false,
            }),
        };
        self.store_deactivation(Some(reply), id, Some(deactivation));
        Ok(())
    }

    pub(super) fn deactivate_agent(&mut self, reply: ReplyId, id: &str) -> Result<(), Answer> {
        let id = self.known_agent(id)?;
        let before = self.policies.requested_deactivation(&id).cloned();
        let deactivation = before.unwrap_or(Deactivation {
            since: self.now.unix,
            drain: None,
        });
        self.store_deactivation(Some(reply), id, Some(deactivation));
        Ok(())
    }

    pub(super) fn reactivate_agent(&mut self, reply: ReplyId, id: &str) -> Result<(), Answer> {
        let id = AgentId::new(id).map_err(|_| refused("Agent is not deactivated"))?;
        let Some(deactivation) = self.policies.requested_deactivation(&id) else {
            return Err(refused("Agent is not deactivated"));
        };
        if deactivation
            .drain
            .as_ref()
            .is_some_and(|drain| !drain.drained)
        {
            return Err(refused("Agent is still in the DRAINING state"));
        }
        if self.absent_agents.is_going(&id) {
            return Err(Answer::Conflict("Agent is being marked gone".to_owned()));
        }
        self.store_deactivation(Some(reply), id, None);
        Ok(())
    }

    fn store_deactivation(
        &mut self,
        reply: Option<ReplyId>,
        agent: AgentId,
        deactivation: Option<Deactivation>,
    ) {
        self.policies
            .request_deactivation(&agent, deactivation.clone());
        self.effects.persist(
            Mutation::PutDeactivation {
                agent_id: agent.to_string(),
                deactivation: deactivation.clone(),
            },
            Pending::Operator(OperatorPending::Deactivation {
                reply,
                agent,
                deactivation,
            }),
        );
    }

    pub(super) fn deactivation_stored(
        &mut self,
        reply: Option<ReplyId>,
        id: &AgentId,
        deactivation: Option<Deactivation>,
    ) {
        let drain = deactivation.as_ref().and_then(|d| d.drain.clone());
        tracing::info!(agent_id = %id, deactivated = deactivation.is_some(), ?drain, "agent's activity changed");
        self.policies.apply_deactivation(id, deactivation);
        self.agents.invalidate(id);
        if self.agents.contains_key(id) {
            self.update_offerability(id);
            self.send_drain(id);
            if !self.policies.maintenance().is_empty() {
                self.schedule_agent(id);
            }
        }
        if let Some(reply) = reply {
            self.reply(reply, Answer::Done);
        }
    }

    /// Updates whether the allocator offers a registered agent; rescinds offers of an agent that may not be offered.
    pub(in crate::core) fn update_offerability(&mut self, id: &AgentId) {
        if self.may_be_offered(id) {
            let activated = self.allocator.activate_agent(id);
            self.agreed("activating an agent", activated);
            self.allocate_due = true;
        } else {
            let deactivated = self.allocator.deactivate_agent(id);
            self.agreed("deactivating an agent", deactivated);
            self.rescind_offers_of_agent(id);
        }
    }

    /// Whether a registered agent may be offered: it is connected, has something to offer, has a responding disk, and
    /// no operator has deactivated it.
    pub(in crate::core) fn may_be_offered(&self, id: &AgentId) -> bool {
        let is_here = self.agents.get(id).is_some_and(|agent| {
            agent.connection.is_some() && agent.profile.is_offerable() && !agent.disk_silent
        });
        is_here && self.policies.deactivation(id).is_none()
    }

    /// Sends the drain request to an agent, if its deactivation includes a drain, and watches its tasks until they
    /// have ended.
    pub(in crate::core) fn send_drain(&mut self, id: &AgentId) {
        let deactivation = self.policies.deactivation(id);
        let drain = deactivation.and_then(|deactivation| deactivation.drain.as_ref());
        if let Some(drain) = drain.filter(|drain| !drain.drained) {
            let config = drain.to_wire().config;
            self.frame(id, master_frame::Message::Drain(meseta::Drain { config }));
            // The agent may have no tasks.
            self.agents.watch(id);
            self.agents.invalidate(id);
        }
    }

    /// Handles the removal of an unreachable agent from the registry, together with its deactivation. If the agent is
    /// being readmitted, its deactivation is stored again.
    pub(in crate::core) fn unreachable_pruned(&mut self, id: &AgentId) {
        if !self.absent_agents.is_returning(id) {
            self.absent_agents.forget_unreachable(id);
            self.forget_deactivation(id);
            return;
        }
        let requested = self.policies.requested_deactivation(id);
        if let Some(deactivation) = requested.cloned() {
            self.store_deactivation(None, id.clone(), Some(deactivation));
        }
    }

    /// Forgets the deactivation of an agent that no longer exists.
    pub(in crate::core) fn forget_deactivation(&mut self, id: &AgentId) {
        self.policies.apply_deactivation(id, None);
        self.agents.invalidate(id);
        self.policies.request_deactivation(id, None);
    }

    /// Completes the drain of changed agents without tasks.
    pub(in crate::core) fn check_drains(&mut self) {
        for id in self.agents.take_watched_changes() {
            if !self.policies.is_draining(&id) {
                continue;
            }
            if !self.is_idle(&id) {
                self.agents.watch(&id);
                continue;
            }
            let requested = self.policies.requested_deactivation(&id);
            let Some(mut deactivation) = requested.cloned() else {
                continue;
            };
            let Some(drain) = deactivation.drain.as_mut().filter(|drain| !drain.drained) else {
                continue;
            };
            drain.drained = true;
            let mark_gone = drain.mark_gone;
            if self.effects.removes(&id) {
                continue;
            }
            tracing::info!(agent_id = %id, mark_gone, "agent drained");
            if mark_gone {
                self.begin_going(None, id);
            } else {
                self.store_deactivation(None, id, Some(deactivation));
            }
        }
    }

    /// Returns true if the drain of an agent is complete.
    pub(in crate::core) fn is_idle(&self, id: &AgentId) -> bool {
        let is_away = |framework: &FrameworkId| {
            let framework = self.frameworks.get(framework);
            framework.is_some_and(Framework::is_away)
        };
        let agent = self.agents.get(id);
        agent.is_some_and(|agent| agent.is_idle(is_away))
    }

    /// Checks drains again after a framework disconnected, because its acknowledgements no longer delay them.
    pub(in crate::core) fn recheck_drains_of(&mut self, id: &FrameworkId) {
        let Some(framework) = self.frameworks.get(id) else {
            return;
        };
        let of_operations = self.operations.named_after(id, None);
        let of_operations = of_operations.map(|(_, (agent, _))| agent);
        let agents = framework.agents().keys().chain(of_operations);
        let agents: BTreeSet<AgentId> = agents.cloned().collect();
        for id in agents {
            if self.policies.is_draining(&id) {
                self.agents.watch(&id);
                self.agents.invalidate(&id);
            }
        }
    }

    pub(super) fn mark_agent_gone(&mut self, reply: ReplyId, id: &str) -> Result<(), Answer> {
        let not_found = || Answer::NotFound(format!("Agent '{}' not found", id.escape_debug()));
        let id = AgentId::new(id).map_err(|_| not_found())?;
        if self.absent_agents.is_gone(&id) {
            self.reply(reply, Answer::Done);
            return Ok(());
        }
        let is_changing = self
            .agents
            .get(&id)
            .is_some_and(|agent| agent.removal_pending)
            || self.absent_agents.is_changing(&id);
        if is_changing {
            return Err(Answer::Unavailable(format!(
                "Agent '{id}' is being marked or admitted: try again"
            )));
        }
        if !self.is_known_agent(&id) {
            return Err(not_found());
        }
        self.begin_going(Some(reply), id);
        Ok(())
    }

    fn begin_going(&mut self, reply: Option<ReplyId>, agent: AgentId) {
        if let Some(agent_entry) = self.agents.get_mut(&agent)
            && std::mem::replace(&mut agent_entry.removal_pending, true)
        {
            return;
        }
        if !self.absent_agents.begin_going(agent.clone()) {
            return;
        }
        self.policies.request_deactivation(&agent, None);
        let since = self.now.unix;
        self.effects.persist(
            Mutation::MarkGone {
                agent_id: agent.to_string(),
                since,
            },
            Pending::Operator(OperatorPending::Gone {
                reply,
                agent,
                since,
            }),
        );
    }

    pub(super) fn gone_stored(&mut self, reply: Option<ReplyId>, id: &AgentId, since: Duration) {
        self.absent_agents.end_going(id);
        self.policies.apply_deactivation(id, None);
        self.agents.invalidate(id);
        self.absent_agents.mark_gone(id.clone(), since);
        let shutdown = meseta::Shutdown {
            reason: "the agent was marked gone".to_owned(),
        };
        if self.agents.contains_key(id) {
            self.frame(id, master_frame::Message::Shutdown(shutdown));
        }
        self.agent_marked_gone(id);
        if let Some(reply) = reply {
            self.reply(reply, Answer::Done);
        }
    }
}
