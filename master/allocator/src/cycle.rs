//! The allocation cycle: visits agents and offers their free resources to frameworks in order of need.
//!
//! A cycle makes two passes over the agents, in a random order: the first serves roles with unmet guarantees, the
//! second serves all roles by weighted dominant share. The order of roles is fixed during the visit of one agent and
//! follows the allocations between agents. Invariant: nobody can have the resources that a cycle leaves free on a
//! visited agent until an event marks the agent as dirty, because claims, slack and surplus only shrink within a
//! cycle.
//!
//! These marks limit the work of a cycle. They are caches: [`Allocator::sweep`] finds the same offers without them.
//!
//! | mark | meaning | set | cleared |
//! |---|---|---|---|
//! | `dirty`, `all_dirty` | agents that may have more to offer than in the last cycle | by each call that frees, adds or unblocks resources | by the next cycle |
//! | `deferred` | agents that gain only declined or skipped resources | by a decline, and for shared volumes | by the next tick, which visits them |
//! | `held_back` | agents with resources held back for a quota | by a visit | by the next cycle after `relaxed`, or a visit |
//! | `relaxed` | the amounts that quotas leave may have grown | by each release and each change of totals or quota | by the next cycle |
//! | `starved` (of a role) | the limits leave the role too little for an offer; `None` if unknown | by the first check | by each change of the role's quota or use |
//! | `tried`, `all_starved` (of a cycle) | the visit checked a role; a visit checked no role, so the cycle skips plain agents | by a visit | with the cycle |
//! | `profiles` (of the sorter), `Suitability` (of a cycle) | all frameworks of a role share one minimum and the same capabilities; the visited agent has nothing for this profile | by the first check of the role, on agents not suitable for everybody; by the first check of the profile on the agent | by each change of a framework in or below the role; with the visit |
//! | `blocking` (of filters) | filters refuse all resources of the agent for a framework | by `refresh`, for a free `basis` | when `basis` no longer holds |
//! | `open` (of filters) | a filter is not blocking yet, so fewer free resources may make it blocking | by `add` and `refresh` | by `refresh` and `clear` |

use meseta_resources::{AgentId, Moment};

use crate::Allocator;
use crate::agents::AgentKey;
use crate::bundle::Bundle;
use crate::compose::{OfferVisibility, Stage};
use crate::error::Error;
use crate::profile::Suitability;
use crate::roles::{RoleKey, SlotKey};
use crate::slab::{Key, KeyMap};
use crate::spec::{Allocation, FrameworkCapabilities, SorterKind};
use crate::walk::Walk;

/// The capabilities of a framework that can use the fewest agents: it lacks every capability that opens agents, and
/// has every one that makes demands on agents.
const NEEDIEST: FrameworkCapabilities = FrameworkCapabilities {
    revocable_resources: false,
    gpu_resources: false,
    shared_resources: false,
    multi_role: true,
    reservation_refinement: false,
    region_aware: false,
};

/// An offer under construction.
#[derive(Debug)]
struct Grant {
    agent: AgentKey,
    slot: SlotKey,
    resources: Bundle,
}

/// Buffers of one cycle.
#[derive(Debug, Default)]
struct Cycle {
    /// The finished offers, in the order of their creation.
    offers: Vec<Allocation>,
    grants: Vec<Grant>,
    /// The indices of the first pass's grants.
    guaranteed: KeyMap<(AgentKey, SlotKey), usize>,
    offer: Bundle,
    walk: Walk,
    suitability: Suitability,
    /// Whether the current walk has checked a role.
    tried: bool,
    /// Whether no role has enough left below its limits for an offer.
    all_starved: bool,
}

impl Allocator {
    /// Offers the resources that events since the last cycle have made available. Resources that were just declined
    /// wait for the next [`Allocator::tick`].
    pub fn allocate(&mut self, now: Moment) -> Vec<Allocation> {
        self.expire(now);
        self.run(now, false)
    }

    /// The periodic cycle: like [`Allocator::allocate`], and also offers declined resources again.
    pub fn tick(&mut self, now: Moment) -> Vec<Allocation> {
        self.expire(now);
        self.run(now, true)
    }

