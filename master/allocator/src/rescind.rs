//! Plans to rescind offers after a change by an operator. The caller carries them out.
//!
//! Planning changes nothing. The caller lists the outstanding offers in the order in which it prefers to rescind
//! them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use meseta_resources::{
    AgentId, FrameworkId, OfferId, ResourceQuantities, Resources, Role, Scalar,
};

use crate::Allocator;
use crate::quota::Quota;
use crate::roles::RoleKey;
use crate::sorter::Sorter;

/// An offer that a framework has not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outstanding {
    pub id: OfferId,
    pub framework: FrameworkId,
    pub agent: AgentId,
    pub role: Role,
    pub resources: Resources,
}

/// The properties of an offer that decide about rescinding it for a quota.
#[derive(Clone, Copy, Debug)]
pub struct OfferView<'a> {
    pub id: &'a OfferId,
    pub role: &'a Role,
    pub resources: &'a Resources,
}

impl Outstanding {
    #[must_use]
    pub const fn view(&self) -> OfferView<'_> {
        OfferView {
            id: &self.id,
            role: &self.role,
            resources: &self.resources,
        }
    }
}

/// Roles that wait for offers, ordered by share, the lowest first, so that no offer needs a scan of all of them.
#[derive(Debug, Default)]
struct Waiting(BTreeSet<(OrderedShare, RoleKey)>);

/// A share ordered by [`f64::total_cmp`].
#[derive(Copy, Clone, Debug)]
struct OrderedShare(f64);

impl Ord for OrderedShare {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for OrderedShare {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OrderedShare {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for OrderedShare {}

impl Waiting {
    fn insert(&mut self, share: f64, role: RoleKey) {
        self.0.insert((OrderedShare(share), role));
    }

    fn neediest_but(&self, giver: RoleKey) -> Option<RoleKey> {
        let mut roles = self.0.iter().map(|(_, role)| *role);
        roles.find(|role| *role != giver)
    }

    /// Moves a waiting role to the position of its new share.
    fn change(&mut self, role: RoleKey, before: f64, after: f64) {
        if self.0.remove(&(OrderedShare(before), role)) {
            self.insert(after, role);
        }
    }
}

/// The part of an offer that counts against quota.
fn regular(resources: &Resources) -> ResourceQuantities {
    resources
        .iter()
        .filter(|resource| resource.is_unreserved() && !resource.is_revocable())
        .filter_map(|resource| Some((resource.name(), resource.scalar()?)))
        .collect()
}

impl Allocator {
    /// Plans for a quota set by the legacy call: rescinds at least the requested amount, all offers of an agent or
    /// none, from at least as many agents as the role has connected frameworks.
    #[must_use]
    pub fn rescind_for_request(
        &self,
        role: &Role,
        request: &ResourceQuantities,
        offers: &[Outstanding],
    ) -> Vec<OfferId> {
        let frameworks = self.roles.find(role).map_or(0, |key| {
            let slots = self.roles[key].slots.iter();
            slots
                .filter(|(_, slot)| self.frameworks[self.slots[**slot].framework].active)
                .count()
        });
        let mut by_agent: BTreeMap<&AgentId, Vec<&Outstanding>> = BTreeMap::new();
        for offer in offers {
            by_agent.entry(&offer.agent).or_default().push(offer);
        }
        let mut rescinded = ResourceQuantities::new();
        let mut visited = 0;
        let mut plan = Vec::new();
        for (agent, offers) in by_agent {
            if rescinded.contains(request) && visited >= frameworks {
                break;
            }
            if !self
                .agent_key(agent)
                .is_ok_and(|key| self.agents[key].is_offerable())
            {
                continue;
            }
            visited += 1;
            for offer in offers {
                rescinded += &regular(&offer.resources);
                plan.push(offer.id.clone());
            }
        }
        plan
    }

    /// Plans for a quota changed by UPDATE_QUOTA, after [`Allocator::update_quota`]. Rescinds offers of the role's
    /// subtree while a limit is exceeded and the offer helps. Then rescinds offers outside the subtree while the free
    /// resources cannot meet this guarantee together with all others and the offer helps. Examines no more offers
    /// than necessary.
    #[must_use]
    pub fn rescind_for_quota<'a>(
        &self,
        role: &Role,
        quota: &Quota,
        offers: impl Iterator<Item = OfferView<'a>> + Clone,
    ) -> Vec<OfferId> {
        let mut plan = Vec::new();
        let kind_of = |name: &str| {
            let name = meseta_resources::ResourceName::new(name).ok()?;
            self.classes.find_kind(&name)
        };
        let consumed = |name: &str| {
            let key = self.roles.find(role);
            key.zip(kind_of(name))
                .map_or(0, |(key, kind)| self.roles[key].consumed(kind))
        };
        let mut excess: BTreeMap<&str, i64> = quota
            .limits
            .iter()
            .map(|(name, limit)| (name.as_str(), consumed(name.as_str()) - limit.millis()))
            .filter(|(_, excess)| *excess > 0)
            .collect();
        let is_inside = |offer: &OfferView<'_>| offer.role.is_in_subtree_of(role);
        let mut given_back = ResourceQuantities::new();
        let mut inside = offers.clone().filter(is_inside);
        while !excess.is_empty()
            && let Some(offer) = inside.next()
        {
            let resources = regular(offer.resources);
            if take(&mut excess, &resources) {
                given_back += &resources;
                plan.push(offer.id.clone());
            }
        }
        let mut missing: BTreeMap<&str, i64> = quota
            .guarantees
            .iter()
            .map(|(name, guarantee)| {
                let (text, guarantee) = (name.as_str(), guarantee.millis());
                let (consumed, given_back) = (consumed(text), given_back.get(text).millis());
                let requested = guarantee - (consumed - given_back);
                // Other guarantees also hold back free resources.
                let required = kind_of(text).map_or(0, |kind| self.roles.required(kind));
                let more = requested.max(0) - (guarantee - consumed).max(0);
                let free = self.free_regular(text).saturating_add(given_back);
                let lacking = required.saturating_add(more).saturating_sub(free);
                (text, requested.min(lacking))
            })
            .filter(|(_, missing)| *missing > 0)
            .collect();
        let mut outside = offers.filter(|offer| !is_inside(offer));
        while !missing.is_empty()
            && let Some(offer) = outside.next()
        {
            if take(&mut missing, &regular(offer.resources)) {
                plan.push(offer.id.clone());
            }
        }
        plan
    }

