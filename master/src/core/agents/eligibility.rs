//! Which agents may be offered at all: their domains, and the list of hosts.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::core::MasterCore;
use crate::core::state::agent::AgentProfile;

impl MasterCore {
    /// Rejects an agent with a domain if the master has none, or without one if --require_agent_domain is set. Not
    /// permanent: the agent retries.
    pub(in crate::core) fn check_domain(
        &self,
        profile: &AgentProfile,
    ) -> Result<(), (String, bool)> {
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
        Err((reason.to_owned(), false))
    }

    /// Offers that are out stay out, as in Mesos.
    pub(in crate::core) fn update_whitelist(&mut self, hosts: Option<&BTreeSet<Arc<str>>>) {
        self.allocator.update_whitelist(hosts.cloned());
        self.allocate_due = true;
    }
}