    /// A cycle over every agent, changed or not: a safety net that should find nothing more.
    pub fn sweep(&mut self, now: Moment) -> Vec<Allocation> {
        self.expire(now);
        self.all_dirty = true;
        self.run(now, true)
    }

    /// A cycle over one agent alone, changed or not.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn sweep_agent(&mut self, now: Moment, agent: &AgentId) -> Result<Vec<Allocation>, Error> {
        let key = self.agent_key(agent)?;
        self.expire(now);
        if self.is_paused(now) {
            return Ok(Vec::new());
        }
        self.dirty.remove(key);
        self.deferred.remove(key);
        let agent = &self.agents[key];
        let visit = agent.is_offerable() && !agent.free.is_empty();
        Ok(self.visit_all(if visit { vec![key] } else { Vec::new() }))
    }

    /// The next time at which a filter expires or recovery ends, so that [`Allocator::allocate`] has work to do.
    #[must_use]
    pub fn next_expiry(&self) -> Option<Moment> {
        // A filter still holds at its expiry time.
        let filter = self.filters.next_expiry();
        let filter = filter.map(|expiry| expiry + std::time::Duration::from_nanos(1));
        let recovery = self.recovery.as_ref().map(|recovery| recovery.deadline());
        filter.into_iter().chain(recovery).min()
    }

    fn expire(&mut self, now: Moment) {
        while let Some(agent) = self.filters.pop_expired(now) {
            let entry = &mut self.agents[agent];
            entry.filters.next_expiry = Moment::NEVER;
            if entry.filters.expire(&mut self.filters, agent, now) {
                self.mark_dirty(agent);
            }
        }
    }

    /// The agents to visit; clears the dirty marks.
    fn take_dirty(&mut self, with_deferred: bool) -> Vec<AgentKey> {
        let all = with_deferred || self.all_dirty;
        for agent in self.maintained.iter() {
            if all || self.dirty.contains(agent) {
                self.inverse_due.insert(agent);
            }
        }
        if with_deferred {
            for agent in std::mem::take(&mut self.deferred).iter() {
                self.dirty.insert(agent);
            }
        }
        if std::mem::take(&mut self.relaxed) && self.roles.quotas > 0 {
            for agent in std::mem::take(&mut self.held_back).iter() {
                self.dirty.insert(agent);
            }
        }
        let dirty = std::mem::take(&mut self.dirty);
        let visit = |agent: &crate::agents::Agent| agent.is_offerable() && !agent.free.is_empty();
        if std::mem::take(&mut self.all_dirty) {
            self.deferred.clear();
            return self
                .agents
                .iter()
                .filter(|(_, agent)| visit(agent))
                .map(|entry| entry.0)
                .collect();
        }
        dirty
            .iter()
            .filter(|agent| self.agents.try_get(*agent).is_some_and(visit))
            .collect()
    }

    fn run(&mut self, now: Moment, with_deferred: bool) -> Vec<Allocation> {
        if self.is_paused(now) {
            return Vec::new();
        }
        let agents = self.take_dirty(with_deferred);
        self.visit_all(agents)
    }

    fn visit_all(&mut self, mut agents: Vec<AgentKey>) -> Vec<Allocation> {
        self.cycles += 1;
        self.sweep_classes();
        if agents.is_empty() {
            return Vec::new();
        }
        self.sorter.settle();
        let mut cycle = Cycle::default();
        cycle.offers.reserve(agents.len());
        self.offered_shared.clear();
        for agent in &agents {
            self.held_back.remove(*agent);
            let Self {
                agents,
                filters,
                classes,
                roles,
                slots,
                frameworks,
                ..
            } = self;
            let entry = &mut agents[*agent];
            entry.filters.refresh(
                filters,
                &entry.free,
                &OfferVisibility {
                    classes,
                    roles,
                    slots,
                    frameworks,
                },
            );
        }
        if self.roles.guarantees > 0 {
            self.rng.shuffle(&mut agents);
            self.run_guarantees(&mut cycle, &agents);
            let grants = cycle.grants.iter().enumerate();
            cycle.guaranteed = grants
                .map(|(at, grant)| ((grant.agent, grant.slot), at))
                .collect();
        }
        self.rng.shuffle(&mut agents);
        for agent in &agents {
            self.visit(&mut cycle, *agent);
        }
        // Frameworks skipped because a shared volume was already on offer get it at the next tick.
        for (agent, _) in std::mem::take(&mut self.offered_shared) {
            self.mark_deferred(agent);
        }
        let Cycle {
            mut offers, grants, ..
        } = cycle;
        let finish = |grant: &Grant| self.allocation(grant.agent, grant.slot, &grant.resources);
        offers.extend(grants.iter().map(finish));
        offers
    }

    fn allocation(&self, agent: AgentKey, slot: SlotKey, resources: &Bundle) -> Allocation {
        let slot = &self.slots[slot];
        let role = &self.roles[slot.role].role;
        Allocation {
            framework: self.frameworks[slot.framework].id.clone(),
            agent: self.agents[agent].id.clone(),
            role: role.clone(),
            resources: self.classes.resources(resources, Some(role)),
        }
    }

    /// The first pass: serves guarantees.
    fn run_guarantees(&mut self, cycle: &mut Cycle, agents: &[AgentKey]) {
        let mut wanting: Vec<RoleKey> = Vec::new();
        self.start_walk(&mut cycle.walk);
        while let Some(role) = cycle.walk.next(&self.sorter, &self.roles) {
            if self.roles.has_claimable_guarantee(role) {
                wanting.push(role);
            }
        }
        for agent in agents {
            if wanting.is_empty() {
                return;
            }
            let mut touched = Vec::new();
            for role in &wanting {
                if self.agents[*agent].free.is_empty() {
                    break;
                }
                if self.visit_role(cycle, *agent, *role, Stage::Guarantees) {
                    touched.push(*role);
                }
            }
            self.sorter.settle();
            if touched.is_empty() {
                continue;
            }
            self.reorder(&mut wanting, &touched);
        }
    }

    /// Moves roles that got resources back in the order, or removes them if they have no claim left.
    fn reorder(&self, wanting: &mut Vec<RoleKey>, touched: &[RoleKey]) {
        let nested = touched
            .iter()
            .any(|role| self.roles[*role].parent.is_some() || self.roles[*role].children > 0);
        if nested || self.options.role_sorter == SorterKind::Random {
            wanting.retain(|role| self.roles.has_claimable_guarantee(*role));
            wanting.sort_by(|a, b| self.compare_roles(*a, *b));
            return;
        }
        for role in touched {
            let Some(from) = wanting.iter().position(|other| other == role) else {
                continue;
            };
            wanting.remove(from);
            if self.roles.has_claimable_guarantee(*role) {
                let to = wanting.partition_point(|other| self.compare_roles(*other, *role).is_lt());
                wanting.insert(to, *role);
            }
        }
    }

    fn compare_roles(&self, a: RoleKey, b: RoleKey) -> std::cmp::Ordering {
        self.sorter
            .compare_in_walk(self.roles[a].own, self.roles[b].own)
    }

    /// The second pass, on one agent.
    fn visit(&mut self, cycle: &mut Cycle, agent: AgentKey) {
        let entry = &self.agents[agent];
        let free = &entry.free;
        if free.is_empty() {
            return;
        }
        let plain = !entry.is_mixed && self.minimum_overrides == 0;
        if plain {
            if !self
                .minimum
                .is_met(&self.classes, |kind| self.quantity(free, kind))
            {
                return;
            }
            if cycle.all_starved || self.is_surplus_starved() {
                self.held_back.insert(agent);
                return;
            }
        }
        cycle.tried = false;
        cycle.suitability.start();
        self.start_walk(&mut cycle.walk);
        // With one satisfied minimum, and an agent suitable for everybody, no role can be skipped. A random order
        // draws numbers for each checked role, so skipping would change it.
        let passes_over = self.options.framework_sorter != SorterKind::Random
            && (!plain || self.lacks_capability(agent, NEEDIEST, true).is_some());
        loop {
            let next = if passes_over {
                self.next_suited(cycle, agent)
            } else {
                cycle.walk.next(&self.sorter, &self.roles)
            };
            let Some(role) = next else {
                break;
            };
            if passes_over {
                self.note_profile_of(role);
            }
            if self.visit_role(cycle, agent, role, Stage::Rest) {
                if self.agents[agent].free.is_empty() {
                    break;
                }
                if plain && self.is_surplus_starved() {
                    self.held_back.insert(agent);
                    break;
                }
            }
        }
        if plain && !cycle.tried {
            // The limits leave no role anything, and cannot leave more within this cycle.
            cycle.all_starved = true;
        }
        self.sorter.settle();
    }

    /// The next role of a walk with a framework that may use the agent.
    #[inline]
    fn next_suited(&self, cycle: &mut Cycle, agent: AgentKey) -> Option<RoleKey> {
        let Cycle {
            walk,
            suitability,
            tried,
            ..
        } = cycle;
        walk.next_where(&self.sorter, &self.roles, |node| {
            let profile = self.sorter.profile(node);
            let unsuited = suitability.is_unsuited(profile, || self.is_unsuited(agent, profile));
            *tried |= unsuited;
            unsuited
        })
    }

    /// Offers to the frameworks of one role. Returns true if one of them got an offer.
    fn visit_role(
        &mut self,
        cycle: &mut Cycle,
        agent: AgentKey,
        role: RoleKey,
        stage: Stage,
    ) -> bool {
        let entry = &self.agents[agent];
        let active = &self.roles[role].active;
        let filtered = !entry.filters.is_empty();
        if filtered
            && entry
                .filters
                .blocking(role)
                .is_some_and(|blocking| active.is_subset_of(blocking))
        {
            cycle.tried = true;
            return false;
        }
        let plain = !entry.is_mixed && self.roles[role].own_minimums == 0;
        if plain && self.roles.limits > 0 && self.is_starved(role) {
            self.held_back.insert(agent);
            return false;
        }
        cycle.tried = true;
        let own = self.roles[role].own;
        let shuffled = (self.options.framework_sorter == SorterKind::Random).then(|| {
            self.rng
                .weighted_shuffle(&self.sorter, self.sorter.order(own))
        });
        let mut failed = None;
        let mut granted = false;
        let mut position = 0;
        loop {
            let order = shuffled
                .as_deref()
                .unwrap_or_else(|| self.sorter.order(own));
            let Some(node) = order.get(position).copied() else {
                break;
            };
            position += 1;
            let slot = self.sorter.tag(node);
            if filtered {
                let local = self.slots[slot].local;
                let blocking = self.agents[agent].filters.blocking(role);
                if blocking.is_some_and(|blocking| blocking.contains(local)) {
                    continue;
                }
            }
            if self.mismatch(agent, slot).is_some() {
                continue;
            }
            let kin = (self.slots[slot].minimum.is_none())
                .then(|| self.frameworks[self.slots[slot].framework].capabilities);
            if kin.is_some() && failed == kin {
                continue;
            }
            match self.try_grant(cycle, agent, slot, stage) {
                Attempt::Granted => {
                    granted = true;
                    if shuffled.is_none() {
                        self.sorter.note_position(node, position - 1);
                    }
                    if self.agents[agent].free.is_empty() {
                        break;
                    }
                }
                Attempt::TooLittle => failed = kin,
                Attempt::Refused => {}
            }
        }
        granted
    }

    fn try_grant(
        &mut self,
        cycle: &mut Cycle,
        agent: AgentKey,
        slot: SlotKey,
        stage: Stage,
    ) -> Attempt {
        if self.roles.quotas == 0 && !self.agents[agent].is_mixed {
            return self.try_grant_all(cycle, agent, slot);
        }
        let composed = self.compose(agent, slot, stage, &mut cycle.offer);
        if composed.reduction.is_some() && stage == Stage::Rest {
            self.held_back.insert(agent);
        }
        if stage == Stage::Guarantees && !composed.serves_guarantee {
            return Attempt::TooLittle;
        }
        if !self.is_allocatable(slot, &cycle.offer) {
            return Attempt::TooLittle;
        }
        let entry = &self.agents[agent];
        if !entry.filters.is_empty() {
            let slot = &self.slots[slot];
            let refuses = || {
                let filters = &entry.filters;
                filters.refuses(slot.filters, &cycle.offer, self.counts_items())
            };
            if entry.filters.has(slot.role, slot.local) && refuses().is_some() {
                return Attempt::Refused;
            }
        }
        let is_more = cycle.guaranteed.contains_key(&(agent, slot));
        self.hold(agent, slot, &cycle.offer, u64::from(!is_more));
        if self.agents[agent].is_mixed {
            for (class, _) in &cycle.offer.scalars {
                if self.classes[*class].shared {
                    self.offered_shared.push((agent, *class));
                }
            }
        }
        if stage == Stage::Rest && cycle.guaranteed.is_empty() {
            let allocation = self.allocation(agent, slot, &cycle.offer);
            cycle.offers.push(allocation);
        } else {
            cycle.record(agent, slot);
        }
        Attempt::Granted
    }

    /// Tries to grant all free resources: only the framework's own minimum and filters can prevent the offer.
    fn try_grant_all(&mut self, cycle: &mut Cycle, agent: AgentKey, slot: SlotKey) -> Attempt {
        let entry = &self.agents[agent];
        // Without minimums of single frameworks, `visit` has checked that there is enough.
        if self.minimum_overrides > 0 && !self.is_allocatable(slot, &entry.free) {
            return Attempt::TooLittle;
        }
        let slot_entry = &self.slots[slot];
        if entry.filters.has(slot_entry.role, slot_entry.local)
            && entry
                .filters
                .refuses(slot_entry.filters, &entry.free, false)
                .is_some()
        {
            return Attempt::Refused;
        }
        let allocation = self.allocation(agent, slot, &entry.free);
        cycle.offers.push(allocation);
        self.hold_all(agent, slot);
        Attempt::Granted
    }

    fn start_walk(&mut self, walk: &mut Walk) {
        walk.start(&self.sorter);
        if self.options.role_sorter == SorterKind::Random {
            let mut leaves = Vec::new();
            while let Some(role) = walk.next(&self.sorter, &self.roles) {
                leaves.push(self.roles[role].own);
            }
            let shuffled = self.rng.weighted_shuffle(&self.sorter, &leaves);
            let roles: Vec<RoleKey> = shuffled.iter().map(|node| self.sorter.tag(*node)).collect();
            walk.shuffle(roles);
        }
    }

    /// Whether the surplus beyond guarantees is too little for any offer.
    pub(crate) fn is_surplus_starved(&self) -> bool {
        self.roles.guarantees > 0
            && self.roles.is_anything_required()
            && (self.is_surplus_unusable()
                || !self
                    .minimum
                    .is_met(&self.classes, |kind| self.surplus(kind)))
    }

    /// Whether the limits leave a role too little for any offer.
    fn is_starved(&mut self, role: RoleKey) -> bool {
        let mut next = Some(role);
        while let Some(above) = next {
            let starved = match self.roles[above].starved {
                Some(starved) => starved,
                None => {
                    let slack = |kind| self.roles.own_slack(above, kind).unwrap_or(i64::MAX);
                    let starved = !self.minimum.is_met(&self.classes, slack);
                    self.roles[above].starved = Some(starved);
                    starved
                }
            };
            if starved {
                return true;
            }
            next = self.roles[above].parent;
        }
        false
    }

    /// Marks an agent as dirty: its resources may be offered now.
    pub(crate) fn mark_dirty(&mut self, agent: Key) {
        self.dirty.insert(agent);
    }

    pub(crate) fn mark_deferred(&mut self, agent: Key) {
        self.deferred.insert(agent);
    }
}

enum Attempt {
    Granted,
    TooLittle,
    Refused,
}

impl Cycle {
    fn record(&mut self, agent: AgentKey, slot: SlotKey) {
        // A framework that got its guarantee on this agent gets the rest in the same offer.
        if !self.guaranteed.is_empty()
            && let Some(at) = self.guaranteed.get(&(agent, slot))
        {
            self.grants[*at].resources.add(&self.offer);
            return;
        }
        self.grants.push(Grant {
            agent,
            slot,
            resources: self.offer.clone(),
        });
    }
}
