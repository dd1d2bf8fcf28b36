//! Limits on the descriptions of agents and on the number of agents of one host.
//!
//! `state/agent_info_usage.rs` has the counts and the limits.

use meseta_proto::Invalid;
use meseta_resources::{AgentId, Change};

use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::agent::{Agent, AgentProfile, RecoveredAgent};
use crate::core::state::agent_info_usage::{AGENTS_PER_HOST_MAX, DescribedAgent, Origin, host_of};
use crate::core::state::maintenance::Machine;
use crate::core::state::pending::Pending;
use crate::core::state::rejection::Rejection;

impl MasterCore {
    /// The proven origin of the agent on a connection.
    pub(super) fn origin_of(&self, connection: ConnectionId, hostname: &str) -> Origin {
        Origin::from_caller(self.agent_connections.caller(connection), hostname)
    }

    /// Whether the hostname of the agent on a connection is proven.
    pub(super) fn is_of_proven_host(&self, connection: ConnectionId) -> bool {
        let caller = self.agent_connections.caller(connection);
        caller.is_some_and(|caller| caller.certificate.is_some())
    }

    /// The size of the agent's info in the registry. An earlier master may have accepted it with a larger budget.
    fn known_info_bytes(&self, id: &AgentId) -> usize {
        let here = self.agents.get(id).map(|agent| agent.profile.info_bytes);
        let expected = || Some(self.absent_agents.find_expected(id)?.encoded.len());
        here.or_else(expected).unwrap_or_default()
    }

    /// Refuses an agent whose description exceeds the limit of one agent or of all.
    pub(super) fn check_description(
        &self,
        connection: ConnectionId,
        profile: &AgentProfile,
    ) -> Result<(), Rejection> {
        let memory = &self.config.memory;
        let info_max = memory.agent_info.max(self.known_info_bytes(&profile.id));
        if profile.info_bytes > info_max {
            let text = format!(
                "the agent's description takes {} bytes, and at most {info_max} are kept of it: give the \
                 agent fewer --attributes, or shorter --resources, or raise the master's \
                 --memory_budget",
                profile.info_bytes
            );
            return Err(Rejection::for_now(text));
        }
        let described = DescribedAgent {
            id: &profile.id,
            origin: &self.origin_of(connection, &profile.info.hostname),
            is_proven: self.is_of_proven_host(connection),
            is_expected: self.absent_agents.find_expected(&profile.id).is_some(),
        };
        let checked = self
            .agent_info_usage
            .check(described, profile.bytes, memory.agents);
        checked.map_err(Rejection::for_now)
    }

    /// Counts a registered agent's estimate of revocable resources on top of its description, if there is room.
    pub(super) fn keep_estimate(
        &mut self,
        id: &AgentId,
        oversubscribed_bytes: usize,
    ) -> Result<(), Invalid> {
        let Some(agent) = self.agents.get(id) else {
            return Ok(());
        };
        let bytes = agent.profile.bytes + oversubscribed_bytes;
        let proven = agent
            .connection
            .is_some_and(|on| self.is_of_proven_host(on));
        let Some(origin) = self.agent_info_usage.origin(id) else {
            return Ok(());
        };
        let described = DescribedAgent {
            id,
            origin,
            is_proven: proven,
            is_expected: false,
        };
        let max = self.config.memory.agents;
        self.agent_info_usage.check(described, bytes, max)?;
        self.agent_info_usage.resize(id, bytes);
        if let Some(agent) = self.agents.get_mut(id) {
            agent.oversubscribed_bytes = oversubscribed_bytes;
        }
        Ok(())
    }

    /// Refuses another agent of a host with very many agents. Without certificates, anybody could claim any host.
    pub(super) fn check_agents_of_host(
        &self,
        connection: ConnectionId,
        hostname: &str,
    ) -> Result<(), Rejection> {
        if !self.is_of_proven_host(connection) {
            return Ok(());
        }
        if self.agents_of_host(hostname) < AGENTS_PER_HOST_MAX {
            return Ok(());
        }
        let text = format!(
            "there are {AGENTS_PER_HOST_MAX} agents of this host, and a host has no more: stop \
             some, or mark those gone that will not come back"
        );
        Err(Rejection::for_now(text))
    }

