//! Accounting: every change of free, held and total resources goes through this module.
//!
//! Invariant: the values of the sorter, the role tree and the headroom follow from the agents' totals and holdings
//! alone. A shared volume counts once for each framework and role that has copies of it.

use std::borrow::Cow;

use meseta_resources::ReservationKind;

use crate::Allocator;
use crate::agents::{AgentKey, Holding};
use crate::bits::Bits;
use crate::bundle::{Bundle, ClassKey};
use crate::class::Classes;
use crate::roles::{RoleKey, SlotKey};
use crate::slab::at;
use crate::sorter::Kind;

impl Allocator {
    /// Adds resources that a framework already holds. The caller recomputes the free resources afterwards.
    pub(crate) fn hold_used(&mut self, agent: AgentKey, slot: SlotKey, used: &Bundle) {
        self.add_holding(agent, slot, used, 1);
    }

    /// Recomputes the free resources and counts them in the headroom. The caller has removed them from the headroom
    /// before.
    pub(crate) fn compute_free(&mut self, agent: AgentKey) {
        self.agents[agent].compute_free(&self.classes);
        self.count_headroom(agent, 1);
    }

    /// Hands out all free resources of an agent that has regular resources only.
    pub(crate) fn hold_all(&mut self, agent: AgentKey, slot: SlotKey) {
        let all = std::mem::take(&mut self.agents[agent].free);
        self.change_headroom(agent, &all, -1);
        self.account(agent, slot, &all, 1, 1);
        self.add_to_holding(agent, slot, Cow::Owned(all));
    }

    /// Hands out a part of the free resources: a new offer (`allocations` is 1) or an extension of one (`allocations`
    /// is 0).
    pub(crate) fn hold(
        &mut self,
        agent: AgentKey,
        slot: SlotKey,
        offer: &Bundle,
        allocations: u64,
    ) {
        let entry = &mut self.agents[agent];
        if entry.is_mixed {
            entry.free.subtract(&unshared(offer, &self.classes));
        } else {
            entry.free.subtract(offer);
        }
        self.change_headroom(agent, offer, -1);
        self.add_holding(agent, slot, offer, allocations);
    }

    fn add_holding(&mut self, agent: AgentKey, slot: SlotKey, added: &Bundle, allocations: u64) {
        self.account(agent, slot, added, 1, allocations);
        self.add_to_holding(agent, slot, Cow::Borrowed(added));
    }

    fn add_to_holding(&mut self, agent: AgentKey, slot: SlotKey, added: Cow<'_, Bundle>) {
        let holdings = &mut self.agents[agent].holdings;
        if let Some(holding) = holdings.iter_mut().find(|holding| holding.slot == slot) {
            holding.resources.add(&added);
        } else {
            holdings.push(Holding {
                slot,
                resources: added.into_owned(),
            });
            self.slots[slot].holdings += 1;
        }
    }

    /// Takes back held resources. The caller has checked that the slot holds them.
    pub(crate) fn release(&mut self, agent: AgentKey, slot: SlotKey, released: &Bundle) {
        let entry = &mut self.agents[agent];
        let holding = |holding: &Holding| holding.slot == slot;
        let Some(position) = entry.holdings.iter().position(holding) else {
            return;
        };
        let whole = entry.holdings[position].resources == *released;
        if whole {
            let Holding { resources, .. } = entry.holdings.swap_remove(position);
            self.slots[slot].holdings -= 1;
            // The most frequent case: an agent with nothing free gets everything back.
            if entry.free.is_empty() && !entry.overallocated && !entry.is_mixed {
                entry.free = resources;
                self.relaxed = true;
                self.account(agent, slot, released, -1, 0);
                self.change_headroom(agent, released, 1);
                return;
            }
        } else {
            entry.holdings[position].resources.subtract(released);
        }
        self.account(agent, slot, released, -1, 0);
        let entry = &mut self.agents[agent];
        if entry.overallocated {
            self.count_headroom(agent, -1);
            self.agents[agent].compute_free(&self.classes);
            self.count_headroom(agent, 1);
        } else {
            if entry.is_mixed {
                entry.free.add(&unshared(released, &self.classes));
            } else {
                entry.free.add(released);
            }
            self.change_headroom(agent, released, 1);
        }
        self.relaxed = true;
    }

    /// Changes the headroom by a change of the agent's free resources.
    fn change_headroom(&mut self, agent: AgentKey, changed: &Bundle, sign: i64) {
        if self.agents[agent].is_offerable() {
            change_headroom(&mut self.headroom, &self.classes, changed, sign);
        }
    }

