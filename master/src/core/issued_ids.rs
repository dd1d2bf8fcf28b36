//! The ids that this master assigns: each holds the master's own id and a counter.
//!
//! A master has a new id at each start, so an id with this prefix was either assigned by this master or is invalid.
//! Invariant: the master assigns no known id, and nobody may use an id that the master has yet to assign.

use meseta_resources::{AgentId, FrameworkId, IdError, OfferId};

use super::ids::OperationUuid;

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

/// The counters of the ids that this master assigns.
#[derive(Debug)]
pub(super) struct IssuedIds {
    /// The id of this master.
    master: String,
    next_agent: u64,
    next_framework: u64,
    /// The next number of an offer or inverse offer.
    next_offer: u64,
    last_operation: u64,
}

impl IssuedIds {
    pub(super) fn new(master: String) -> Self {
        Self {
            master,
            next_agent: 0,
            next_framework: 0,
            next_offer: 0,
            last_operation: 0,
        }
    }

    fn agent_prefix(&self) -> String {
        format!("{}-S", self.master)
    }

    pub(super) fn framework_prefix(&self) -> FrameworkPrefix {
        FrameworkPrefix(format!("{}-", self.master))
    }

    /// Starts the counters above all ids in the registry.
    pub(super) fn skip_known<'a>(
        &mut self,
        agents: impl Iterator<Item = &'a AgentId>,
        frameworks: impl Iterator<Item = &'a FrameworkId>,
    ) {
        let prefix = self.agent_prefix();
        let last = agents.filter_map(|id| number(id.as_str(), &prefix)).max();
        self.next_agent = last.map_or(0, |last| last.saturating_add(1));
        let prefix = self.framework_prefix();
        let last = frameworks.filter_map(|id| prefix.number(id)).max();
        self.next_framework = last.map_or(0, |last| last.saturating_add(1));
    }

    /// The id of the next agent; [`Self::assign_agent`] takes it.
    pub(super) fn next_agent(&self) -> Result<AgentId, IdError> {
        AgentId::new(&format!("{}{}", self.agent_prefix(), self.next_agent))
    }

    /// Takes the id of the next agent.
    pub(super) fn assign_agent(&mut self) {
        self.next_agent += 1;
    }

    /// Assigns the id of a new framework.
    pub(super) fn assign_framework(&mut self) -> Result<FrameworkId, IdError> {
        let id = format!("{}{:04}", self.framework_prefix().0, self.next_framework);
        let id = FrameworkId::new(&id)?;
        self.next_framework += 1;
        Ok(id)
    }

    /// The id of the next offer; [`Self::assign_offer`] takes it.
    pub(super) fn next_offer(&self) -> Option<OfferId> {
        OfferId::new(&format!("{}-O{}", self.master, self.next_offer)).ok()
    }

    /// Takes the next id, never used by an offer or inverse offer.
    pub(super) fn assign_offer(&mut self) -> Option<OfferId> {
        let id = self.next_offer()?;
        self.next_offer += 1;
        Some(id)
    }

    /// Assigns the uuid of a new operation, unique among the operations of all agents.
    pub(super) fn assign_operation(&mut self) -> OperationUuid {
        self.last_operation += 1;
        // FNV-1a: the same master id gives the same half, so no randomness is necessary.
        let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let master = self.master.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
        let halves = u128::from(master) << 64 | u128::from(self.last_operation);
        uuid::Builder::from_custom_bytes(halves.to_be_bytes())
            .into_uuid()
            .into_bytes()
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