    /// The consumption that counts against a role's limits: the reservations of its subtree, and all other
    /// non-revocable resources that the subtree is offered or uses.
    #[must_use]
    pub fn consumption(&self, role: &Role) -> ResourceQuantities {
        let mut consumed = ResourceQuantities::new();
        if let Some(key) = self.roles.find(role) {
            let role = &self.roles[key];
            for kind in 0..self.classes.kinds() {
                let amount = Scalar::from_millis(role.consumed(kind));
                if amount.is_positive() {
                    consumed.set(self.classes.name(kind), amount);
                }
            }
        }
        consumed
    }

    /// Plans for changed weights: rescinds an offer only if the neediest other waiting role would, with this offer,
    /// still not rank above the role that loses it. The plan is empty if no role waits.
    #[must_use]
    pub fn rescind_for_weights(
        &self,
        changed: &BTreeSet<Role>,
        offers: &[Outstanding],
    ) -> Vec<OfferId> {
        if !changed.iter().any(|role| self.roles.find(role).is_some()) {
            return Vec::new();
        }
        let mut probe = self.sorter.clone();
        let mut waiting = Waiting::default();
        for (key, node) in self.roles.iter() {
            if node.exists() && !node.active.is_empty() {
                waiting.insert(probe.share_of(node.node), key);
            }
        }
        let mut plan = Vec::new();
        for offer in offers {
            let Some(giver) = self.roles.find(&offer.role) else {
                continue;
            };
            let Some(taker) = waiting.neediest_but(giver) else {
                continue;
            };
            let before = [giver, taker].map(|key| (key, probe.share_of(self.roles[key].node)));
            self.shift(&mut probe, offer, giver, -1);
            self.shift(&mut probe, offer, taker, 1);
            let after = before.map(|(key, _)| probe.share_of(self.roles[key].node));
            if after[1] <= after[0] {
                plan.push(offer.id.clone());
                for ((key, before), after) in before.into_iter().zip(after) {
                    waiting.change(key, before, after);
                }
            } else {
                self.shift(&mut probe, offer, giver, 1);
                self.shift(&mut probe, offer, taker, -1);
            }
        }
        plan
    }

    /// Adds an offer to a role in the probe, or removes it, to try the effect on shares.
    fn shift(&self, probe: &mut Sorter, offer: &Outstanding, role: RoleKey, sign: i64) {
        for (name, amount) in offer.resources.scalar_quantities().iter() {
            if let Some(kind) = self.classes.find_kind(name) {
                probe.add_allocated(self.roles[role].node, kind, amount.millis() * sign);
            }
        }
    }

    /// Plans for an operator's RESERVE, CREATE and similar operations: the fewest offers of the agent, in order, that
    /// free the requested resources; `None` if all offers together do not suffice. Skips offers without missing
    /// resources.
    #[must_use]
    pub fn rescind_for_operation(
        &self,
        agent: &AgentId,
        requested: &Resources,
        offers: &[Outstanding],
    ) -> Option<Vec<OfferId>> {
        let key = self.agent_key(agent).ok()?;
        let mut have = self.classes.resources(&self.agents[key].free, None);
        let mut plan: Vec<(OfferId, Resources)> = Vec::new();
        for offer in offers.iter().filter(|offer| offer.agent == *agent) {
            if have.contains(requested) {
                break;
            }
            let missing = requested - &have;
            let resources = offer.resources.unallocate();
            // The offer holds a part of the missing resources.
            if &missing - &resources != missing {
                have += &resources;
                plan.push((offer.id.clone(), resources));
            }
        }
        if !have.contains(requested) {
            return None;
        }
        // Later offers may have made earlier ones unnecessary.
        let mut needed = Vec::new();
        for (id, resources) in plan {
            let without = &have - &resources;
            if without.contains(requested) {
                have = without;
            } else {
                needed.push(id);
            }
        }
        Some(needed)
    }

    fn free_regular(&self, name: &str) -> i64 {
        let name = meseta_resources::ResourceName::new(name).ok();
        let kind = name.and_then(|name| self.classes.find_kind(&name));
        let free = kind.and_then(|kind| self.headroom.get(crate::slab::at(kind)));
        free.copied().unwrap_or(0)
    }
}

/// Subtracts an offer's amounts from the remaining ones. Returns false, and subtracts nothing, if the offer does not
/// help.
fn take(left: &mut BTreeMap<&str, i64>, offer: &ResourceQuantities) -> bool {
    if !left.keys().any(|name| offer.get(name).is_positive()) {
        return false;
    }
    for (name, left) in left.iter_mut() {
        *left -= offer.get(name).millis();
    }
    left.retain(|_, left| *left > 0);
    true
}
