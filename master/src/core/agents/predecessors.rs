//! Predecessors of an agent: its earlier connections, and earlier agents at its location.
//!
//! Two agents cannot listen at one address of one host, so a new agent replaces the disconnected ones at that
//! address. Invariant: a message on a connection that the agent has abandoned never counts as newer than its later
//! messages.

use meseta_resources::AgentId;

use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::agent::{Agent, AgentProfile};
use crate::core::state::pending::Pending;
use crate::core::state::persisted::Mutation;
use crate::core::state::rejection::Rejection;

impl MasterCore {
    /// Refuses a message on an earlier connection of an agent that has since returned on another. Connections are
    /// numbered in the order of their accept, so the newest connection of an agent, or of its successor at the
    /// location, is the current one.
    pub(super) fn check_is_newest<'a>(
        &self,
        connection: ConnectionId,
        mut agents: impl Iterator<Item = &'a Agent>,
    ) -> Result<(), Rejection> {
        match agents.find(|agent| agent.is_newer_than(connection)) {
            Some(agent) => Err(said_before(agent)),
            None => Ok(()),
        }
    }

    /// Finds an admitted agent at the same location that has never sent anything: the registering agent is that one,
    /// because it ended before it stored its id.
    pub(super) fn silent_predecessor(&self, profile: &AgentProfile) -> Option<AgentId> {
        let silent = |agent: &&Agent| !agent.keeps_id && agent.connection.is_none();
        let found = self.agents_at(profile).find(silent);
        found.map(|agent| agent.id().clone())
    }

    /// Removes a disconnected agent at the location of a newly registering one, which has forgotten its former id.
    pub(super) fn replace_lost_predecessor(&mut self, profile: &AgentProfile) {
        let lost = |agent: &&Agent| agent.connection.is_none() && !agent.removal_pending;
        let found = self.agents_at(profile).find(lost);
        let Some(id) = found.map(|agent| agent.id().clone()) else {
            return;
        };
        if let Some(agent) = self.agents.get_mut(&id) {
            agent.removal_pending = true;
        }
        self.remove_predecessor(id, "a new agent registered at the same address");
    }

    /// Removes agents of the registry at the location of another agent, because they will not return. Usually they
    /// are ids that this very agent never learned, because the master that assigned them was replaced: as expected
    /// agents they would make a master suspect that it is cut off.
    pub(super) fn replace_expected_predecessors(&mut self, profile: &AgentProfile) {
        let there = self.absent_agents.expected_at(&profile.info);
        let others: Vec<_> = there.filter(|id| **id != profile.id).cloned().collect();
        for id in others {
            if self.effects.is_busy() || self.absent_agents.begin_removal(&id).is_none() {
                continue;
            }
            self.remove_predecessor(id, "another agent registered at the same address");
        }
    }

    /// Removes an agent whose location belongs to another agent now.
    fn remove_predecessor(&mut self, agent: AgentId, why: &'static str) {
        self.counters.agent_removals_registered += 1;
        let agent_id = agent.to_string();
        let removal = Mutation::RemoveAgent { agent_id };
        self.effects
            .persist(removal, Pending::Removed { agent, why });
    }
}

/// The rejection on an abandoned connection: the agent has since returned on another.
pub(super) fn said_before(agent: &Agent) -> Rejection {
    Rejection::for_now(format!(
        "agent {} has registered on a newer connection",
        agent.id()
    ))
}
