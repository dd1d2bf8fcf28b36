//! The allocator's record of an agent: its total, its free resources, and the holders of the rest.
//!
//! Invariant: free is the total minus all holdings, class by class, never below zero; shared volumes are always free.

use meseta_resources::AgentId;

use crate::bundle::Bundle;
use crate::class::Classes;
use crate::filters::AgentFilters;
use crate::maintenance::Maintenance;
use crate::roles::SlotKey;
use crate::slab::Key;
use crate::spec::AgentFacts;

pub(crate) type AgentKey = Key;

#[derive(Clone, Debug)]
pub(crate) struct Agent {
    pub(crate) id: AgentId,
    pub(crate) facts: AgentFacts,
    pub(crate) total: Bundle,
    pub(crate) free: Bundle,
    pub(crate) holdings: Vec<Holding>,
    pub(crate) filters: AgentFilters,
    pub(crate) active: bool,
    pub(crate) whitelisted: bool,
    pub(crate) has_gpus: bool,
    pub(crate) is_remote: bool,
    /// Whether the total of some class is less than its holdings.
    pub(crate) overallocated: bool,
    /// Whether the agent has, or anybody holds on it, reserved, revocable or shared resources.
    pub(crate) is_mixed: bool,
    pub(crate) maintenance: Option<Box<Maintenance>>,
}

/// The resources that one framework holds in one role.
#[derive(Clone, Debug)]
pub(crate) struct Holding {
    pub(crate) slot: SlotKey,
    pub(crate) resources: Bundle,
}

impl Agent {
    /// Whether the agent's resources may be offered.
    #[inline]
    pub(crate) const fn is_offerable(&self) -> bool {
        self.active && self.whitelisted
    }

    pub(crate) fn held_by(&self, slot: SlotKey) -> Option<&Bundle> {
        let holding = self.holdings.iter().find(|holding| holding.slot == slot)?;
        Some(&holding.resources)
    }

    /// Recomputes the free resources from the total and the holdings.
    pub(crate) fn compute_free(&mut self, classes: &Classes) {
        let mixed = |bundle: &Bundle| bundle.classes().any(|class| !classes[class].is_plain());
        self.is_mixed = mixed(&self.total);
        self.overallocated = false;
        self.free.clone_from(&self.total);
        for Holding { resources, .. } in &self.holdings {
            self.is_mixed |= mixed(resources);
            let enough = self
                .free
                .subtract_where(resources, |class| !classes[class].shared);
            self.overallocated |= !enough;
        }
    }

    /// The approximate memory without names and attributes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let holdings = self.holdings.iter();
        let holdings = holdings
            .map(|holding| holding.resources.heap_bytes())
            .sum::<usize>()
            + self.holdings.capacity() * size_of::<Holding>();
        size_of::<Self>()
            + self.total.heap_bytes()
            + self.free.heap_bytes()
            + holdings
            + self.filters.bytes()
    }
}