    /// Replaces parts of the resources held on an agent, and of its total, by other resources.
    pub(crate) fn convert_held(&mut self, agent: AgentKey, steps: &[(SlotKey, Bundle, Bundle)]) {
        self.account_total(agent, -1);
        self.count_headroom(agent, -1);
        for (slot, consumed, produced) in steps {
            self.convert_holding(agent, *slot, consumed, produced);
            let total = &mut self.agents[agent].total;
            total.subtract(consumed);
            total.add(produced);
        }
        self.agents[agent].compute_free(&self.classes);
        self.account_total(agent, 1);
        self.count_headroom(agent, 1);
        for (_, consumed, _) in steps {
            self.prune_owners(consumed);
        }
        self.relaxed = true;
    }

    fn convert_holding(
        &mut self,
        agent: AgentKey,
        slot: SlotKey,
        consumed: &Bundle,
        produced: &Bundle,
    ) {
        let holdings = &mut self.agents[agent].holdings;
        let Some(position) = holdings.iter().position(|holding| holding.slot == slot) else {
            return;
        };
        holdings[position].resources.subtract(consumed);
        self.account(agent, slot, consumed, -1, 0);
        self.account(agent, slot, produced, 1, 0);
        let holdings = &mut self.agents[agent].holdings;
        holdings[position].resources.add(produced);
        if holdings[position].resources.is_empty() {
            holdings.swap_remove(position);
            self.slots[slot].holdings -= 1;
        }
    }

    /// Replaces the total of an agent.
    pub(crate) fn replace_total(&mut self, agent: AgentKey, total: Bundle) {
        self.account_total(agent, -1);
        self.count_headroom(agent, -1);
        let entry = &mut self.agents[agent];
        let before = std::mem::replace(&mut entry.total, total);
        entry.compute_free(&self.classes);
        self.agents[agent].has_gpus = self.has_gpus(agent);
        self.account_total(agent, 1);
        self.count_headroom(agent, 1);
        self.prune_owners(&before);
        self.relaxed = true;
    }

    pub(crate) fn has_gpus(&self, agent: AgentKey) -> bool {
        let scalars = &self.agents[agent].total.scalars;
        scalars
            .iter()
            .any(|(class, _)| self.classes[*class].kind == self.gpus)
    }

    /// Adds an agent's total to the cluster's totals and the roles' reservations, or removes the agent's total from
    /// them.
    pub(crate) fn account_total(&mut self, agent: AgentKey, sign: i64) {
        let Self {
            agents,
            classes,
            sorter,
            roles,
            capacity,
            static_capacity,
            ..
        } = self;
        for (class, amount) in &agents[agent].total.scalars {
            let class = &classes[*class];
            let amount = if class.shared { class.unit } else { *amount } * sign;
            sorter.add_total(class.kind, amount);
            if !class.revocable {
                bump(capacity, class.kind, amount);
                let bottom = class.template.reservations().first();
                if bottom.is_some_and(|bottom| bottom.kind == ReservationKind::Static) {
                    bump(static_capacity, class.kind, amount);
                }
            }
            if let Some(owner) = class.owner {
                if roles[owner].node == u32::MAX {
                    let role = roles[owner].role.clone();
                    roles.ensure(sorter, &role);
                }
                roles.reserve(owner, class.kind, amount);
            }
        }
    }

    /// Removes roles that existed only for reservations of an earlier total.
    pub(crate) fn prune_owners(&mut self, total: &Bundle) {
        for (class, _) in &total.scalars {
            if let Some(owner) = self.classes[*class].owner {
                self.roles.prune(&mut self.sorter, owner);
            }
        }
    }

    /// Adds the agent's free resources to the headroom, or removes them from it.
    pub(crate) fn count_headroom(&mut self, agent: AgentKey, sign: i64) {
        let agent = &self.agents[agent];
        if agent.is_offerable() {
            change_headroom(&mut self.headroom, &self.classes, &agent.free, sign);
        }
    }

