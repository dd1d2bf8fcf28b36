//! Filters: the resources that frameworks have declined, and for how long.
//!
//! Each agent stores its filters. `has` marks the frameworks (by slot index within the role) with filters on the
//! agent, `blocking` those whose filters refuse everything that the agent could offer: the cycle can skip such a
//! framework until the agent has more. Invariant: `blocking` is a subset of `has`, and correct as long as the agent's
//! free resources are within `basis`. Clearing a framework's filters gives it a new key, so the old entries are dead,
//! and are dropped when a scan finds them.

use meseta_resources::Moment;
use smallvec::SmallVec;

use crate::bits::Bits;
use crate::bundle::{Bundle, ClassKey};
use crate::filter_index::{FilterIndex, FilterKey};
use crate::roles::{RoleKey, SlotKey};
use crate::slab::{Key, KeyMap, at, key_of};

/// The number of dead entries tolerated on an agent before a cleanup.
const DEAD_ENTRIES_MAX: usize = 32;
/// The number of filters of one key on one agent. Above it, the filter that expires first is dropped, which only
/// causes an early offer. A scheduler that declines whole offers has one filter per agent, and a few if it uses parts
/// of offers.
const ENTRIES_OF_KEY_MAX: usize = 64;
/// The cost of a search for one role among those of an agent, in scanned roles.
const ROLES_PER_SEARCH: usize = 16;
/// The number of latest refusals searched for an equal one.
const REFUSED_COMPARED_MAX: usize = 8;

#[derive(Clone, Debug)]
struct Entry {
    expiry: Moment,
    key: FilterKey,
    refused_set: u32,
}

#[derive(Clone, Debug)]
struct RefusedResources {
    resources: Bundle,
    entries: u32,
}

impl RefusedResources {
    fn drop_entry(&mut self) {
        self.entries -= 1;
        if self.entries == 0 {
            self.resources = Bundle::default();
        }
    }
}

#[derive(Clone, Debug, Default)]
struct RoleFilters {
    has: Bits,
    blocking: Bits,
}

/// The filters on one agent.
#[derive(Clone, Debug)]
pub(crate) struct AgentFilters {
    entries: Vec<Entry>,
    refused_sets: SmallVec<[RefusedResources; 1]>,
    roles: SmallVec<[(RoleKey, RoleFilters); 1]>,
    basis: Bundle,
    /// Whether a filter refuses less than `basis`, and may still refuse the resources that are free now.
    open: bool,
    pub(crate) next_expiry: Moment,
}

impl Default for AgentFilters {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            refused_sets: SmallVec::new(),
            roles: SmallVec::new(),
            basis: Bundle::default(),
            open: false,
            next_expiry: Moment::NEVER,
        }
    }
}

/// Tells [`AgentFilters`] which resources a framework could be offered.
pub(crate) trait Visibility {
    /// Whether a framework could be offered resources of the class on this agent.
    fn may_offer(&self, slot: SlotKey, class: ClassKey) -> bool;
}

/// The classes of `free` that `refused` does not cover.
fn uncovered(free: &Bundle, refused: &Bundle) -> SmallVec<[ClassKey; 4]> {
    let scalars = free
        .scalars
        .iter()
        .filter(|(class, amount)| refused.amount(*class) < *amount);
    let items = free.items.iter().filter(|(class, items)| {
        !refused
            .items_of(*class)
            .is_some_and(|refused| refused.contains(items))
    });
    scalars
        .map(|entry| entry.0)
        .chain(items.map(|entry| entry.0))
        .collect()
}

impl AgentFilters {
    pub(crate) fn is_empty(&self) -> bool {
        self.roles.is_empty()
    }

    fn role(&self, role: RoleKey) -> Option<&RoleFilters> {
        match self.roles.as_slice() {
            [] => None,
            [(only, filters)] => (*only == role).then_some(filters),
            roles => {
                let at = roles.binary_search_by_key(&role, |entry| entry.0).ok()?;
                Some(&roles[at].1)
            }
        }
    }

    /// The frameworks of a role whose filters refuse everything from this agent.
    #[inline]
    pub(crate) fn blocking(&self, role: RoleKey) -> Option<&Bits> {
        self.role(role).map(|filters| &filters.blocking)
    }

    pub(crate) fn has(&self, role: RoleKey, local: Key) -> bool {
        self.role(role)
            .is_some_and(|filters| filters.has.contains(local))
    }

