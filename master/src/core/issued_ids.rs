//! Assigns agent and framework ids: the master's id and a counter.
//!
//! A master has a new id at each start, so an id with this prefix was either assigned by this master or is invalid.
//! Invariant: the master assigns no known id, and nobody may use an id that the master has yet to assign.

use meseta_resources::{AgentId, FrameworkId, IdError};

use crate::core::master::MasterCore;

/// The prefix of the framework ids that this master assigns.
pub(super) struct FrameworkPrefix(String);

impl FrameworkPrefix {
    fn number(&self, id: &FrameworkId) -> Option<u64> {
        number(id.as_str(), &self.0)
    }

    /// Whether this master assigned the id, and not an earlier master or the framework itself.
    pub(super) fn is_of(&self, id: &FrameworkId) -> bool {
        self.number(id).is_some()
    }
}

/// The number of an id with this prefix.
fn number(id: &str, prefix: &str) -> Option<u64> {
    id.strip_prefix(prefix)?.parse().ok()
}

impl MasterCore {
    fn agent_prefix(&self) -> String {
        format!("{}-S", self.config.identity.id)
    }

    pub(super) fn framework_prefix(&self) -> FrameworkPrefix {
        FrameworkPrefix(format!("{}-", self.config.identity.id))
    }

    /// Starts the counters above all ids in the registry.
    pub(super) fn skip_known_ids(&mut self) {
        let prefix = self.agent_prefix();
        let agents = self.recovered_agents.keys();
        let agents = agents.chain(self.unreachable_agents.keys());
        let agents = agents.chain(self.gone_agents.keys());
        let last = agents.filter_map(|id| number(id.as_str(), &prefix)).max();
        self.next_agent = last.map_or(0, |last| last.saturating_add(1));
        let prefix = self.framework_prefix();
        let frameworks = self.ownership.known().chain(self.deadlines.keys());
        let last = frameworks.filter_map(|id| prefix.number(id)).max();
        self.next_framework = last.map_or(0, |last| last.saturating_add(1));
    }

    /// The id of the next agent.
    pub(super) fn next_agent_id(&self) -> Result<AgentId, IdError> {
        AgentId::new(&format!("{}{}", self.agent_prefix(), self.next_agent))
    }

    /// Assigns the id of a new framework.
    pub(super) fn take_framework_id(&mut self) -> Result<FrameworkId, IdError> {
        let id = format!("{}{:04}", self.framework_prefix().0, self.next_framework);
        let id = FrameworkId::new(&id)?;
        self.next_framework += 1;
        Ok(id)
    }

    /// Whether this master has yet to assign this agent id.
    pub(super) fn is_future_agent(&self, id: &AgentId) -> bool {
        number(id.as_str(), &self.agent_prefix()).is_some_and(|number| number >= self.next_agent)
    }

    /// Whether this master has yet to assign this framework id.
    pub(super) fn is_future_framework(&self, id: &FrameworkId) -> bool {
        let number = self.framework_prefix().number(id);
        number.is_some_and(|number| number >= self.next_framework)
    }

    /// Whether this master assigned the id: see [`FrameworkPrefix::is_of`].
    pub(super) fn is_own_framework(&self, id: &FrameworkId) -> bool {
        self.framework_prefix().is_of(id)
    }
}