    /// Changes the shares and the consumption of a slot by the resources that it gains or returns; the agent's
    /// holdings must not contain them. The framework and all its roles count the allocations made with the change.
    fn account(
        &mut self,
        agent: AgentKey,
        slot: SlotKey,
        bundle: &Bundle,
        sign: i64,
        allocations: u64,
    ) {
        let mut changes = std::mem::take(&mut self.changes);
        let mut regular = std::mem::take(&mut self.regular_changes);
        changes.clear();
        regular.clear();
        for (key, amount) in &bundle.scalars {
            let class = &self.classes[*key];
            if class.shared {
                self.account_shared(agent, slot, *key, sign);
                continue;
            }
            changes.push((class.kind, amount * sign));
            if class.regular {
                regular.push((class.kind, amount * sign));
            }
        }
        let Self {
            slots,
            roles,
            sorter,
            ..
        } = self;
        let slot = &slots[slot];
        sorter.add_all(slot.node, &changes, allocations);
        sorter.add_all(roles[slot.role].own, &changes, allocations);
        let mut next = Some(slot.role);
        while let Some(role) = next {
            sorter.add_all(roles[role].node, &changes, allocations);
            roles.consume_all(role, &regular);
            next = roles[role].parent;
        }
        if roles.guarantees > 0 {
            for (kind, _) in &regular {
                roles.refresh(slot.role, *kind);
            }
        }
        (self.changes, self.regular_changes) = (changes, regular);
    }

    fn account_shared(&mut self, agent: AgentKey, slot: SlotKey, class: ClassKey, sign: i64) {
        let (kind, regular) = (self.classes[class].kind, self.classes[class].regular);
        let change = self.classes[class].unit * sign;
        let role = self.slots[slot].role;
        // The roles whose frameworks hold copies on this agent.
        let entry = &self.agents[agent];
        let has_copy = |holding: &&Holding| holding.resources.amount(class) > 0;
        let with_copies = entry.holdings.iter().filter(has_copy);
        let others: Vec<(SlotKey, RoleKey)> = with_copies
            .map(|holding| (holding.slot, self.slots[holding.slot].role))
            .collect();
        let Self {
            slots,
            roles,
            sorter,
            ..
        } = self;
        if !others.iter().any(|other| other.0 == slot) {
            sorter.add_allocated(slots[slot].node, kind, change);
        }
        if !others.iter().any(|other| other.1 == role) {
            sorter.add_allocated(roles[role].own, kind, change);
        }
        let mut next = Some(role);
        while let Some(above) = next {
            if !others
                .iter()
                .any(|other| roles.is_in_subtree(other.1, above))
            {
                sorter.add_allocated(roles[above].node, kind, change);
                if regular {
                    roles.consume(above, kind, change);
                }
            }
            next = roles[above].parent;
        }
        if regular {
            roles.refresh(role, kind);
        }
    }

    /// Removes unused classes, and resource names without a class or quota, once there are many.
    pub(crate) fn sweep_classes(&mut self) {
        if !self.classes.needs_sweep() {
            return;
        }
        let mut living = Bits::default();
        for (_, agent) in self.agents.iter() {
            let held = agent
                .holdings
                .iter()
                .flat_map(|holding| holding.resources.classes());
            let all = agent
                .total
                .classes()
                .chain(held)
                .chain(agent.filters.classes());
            for class in all {
                living.insert(class);
            }
        }
        self.classes.sweep(&mut self.roles, &living);
        let of_quotas = self
            .roles
            .iter()
            .filter_map(|(_, role)| role.quota.as_ref());
        let in_quotas = of_quotas.flat_map(|quota| quota.guarantees.iter().chain(&quota.limits));
        self.classes.sweep_kinds(in_quotas.map(|(kind, _)| *kind));
    }

    /// Whether legacy guarantees leave no cpus or no memory; without these, no other surplus is usable.
    pub(crate) fn is_surplus_unusable(&self) -> bool {
        let lacks = |kind| self.roles.has_legacy_guarantee(kind) && self.surplus(kind) == 0;
        lacks(self.cpus) || lacks(self.mem)
    }

    /// The amount of a kind that remains beyond all guarantees.
    #[inline]
    pub(crate) fn surplus(&self, kind: Kind) -> i64 {
        let required = self.roles.required(kind);
        if required <= 0 {
            return i64::MAX;
        }
        let available = self.headroom.get(at(kind)).copied().unwrap_or(0);
        (available - required).max(0)
    }
}

/// Only regular, unshared resources may serve guarantees.
fn change_headroom(headroom: &mut Vec<i64>, classes: &Classes, changed: &Bundle, sign: i64) {
    for (class, amount) in &changed.scalars {
        let class = &classes[*class];
        if class.regular && !class.shared {
            bump(headroom, class.kind, amount * sign);
        }
    }
}

#[inline]
fn bump(amounts: &mut Vec<i64>, kind: Kind, change: i64) {
    if amounts.len() <= at(kind) {
        amounts.resize(at(kind) + 1, 0);
    }
    amounts[at(kind)] = amounts[at(kind)].saturating_add(change);
}

fn unshared(bundle: &Bundle, classes: &Classes) -> Bundle {
    let mut unshared = bundle.clone();
    unshared
        .scalars
        .retain(|(class, _)| !classes[*class].shared);
    unshared
}