    /// Whether a filter of this key refuses the offer, and its expiry.
    pub(crate) fn refuses(
        &self,
        key: FilterKey,
        offer: &Bundle,
        counting_items: bool,
    ) -> Option<Moment> {
        let mine = self.entries.iter().filter(|entry| entry.key == key);
        let refusing = mine.filter(|entry| {
            let refused = &self.refused_sets[at(entry.refused_set)].resources;
            refused.contains(offer) || (counting_items && refused.has_as_much_as(offer))
        });
        refusing.map(|entry| entry.expiry).max()
    }

    /// Adds a filter of the slot that owns `key`.
    pub(crate) fn add(
        &mut self,
        index: &mut FilterIndex,
        agent: Key,
        key: FilterKey,
        refused: Bundle,
        expiry: Moment,
        visibility: &impl Visibility,
    ) {
        self.drop_dead(index, agent);
        let owner = index.owner(key);
        let (role, local, Some(slot)) = (owner.role, owner.local, owner.slot) else {
            return;
        };
        if self.has(role, local) {
            if self.prolong(key, &refused, expiry) {
                return;
            }
            self.make_room(index, key);
        }
        index.add_entry(key, agent);
        let position = match self.roles.binary_search_by_key(&role, |entry| entry.0) {
            Ok(position) => position,
            Err(position) => {
                self.roles.insert(position, (role, RoleFilters::default()));
                position
            }
        };
        let blocks = self.basis == refused
            || uncovered(&self.basis, &refused)
                .iter()
                .all(|class| !visibility.may_offer(slot, *class));
        let filters = &mut self.roles[position].1;
        filters.has.insert(local);
        if blocks {
            filters.blocking.insert(local);
        } else {
            self.open = true;
        }
        let refused_set = self.intern_refused(refused);
        self.entries.push(Entry {
            expiry,
            key,
            refused_set,
        });
        let before = self.next_expiry;
        self.next_expiry = before.min(expiry);
        index.reschedule(agent, before, self.next_expiry);
    }

    /// Whether a filter of the key refuses exactly these resources; extends its life to `expiry` if that is later.
    fn prolong(&mut self, key: FilterKey, refused: &Bundle, expiry: Moment) -> bool {
        let refused_sets = &self.refused_sets;
        let is_same = |entry: &&mut Entry| {
            entry.key == key && refused_sets[at(entry.refused_set)].resources == *refused
        };
        let Some(entry) = self.entries.iter_mut().find(is_same) else {
            return false;
        };
        entry.expiry = entry.expiry.max(expiry);
        true
    }

    /// Drops the key's filter that expires first, if the key has the maximum number.
    fn make_room(&mut self, index: &mut FilterIndex, key: FilterKey) {
        let all = self.entries.iter().enumerate();
        let mine = all.filter(|(_, entry)| entry.key == key);
        if mine.clone().count() < ENTRIES_OF_KEY_MAX {
            return;
        }
        let Some((first, _)) = mine.min_by_key(|(_, entry)| entry.expiry) else {
            return;
        };
        let entry = self.entries.swap_remove(first);
        self.refused_sets[at(entry.refused_set)].drop_entry();
        let owner = index.owner(key);
        let (role, local) = (owner.role, owner.local);
        index.release(key);
        self.recount(index, role, local);
    }

    /// The index of a refusal, whose entry count grows by one.
    fn intern_refused(&mut self, refused: Bundle) -> u32 {
        let recent = self.refused_sets.len().saturating_sub(REFUSED_COMPARED_MAX);
        let same = |refused_set: &RefusedResources| {
            refused_set.entries > 0 && refused_set.resources == refused
        };
        if let Some(found) = self.refused_sets[recent..].iter().position(same) {
            let found = recent + found;
            self.refused_sets[found].entries += 1;
            return key_of(found);
        }
        let refused_set = RefusedResources {
            resources: refused,
            entries: 1,
        };
        if let Some(vacant) = self
            .refused_sets
            .iter()
            .position(|refused_set| refused_set.entries == 0)
        {
            self.refused_sets[vacant] = refused_set;
            return key_of(vacant);
        }
        self.refused_sets.push(refused_set);
        key_of(self.refused_sets.len() - 1)
    }

    /// Drops the filters that expired before `now`. Returns true if one of them was alive.
    pub(crate) fn expire(&mut self, index: &mut FilterIndex, agent: Key, now: Moment) -> bool {
        let expired = self.retain(index, agent, |entry| entry.expiry >= now);
        if expired.is_empty() {
            return false;
        }
        for (role, local) in expired {
            self.recount(index, role, local);
        }
        true
    }

