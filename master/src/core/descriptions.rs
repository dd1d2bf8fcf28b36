//! What agents say of themselves, in bytes, and how many agents there are of one host.
//!
//! An agent's description is kept for as long as the agent is known, in the registry as well, and is shown whole to
//! whoever looks: an agent that lies about itself must not fill the memory with it. Invariant: what is kept of all
//! agents that are here, are expected or wait for the registry is counted, and no agent is added beyond the limit.

use meseta_resources::AgentId;

use super::MasterCore;
use super::agent::{AgentProfile, RecoveredAgent};
use super::io::ConnectionId;
use super::operator::Machine;

/// Agents of a host that has shown its certificate. An honest host has one, and a few more where versions or
/// settings are tried side by side.
const AGENTS_PER_HOST_MAX: usize = 32;

/// A host's name as others compare it.
fn host_of(hostname: &str) -> String {
    let name = hostname.strip_suffix('.').unwrap_or(hostname);
    name.to_lowercase()
}

impl MasterCore {
    /// Refuses an agent that says more of itself than may be kept, of one or of all. `before` is what is kept of
    /// it already.
    pub(super) fn check_description(
        &self,
        profile: &AgentProfile,
        before: usize,
    ) -> Result<(), (String, bool)> {
        let memory = &self.config.memory;
        if profile.info_bytes > memory.agent_info {
            let text = format!(
                "the agent's description takes {} bytes, and at most {} are kept of one: give the \
                 agent fewer --attributes, or shorter --resources, or raise the master's \
                 --memory_budget",
                profile.info_bytes, memory.agent_info
            );
            return Err((text, false));
        }
        let all = (self.described_bytes + profile.bytes).saturating_sub(before);
        if profile.bytes > before && all > memory.agents {
            let text = format!(
                "the descriptions of all agents would take {all} bytes, and at most {} are kept: \
                 raise the master's --memory_budget",
                memory.agents
            );
            return Err((text, false));
        }
        Ok(())
    }

    /// Refuses one more agent of a host that has very many. Without certificates anybody could name any host.
    pub(super) fn check_agents_of_host(
        &self,
        connection: ConnectionId,
        hostname: &str,
    ) -> Result<(), (String, bool)> {
        let caller = self.agent_callers.get(&connection);
        if caller.is_none_or(|caller| caller.certificate.is_none()) {
            return Ok(());
        }
        if self.agents_of_host(hostname) < AGENTS_PER_HOST_MAX {
            return Ok(());
        }
        let text = format!(
            "there are {AGENTS_PER_HOST_MAX} agents of this host, and a host has no more: stop \
             some, or mark those gone that will not come back"
        );
        Err((text, false))
    }

    /// How many agents of a host are here, are expected or wait for the registry.
    pub(super) fn agents_of_host(&self, hostname: &str) -> usize {
        let name = host_of(hostname);
        let here = [name.clone(), format!("{name}.")].map(|hostname| {
            let ip = String::new();
            self.locations.on(&Machine { hostname, ip }).count()
        });
        let expected = self.recovered_agents.values();
        let expected = expected.filter(|agent| host_of(&agent.info.hostname) == name);
        let waiting = self.pending.iter();
        let waiting = waiting.filter_map(|(_, pending)| pending.newcomer());
        let waiting = waiting.filter(|profile| {
            host_of(&profile.info.hostname) == name
                && !self.recovered_agents.contains_key(&profile.id)
        });
        here.iter().sum::<usize>() + expected.count() + waiting.count()
    }

    /// Expects an agent of the registry to come back.
    pub(super) fn expect_agent(&mut self, id: AgentId, agent: RecoveredAgent) {
        self.described_bytes += agent.bytes();
        if let Some(before) = self.recovered_agents.insert(id, agent) {
            self.described_bytes = self.described_bytes.saturating_sub(before.bytes());
        }
    }

    /// An agent of the registry is expected no more.
    pub(super) fn take_expected(&mut self, id: &AgentId) -> Option<RecoveredAgent> {
        let agent = self.recovered_agents.remove(id)?;
        self.described_bytes = self.described_bytes.saturating_sub(agent.bytes());
        Some(agent)
    }

    /// Counts a description in.
    pub(super) fn keep_description(&mut self, profile: &AgentProfile) {
        self.described_bytes += profile.bytes;
    }

    /// Counts it out again.
    pub(super) fn drop_description(&mut self, profile: &AgentProfile) {
        self.described_bytes = self.described_bytes.saturating_sub(profile.bytes);
    }

    /// What is kept, counted anew: the sum has to agree.
    #[cfg(test)]
    pub(super) fn check_descriptions(&self) {
        use super::pending::Pending;
        let agents = self.agents.values().map(|agent| agent.profile.bytes);
        let expected = self.recovered_agents.values().map(RecoveredAgent::bytes);
        let waiting = self.pending.iter().map(|(_, pending)| match pending {
            Pending::Admit { profile, .. } | Pending::Readmit { profile, .. } => profile.bytes,
            _ => 0,
        });
        let all: usize = agents.chain(expected).chain(waiting).sum();
        assert_eq!(self.described_bytes, all);
    }
}
