//! A framework in the allocator, and its slot in each of its roles.

use std::collections::BTreeSet;
use std::sync::Arc;

use meseta_resources::{FrameworkId, ResourceName, ResourceQuantities, Scalar};

use crate::agents::AgentKey;
use crate::bits::Bits;
use crate::class::Classes;
use crate::constraints::OfferConstraints;
use crate::filter_index::FilterKey;
use crate::profile::ProfileKey;
use crate::roles::{RoleKey, SlotKey};
use crate::slab::{Key, KeyMap};
use crate::sorter::{Kind, NodeKey};
use crate::spec::FrameworkCapabilities;

pub(crate) type FrameworkKey = Key;

#[derive(Clone, Debug)]
pub(crate) struct Framework {
    pub(crate) id: FrameworkId,
    pub(crate) capabilities: FrameworkCapabilities,
    pub(crate) active: bool,
    /// Whether the framework was added; false while it is known only from agents' used resources.
    pub(crate) added: bool,
    pub(crate) slots: Vec<SlotKey>,
    /// The framework's slots by role.
    pub(crate) slot_by_role: KeyMap<RoleKey, SlotKey>,
    /// Agents with an inverse offer to the framework; some may be removed, or no longer scheduled.
    pub(crate) asked: BTreeSet<AgentKey>,
}

/// A framework in one of its roles: subscribed to the role, or holding resources of it.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) framework: FrameworkKey,
    pub(crate) role: RoleKey,
    /// The slot's index in the role.
    pub(crate) local: Key,
    pub(crate) node: NodeKey,
    pub(crate) filters: FilterKey,
    pub(crate) subscribed: bool,
    pub(crate) suppressed: bool,
    pub(crate) is_nested: bool,
    pub(crate) minimum: Option<Arc<Minimum>>,
    /// `None` before the first subscription.
    pub(crate) profile: Option<ProfileKey>,
    pub(crate) constraints: OfferConstraints,
    /// Agents that the constraints exclude; `None` without constraints.
    pub(crate) excluded: Option<Bits>,
    /// The number of agents on which the slot holds resources.
    pub(crate) holdings: u32,
}

/// Alternatives of the minimum that an offer must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Minimum(Vec<Vec<Least>>);

/// The minimum of one resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Least {
    name: ResourceName,
    /// `None` if the kind is unknown or a sweep may remove it: the check then searches by name.
    kind: Option<Kind>,
    millis: i64,
}

impl Minimum {
    /// A minimum whose names are interned permanently.
    pub(crate) fn interned(classes: &mut Classes, alternatives: &[ResourceQuantities]) -> Self {
        Self::new(alternatives, |name| Some(classes.kind(name)))
    }

    /// A framework's own minimum. A framework may use any names, so the function interns none.
    pub(crate) fn of_framework(classes: &Classes, alternatives: &[ResourceQuantities]) -> Self {
        Self::new(alternatives, |name| classes.find_permanent_kind(name))
    }

    fn new(
        alternatives: &[ResourceQuantities],
        mut kind: impl FnMut(&ResourceName) -> Option<Kind>,
    ) -> Self {
        let mut compile = |quantities: &ResourceQuantities| {
            let each = quantities.iter().map(|(name, amount)| Least {
                name: name.clone(),
                kind: kind(name),
                millis: amount.millis(),
            });
            each.collect()
        };
        Self(alternatives.iter().map(&mut compile).collect())
    }

    /// Whether the amounts satisfy one of the alternatives.
    #[inline]
    pub(crate) fn is_met(&self, classes: &Classes, have: impl Fn(Kind) -> i64) -> bool {
        let has = |least: &Least| {
            let kind = least.kind.or_else(|| classes.find_kind(&least.name));
            kind.map_or(0, &have) >= least.millis
        };
        self.0.is_empty() || self.0.iter().any(|all| all.iter().all(has))
    }

    pub(crate) fn alternatives(&self) -> impl Iterator<Item = ResourceQuantities> {
        let quantities = |all: &Vec<Least>| {
            let each = all.iter();
            let each = each.map(|least| (least.name.clone(), Scalar::from_millis(least.millis)));
            each.collect()
        };
        self.0.iter().map(quantities)
    }
}