    /// Removes the mark that a slot has filters on this agent; its key must be retired.
    pub(crate) fn forget(&mut self, role: RoleKey, local: Key) -> bool {
        let Ok(position) = self.roles.binary_search_by_key(&role, |entry| entry.0) else {
            return false;
        };
        let filters = &mut self.roles[position].1;
        filters.blocking.remove(local);
        let had = filters.has.remove(local);
        if filters.has.is_empty() {
            self.roles.remove(position);
        }
        had
    }

    /// Like [`AgentFilters::forget`] for several slots, grouped by role.
    pub(crate) fn forget_all(&mut self, slots: &KeyMap<RoleKey, Bits>) {
        // For a few roles, searches each; for many, scans the roles with filters on this agent.
        if slots.len() < self.roles.len() / ROLES_PER_SEARCH {
            for (role, locals) in slots {
                for local in locals.iter() {
                    self.forget(*role, local);
                }
            }
            return;
        }
        self.roles.retain(|(role, filters)| {
            for local in slots.get(role).into_iter().flat_map(Bits::iter) {
                filters.blocking.remove(local);
                filters.has.remove(local);
            }
            !filters.has.is_empty()
        });
    }

    /// Drops all filters. Returns true if one of them was alive.
    pub(crate) fn clear(&mut self, index: &mut FilterIndex, agent: Key) -> bool {
        let had = !self.roles.is_empty();
        self.retain(index, agent, |_| false);
        self.roles.clear();
        self.basis.clear();
        self.open = false;
        had
    }

    /// Keeps the live entries for which the predicate is true. Returns the owners of the dropped entries.
    fn retain(
        &mut self,
        index: &mut FilterIndex,
        agent: Key,
        keep: impl Fn(&Entry) -> bool,
    ) -> Vec<(RoleKey, Key)> {
        let mut gone = Vec::new();
        let mut next = Moment::NEVER;
        let refused_sets = &mut self.refused_sets;
        self.entries.retain(|entry| {
            let owner = index.owner(entry.key);
            let alive = owner.slot.is_some();
            if alive && keep(entry) {
                next = next.min(entry.expiry);
                return true;
            }
            if alive {
                gone.push((owner.role, owner.local));
            }
            refused_sets[at(entry.refused_set)].drop_entry();
            index.release(entry.key);
            false
        });
        while self
            .refused_sets
            .last()
            .is_some_and(|refused_set| refused_set.entries == 0)
        {
            self.refused_sets.pop();
        }
        index.reschedule(agent, self.next_expiry, next);
        self.next_expiry = next;
        gone
    }

    /// Checks whether a slot still has filters after one of its entries was dropped.
    fn recount(&mut self, index: &FilterIndex, role: RoleKey, local: Key) {
        let of_slot = |entry: &&Entry| {
            let owner = index.owner(entry.key);
            (owner.role, owner.local) == (role, local)
        };
        let has_more = self.entries.iter().any(|entry| of_slot(&entry));
        if let Ok(position) = self.roles.binary_search_by_key(&role, |entry| entry.0) {
            let filters = &mut self.roles[position].1;
            filters.blocking.remove(local);
            if has_more {
                // `refresh` finds out whether the remaining ones still block.
                self.basis.clear();
            } else {
                filters.has.remove(local);
                if filters.has.is_empty() {
                    self.roles.remove(position);
                }
            }
        }
    }

    /// Drops dead entries once they outnumber the living.
    fn drop_dead(&mut self, index: &mut FilterIndex, agent: Key) {
        if self.entries.len() == self.entries.capacity() && self.entries.len() > DEAD_ENTRIES_MAX {
            let living: usize = self
                .roles
                .iter()
                .map(|(_, filters)| filters.has.len())
                .sum();
            if self.entries.len() > 2 * living {
                self.retain(index, agent, |_| true);
            }
        }
    }