    /// The registered agents of a host.
    pub(super) fn registered_of_host(&self, hostname: &str) -> impl Iterator<Item = &AgentId> {
        let name = host_of(hostname);
        let ways = [name.clone(), format!("{name}.")];
        ways.into_iter().flat_map(move |hostname| {
            let ip = String::new();
            let machine = Machine { hostname, ip };
            self.locations.on(&machine).collect::<Vec<_>>()
        })
    }

    /// The number of agents of a host that are registered, expected or waiting for the registry.
    pub(in crate::core) fn agents_of_host(&self, hostname: &str) -> usize {
        let name = host_of(hostname);
        let expected = self.absent_agents.expected();
        let expected = expected.filter(|(_, agent)| host_of(&agent.info.hostname) == name);
        let waiting = self.effects.newcomers().filter(|profile| {
            host_of(&profile.info.hostname) == name
                && self.absent_agents.find_expected(&profile.id).is_none()
        });
        self.registered_of_host(hostname).count() + expected.count() + waiting.count()
    }

    /// Adds an agent of the registry to the expected ones.
    pub(in crate::core) fn expect_agent(&mut self, id: AgentId, agent: RecoveredAgent) {
        let origin = Origin::host(&agent.info.hostname);
        self.agent_info_usage.set(&id, origin, agent.bytes());
        self.absent_agents.expect(id, agent);
    }

    /// Removes an agent from the expected ones. The agent is lost, unless its reregistration waits for the registry.
    pub(super) fn take_expected(&mut self, id: &AgentId) -> Option<RecoveredAgent> {
        self.count_missing();
        let agent = self.absent_agents.take_expected(id)?;
        self.count_missing();
        if !self.absent_agents.is_returning(id) {
            self.agent_info_usage.remove(id);
        }
        Some(agent)
    }

    /// Counts an agent's description on this connection, in place of the former one.
    pub(super) fn keep_description(&mut self, connection: ConnectionId, profile: &AgentProfile) {
        let origin = self.origin_of(connection, &profile.info.hostname);
        self.agent_info_usage
            .set(&profile.id, origin, profile.bytes);
    }

    /// Counts a registered agent's new description that waits for the registry: the larger of the old and the new
    /// size.
    pub(super) fn keep_larger_description(
        &mut self,
        connection: ConnectionId,
        profile: &AgentProfile,
    ) {
        if profile.bytes > self.agent_info_usage.for_agent(&profile.id) {
            self.keep_description(connection, profile);
        }
    }

    /// Checks that an operation may change a registered agent's resources.
    pub(in crate::core) fn check_description_with(
        &self,
        agent: &Agent,
        change: &Change,
    ) -> Result<(), Invalid> {
        let bytes = agent.profile.bytes_with(change) + agent.oversubscribed_bytes;
        let max = self.config.memory.agents;
        self.agent_info_usage.check_growth(agent.id(), bytes, max)
    }

    /// Counts a registered agent's resources after an operation: the larger size, while the agent waits for the
    /// registry.
    pub(in crate::core) fn keep_changed_description(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let waiting = self.effects.waiting().filter_map(|pending| match pending {
            Pending::Refresh { profile, .. } if profile.id == *id => Some(profile.bytes),
            _ => None,
        });
        let bytes = agent.profile.bytes + agent.oversubscribed_bytes;
        let bytes = waiting.fold(bytes, usize::max);
        self.agent_info_usage.resize(id, bytes);
    }

    /// Counts the former description of a registered agent again, because the new one was not accepted.
    pub(in crate::core) fn keep_former_description(&mut self, id: &AgentId) {
        if let Some(agent) = self.agents.get(id) {
            let former = agent.profile.bytes + agent.oversubscribed_bytes;
            self.agent_info_usage.resize(id, former);
        }
    }

    /// Stops counting an agent's description.
    pub(super) fn drop_description(&mut self, id: &AgentId) {
        self.agent_info_usage.remove(id);
    }

    /// The memory of all agent descriptions.
    #[cfg(test)]
    pub(in crate::core) fn described_bytes(&self) -> usize {
        self.agent_info_usage.sum()
    }
}
