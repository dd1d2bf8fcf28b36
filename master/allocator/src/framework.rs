//! A framework as the allocator keeps it, and its place in each of its roles.

use std::collections::BTreeSet;

use meseta_resources::{FrameworkId, ResourceQuantities};

use crate::agents::AgentKey;
use crate::bits::Bits;
use crate::class::Classes;
use crate::constraints::OfferConstraints;
use crate::filters::FilterKey;
use crate::roles::{RoleKey, SlotKey};
use crate::slab::Key;
use crate::sorter::{Kind, NodeKey};
use crate::spec::FrameworkCapabilities;

pub(crate) type FrameworkKey = Key;

#[derive(Clone, Debug)]
pub(crate) struct Framework {
    pub(crate) id: FrameworkId,
    pub(crate) capabilities: FrameworkCapabilities,
    pub(crate) active: bool,
    /// False while it is only known from what agents say it uses.
    pub(crate) added: bool,
    pub(crate) slots: Vec<SlotKey>,
    /// Agents that it has been asked to leave, some of which may be gone or not scheduled any more.
    pub(crate) asked: BTreeSet<AgentKey>,
}

/// A framework in one of its roles: subscribed to it, or holding something of it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) framework: FrameworkKey,
    pub(crate) role: RoleKey,
    /// Its place in the role.
    pub(crate) local: Key,
    pub(crate) node: NodeKey,
    pub(crate) filters: FilterKey,
    pub(crate) subscribed: bool,
    pub(crate) suppressed: bool,
    pub(crate) is_nested: bool,
    pub(crate) minimum: Option<Minimum>,
    pub(crate) constraints: OfferConstraints,
    /// Agents that the constraints rule out; None without constraints.
    pub(crate) excluded: Option<Bits>,
    /// On how many agents it holds something.
    pub(crate) holdings: u32,
}

/// Alternatives for the least that an offer must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Minimum(Vec<Vec<(Kind, i64)>>);

impl Minimum {
    pub(crate) fn new(classes: &mut Classes, alternatives: &[ResourceQuantities]) -> Self {
        let compile = |quantities: &ResourceQuantities| {
            quantities
                .iter()
                .map(|(name, amount)| (classes.kind(name), amount.millis()))
                .collect()
        };
        Self(alternatives.iter().map(compile).collect())
    }

    /// Whether there is enough of everything in one of the alternatives.
    #[inline]
    pub(crate) fn is_met(&self, have: impl Fn(Kind) -> i64) -> bool {
        self.0.is_empty()
            || self
                .0
                .iter()
                .any(|all| all.iter().all(|(kind, least)| have(*kind) >= *least))
    }

    pub(crate) fn alternatives(&self) -> &[Vec<(Kind, i64)>] {
        &self.0
    }
}