    /// The approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let bits: usize = self
            .roles
            .iter()
            .map(|(_, filters)| filters.has.bytes() + filters.blocking.bytes())
            .sum();
        let refused_sets = self
            .refused_sets
            .spilled()
            .then_some(self.refused_sets.capacity());
        let roles = self.roles.spilled().then_some(self.roles.capacity());
        self.entries.capacity() * size_of::<Entry>()
            + refused_sets.unwrap_or(0) * size_of::<RefusedResources>()
            + roles.unwrap_or(0) * size_of::<(RoleKey, RoleFilters)>()
            + bits
    }

    /// Marks the refusals as outdated; `refresh` recomputes them.
    pub(crate) fn forget_basis(&mut self) {
        self.basis.clear();
    }

    /// Updates `blocking` for the free resources.
    pub(crate) fn refresh(
        &mut self,
        index: &FilterIndex,
        free: &Bundle,
        visibility: &impl Visibility,
    ) {
        if self.roles.is_empty() {
            return;
        }
        if self.basis.contains(free) && (!self.open || self.basis == *free) {
            return;
        }
        self.basis.clone_from(free);
        self.open = false;
        for (_, filters) in &mut self.roles {
            filters.blocking.clear();
        }
        let missing: SmallVec<[_; 2]> = self
            .refused_sets
            .iter()
            .map(|refused_set| uncovered(free, &refused_set.resources))
            .collect();
        for entry in &self.entries {
            let owner = index.owner(entry.key);
            let Some(slot) = owner.slot else { continue };
            let blocks = missing[at(entry.refused_set)]
                .iter()
                .all(|class| !visibility.may_offer(slot, *class));
            if blocks
                && let Ok(position) = self
                    .roles
                    .binary_search_by_key(&owner.role, |entry| entry.0)
            {
                self.roles[position].1.blocking.insert(owner.local);
            }
        }
        self.open = self
            .roles
            .iter()
            .any(|(_, filters)| filters.has != filters.blocking);
    }

    /// Each live filter: its owner, the refused resources, and its expiry.
    pub(crate) fn iter<'a>(
        &'a self,
        index: &'a FilterIndex,
    ) -> impl Iterator<Item = (SlotKey, &'a Bundle, Moment)> {
        self.entries.iter().filter_map(|entry| {
            let slot = index.owner(entry.key).slot?;
            Some((
                slot,
                &self.refused_sets[at(entry.refused_set)].resources,
                entry.expiry,
            ))
        })
    }

    /// All classes named here: those that filters refuse, and those of the last `basis`.
    pub(crate) fn classes(&self) -> impl Iterator<Item = ClassKey> {
        let refused_sets = self.refused_sets.iter();
        let refused = refused_sets.flat_map(|refused_set| refused_set.resources.classes());
        refused.chain(self.basis.classes())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use meseta_resources::{AgentId, Conversion, FrameworkId, Resources, Role};

    use super::*;
    use crate::filter_index::ENTRIES_OF_FRAMEWORK_MAX;
    use crate::{AgentFacts, AgentSpec, Allocator, FrameworkSpec, Options};

    const NOW: Moment = Moment::ORIGIN;
    const HOUR: Duration = Duration::from_secs(3600);

    fn role() -> Role {
        Role::new("dev").expect("a valid role")
    }

    fn resources(text: &str) -> Resources {
        Resources::parse(text, &Role::star()).expect("valid resources")
    }

    /// A filter for one agent and one framework.
    struct World {
        allocator: Allocator,
        agent: AgentId,
        framework: FrameworkId,
    }

    impl World {
        fn new() -> Self {
            let mut allocator = Allocator::new(Options::default());
            let framework = FrameworkId::new("f").expect("a valid id");
            let spec = FrameworkSpec {
                roles: [role()].into(),
                ..FrameworkSpec::default()
            };
            let added = allocator.add_framework(&framework, &spec, true, &BTreeMap::new());
            added.expect("new");
            let agent = AgentId::new("a").expect("a valid id");
            let facts = AgentFacts::named("host");
            let spec = AgentSpec::new(facts, resources("cpus:100;mem:100"));
            allocator.add_agent(&agent, spec).expect("new");
            assert_eq!(allocator.allocate(NOW).len(), 1);
            Self {
                allocator,
                agent,
                framework,
            }
        }

        fn decline(&mut self, declined: &str, refuse: Duration) {
            let declined = resources(declined).allocate(&role());
            let Self {
                allocator,
                agent,
                framework,
            } = self;
            allocator
                .recover_resources(NOW, framework, agent, &declined, Some(refuse))
                .expect("held");
        }

        /// The number of filters, and the times at which the first and the last expire.
        fn filters(&self) -> (usize, Option<Moment>, Option<Moment>) {
            let key = self.allocator.agent_key(&self.agent).expect("known");
            let filters = &self.allocator.agents[key].filters;
            let ends = || filters.entries.iter().map(|entry| entry.expiry);
            (filters.entries.len(), ends().min(), ends().max())
        }

        fn convert(&mut self, from: &str, to: &str) {
            let [from, to] = [from, to].map(|text| resources(text).allocate(&role()));
            let conversion = Conversion::new(from, to);
            let converted =
                self.allocator
                    .update_allocation(&self.framework, &self.agent, &[conversion]);
            converted.expect("held");
        }

        fn offers_at(&mut self, now: Moment) -> usize {
            self.allocator.tick(now).len()
        }
    }

    #[test]
    fn repeated_decline_extends_its_filter() {
        let mut world = World::new();
        for hours in [2, 3, 1] {
            world.decline("cpus:10", hours * HOUR);
        }
        let end = Some(NOW + 3 * HOUR);
        assert_eq!(world.filters(), (1, end, end));
        assert_eq!(world.allocator.gauges()[0].filters, 1);
        world.decline("cpus:70;mem:100", HOUR / 60);
        assert_eq!(
            world.offers_at(NOW + HOUR),
            1,
            "all is more than was declined"
        );
        world.decline("cpus:10", HOUR / 60);
        let hours = |hours: u32| NOW + hours * HOUR;
        assert_eq!(world.offers_at(hours(2)), 0);
        assert_eq!(world.offers_at(hours(3) + HOUR / 60), 1);
    }

    /// With few roles, each filter lasts as long as requested.
    #[test]
    fn framework_with_many_filters_gets_shorter() {
        let mut world = World::new();
        let key = world.allocator.framework_key(&world.framework);
        let key = key.expect("known");
        let of_framework = |world: &World| world.allocator.filters.of_frameworks.get(&key).copied();
        let seconds = Duration::from_secs;
        world.decline("cpus:10", HOUR);
        assert_eq!(of_framework(&world), Some(1));
        let all = ENTRIES_OF_FRAMEWORK_MAX;
        world.allocator.filters.of_frameworks.insert(key, all);
        world.decline("cpus:20", HOUR);
        world.decline("cpus:30", seconds(2));
        let (filters, first, last) = world.filters();
        assert_eq!(filters, 3);
        assert_eq!((first, last), (Some(NOW + seconds(2)), Some(NOW + HOUR)));
        assert_eq!(of_framework(&world), Some(all + 2));
        world.offers_at(NOW + seconds(6));
        assert_eq!(world.filters(), (1, last, last), "the short ones are over");
        assert_eq!(of_framework(&world), Some(all));
        // Cleared filters, and those of a removed agent, no longer count.
        world.allocator.filters.of_frameworks.insert(key, 1);
        let roles = [role()].into();
        let revived = world.allocator.revive(&world.framework, &roles);
        revived.expect("known");
        assert_eq!(of_framework(&world), None);
        world.offers_at(NOW + HOUR / 2);
        world.decline("cpus:40", HOUR);
        assert_eq!(of_framework(&world), Some(1));
        let removed = world.allocator.remove_agent(&world.agent);
        removed.expect("known");
        assert_eq!(of_framework(&world), None);
    }

    #[test]
    fn evicts_earliest_expiring_filters_of_framework() {
        let mut world = World::new();
        for number in 1..=200 {
            let declined = format!("cpus:0.{number:03}");
            world.decline(&declined, number * HOUR);
        }
        let (filters, first, last) = world.filters();
        assert_eq!(filters, ENTRIES_OF_KEY_MAX);
        assert_eq!(last, Some(NOW + 200 * HOUR));
        assert_eq!(first, Some(NOW + 137 * HOUR));
        assert_eq!(world.allocator.gauges()[0].filters, filters);
        let refused: u32 = {
            let key = world.allocator.agent_key(&world.agent).expect("known");
            let filters = &world.allocator.agents[key].filters;
            filters.refused_sets.iter().map(|one| one.entries).sum()
        };
        assert_eq!(at(refused), filters);
        assert_eq!(
            world.offers_at(NOW + HOUR),
            1,
            "none refuses all that is free"
        );
    }

    #[test]
    fn filter_survives_forgetting_of_unused_classes() {
        let mut world = World::new();
        let minute = HOUR / 60;
        world.convert("cpus:1", "cpus(dev):1");
        world.decline("cpus(dev):1;cpus:99;mem:100", minute);
        assert_eq!(world.offers_at(NOW + minute / 2), 0);
        assert_eq!(world.offers_at(NOW + 2 * minute), 1);
        world.convert("cpus(dev):1", "cpus:1");
        // So many other classes have come and gone that a sweep removes the unused ones.
        for number in 0..1_100 {
            let other = format!("cpus(dev/r{number}):1");
            world.convert("cpus:1", &other);
            world.convert(&other, "cpus:1");
        }
        assert_eq!(world.offers_at(NOW + 3 * minute), 0);
        world.decline("cpus:100;mem:100", HOUR);
        assert_eq!(world.offers_at(NOW + 4 * minute), 0);
        assert_eq!(world.offers_at(NOW + 2 * HOUR), 1);
    }
}
