//! Admission: checks by ACLs, certificate and domain which agents may join and which may be offered.

use std::collections::BTreeSet;
use std::sync::Arc;

use meseta_access::Action;
use meseta_resources::AgentId;

use crate::core::authorization::NOT_AUTHORIZED;
use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::absent_agents::AgentLife;
use crate::core::state::agent::{Agent, AgentProfile};
use crate::core::state::rejection::Rejection;

impl MasterCore {
    /// Rejects an agent with a domain if the master has none, or without one if --require_agent_domain is set. The
    /// rejection is not permanent: the agent retries.
    pub(super) fn check_domain(&self, profile: &AgentProfile) -> Result<(), Rejection> {
        let reason = match &profile.info.domain {
            Some(_) if self.config.identity.domain.is_none() => {
                "the agent has a --domain and this master has none, so that it cannot tell whether the \
                 agent is remote: give the master one too"
            }
            None if self.config.require_agent_domain => {
                "the agent has no domain, and this master has --require_agent_domain: give the agent a \
                 --domain"
            }
            Some(_) | None => return Ok(()),
        };
        Err(Rejection::for_now(reason))
    }

    /// Updates the whitelist. Outstanding offers stay, as in Mesos.
    pub(in crate::core) fn update_whitelist(&mut self, hosts: Option<&BTreeSet<Arc<str>>>) {
        self.allocator.update_whitelist(hosts.cloned());
        self.allocate_due = true;
    }

    /// Rejects an agent without the right to join, or without that to its static reservations.
    pub(super) fn check_agent_is_authorized(
        &self,
        connection: ConnectionId,
        profile: &AgentProfile,
        id: Option<&AgentId>,
    ) -> Result<(), Rejection> {
        self.check_agent_is_certified(connection, &profile.info.hostname, id)?;
        let Some(caller) = self.agent_connections.caller(connection) else {
            return Ok(());
        };
        let approver = &caller.approver;
        let decision = approver.check(Action::RegisterAgent, None);
        let decision = decision.and_then(|()| {
            let fixed = profile
                .total
                .iter()
                .filter(|resource| resource.is_reserved() && !resource.is_dynamically_reserved());
            let mut roles = fixed.filter_map(|resource| resource.reservation_role());
            roles.try_for_each(|role| approver.check(Action::ReserveResources, Some(role.as_str())))
        });
        let outcome = decision.as_ref().err().map(ToString::to_string);
        caller.audit(
            "REGISTER_AGENT",
            &profile.info.hostname,
            outcome.as_deref().unwrap_or("authorized"),
        );
        // An operator may correct the ACLs, so the agent should retry.
        decision.map_err(|forbidden| {
            let text = format!(
                "{NOT_AUTHORIZED} to register an agent that provides {}: {forbidden}",
                profile.total
            );
            Rejection::for_now(text)
        })
    }

    /// Rejects an agent whose certificate is for another host, or whose id belongs to an agent admitted from another
    /// host.
    pub(super) fn check_agent_is_certified(
        &self,
        connection: ConnectionId,
        hostname: &str,
        id: Option<&AgentId>,
    ) -> Result<(), Rejection> {
        let caller = self.agent_connections.caller(connection);
        let Some(certificate) = caller.and_then(|caller| caller.certificate.as_ref()) else {
            return Ok(());
        };
        if !certificate.is_for(hostname) {
            let text = format!(
                "the agent's certificate is not one for '{}': give the agent the --hostname that \
                 its certificate names, or a certificate for that host",
                hostname.escape_debug()
            );
            return Err(Rejection::for_now(text));
        }
        match id.and_then(|id| self.host_of(id)) {
            Some(known) if !certificate.is_for(known) => {
                let text = "the agent's certificate is not one for the host that this agent was \
                            admitted from";
                Err(Rejection::for_now(text))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The host from which an agent was admitted, whether it is registered, expected, or unreachable.
    pub(in crate::core) fn host_of(&self, id: &AgentId) -> Option<&str> {
        let host = match self.life_of(id.as_str()) {
            AgentLife::Registered(agent) => &agent.profile.info.hostname,
            AgentLife::Expected(agent) => &agent.info.hostname,
            AgentLife::Unreachable(agent) => &agent.hostname,
            AgentLife::Gone | AgentLife::Unknown => return None,
        };
        // Older masters did not record the host.
        (!host.is_empty()).then_some(host)
    }

    /// The state of an agent.
    pub(in crate::core) fn life_of(&self, id: &str) -> AgentLife<'_> {
        self.absent_agents.life_of(id, self.agents.get(id))
    }

    /// The registered agents of the same host that listen at the same address.
    pub(super) fn agents_at(&self, profile: &AgentProfile) -> impl Iterator<Item = &Agent> {
        let there = self.locations.at(profile);
        let there = there.filter_map(|id| self.agents.get(id));
        there.filter(|agent| agent.profile.info.hostname == profile.info.hostname)
    }
}
