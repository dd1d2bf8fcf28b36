//! The calls about frameworks and roles: subscriptions, suppression, weights, quota.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_resources::{AgentId, FrameworkId, Resources, Role, Scalar};

use crate::Allocator;
use crate::agent_calls::check_allocated;
use crate::agents::AgentKey;
use crate::bits::Bits;
use crate::constraints::{ConstraintsOfRoles, OfferConstraints};
use crate::error::Error;
use crate::framework::{Framework, FrameworkKey, Minimum, Slot};
use crate::quota::Quota;
use crate::roles::{RoleKey, RoleQuota, SlotKey};
use crate::slab::KeyMap;
use crate::sorter::Kind;
use crate::spec::{FrameworkCapabilities, FrameworkSpec};

impl Allocator {
    /// Adds a framework. The framework holds the resources that agents have already reported as used; `used` adds
    /// those on known agents without a report.
    ///
    /// # Errors
    /// If the framework is known already, or the call is contradictory.
    pub fn add_framework(
        &mut self,
        id: &FrameworkId,
        spec: &FrameworkSpec,
        active: bool,
        used: &BTreeMap<AgentId, Resources>,
    ) -> Result<(), Error> {
        if self.framework_key(id).is_ok() {
            return Err(Error::DuplicateFramework(id.clone()));
        }
        check_spec(id, spec)?;
        for used in used.values() {
            check_allocated(used)?;
        }
        let key = self.framework_or_placeholder(id);
        let framework = &mut self.frameworks[key];
        (framework.added, framework.active) = (true, active);
        self.apply_spec(key, spec);
        for (agent, used) in used {
            let Ok(agent) = self.agent_key(agent) else {
                continue;
            };
            let slots = &self.frameworks[key].slots;
            let holdings = &self.agents[agent].holdings;
            if !holdings.iter().any(|holding| slots.contains(&holding.slot)) {
                self.count_headroom(agent, -1);
                self.track_used(agent, id, used);
                self.compute_free(agent);
            }
        }
        if active {
            self.all_dirty = true;
        }
        Ok(())
    }

    /// Removes a framework; everything that it held becomes free.
    ///
    /// # Errors
    /// For an unknown framework.
    pub fn remove_framework(&mut self, id: &FrameworkId) -> Result<(), Error> {
        self.remove_framework_from(id, std::iter::empty::<&AgentId>())
    }

    /// Removes a framework that holds resources on these agents. If it holds more elsewhere, a scan of all agents
    /// finds it.
    ///
    /// # Errors
    /// For an unknown framework.
    pub fn remove_framework_from<'a>(
        &mut self,
        id: &FrameworkId,
        agents: impl IntoIterator<Item = &'a AgentId>,
    ) -> Result<(), Error> {
        let key = self.framework_key(id)?;
        let slots = self.frameworks[key].slots.clone();
        for agent in agents {
            if let Ok(agent) = self.agent_key(agent) {
                self.release_all(agent, &slots);
            }
        }
        if slots.iter().any(|slot| self.slots[*slot].holdings > 0) {
            let agents: Vec<_> = self.agents.iter().map(|(agent, _)| agent).collect();
            for agent in agents {
                self.release_all(agent, &slots);
            }
        }
        for agent in std::mem::take(&mut self.frameworks[key].asked) {
            if let Some(maintenance) = self.maintenance_of(agent) {
                maintenance.forget(id);
            }
        }
        self.clear_filters(&slots);
        for slot in slots {
            self.slots[slot].subscribed = false;
            self.place_slot(slot);
            self.drop_slot_if_unused(slot);
        }
        self.drop_framework(key);
        Ok(())
    }

    /// Releases everything held in these slots on an agent.
    fn release_all(&mut self, agent: AgentKey, slots: &[SlotKey]) {
        for slot in slots {
            if self.slots[*slot].holdings > 0
                && let Some(held) = self.agents[agent].held_by(*slot).cloned()
            {
                self.release(agent, *slot, &held);
                self.mark_dirty(agent);
            }
        }
    }

    fn drop_framework(&mut self, key: FrameworkKey) {
        if let Some(framework) = self.frameworks.remove(key) {
            self.framework_keys.remove(&framework.id);
        }
    }

    /// Updates a framework's roles and requests. Roles that are no longer suppressed lose their filters.
    ///
    /// # Errors
    /// For an unknown framework, or if the call is contradictory.
    pub fn update_framework(
        &mut self,
        id: &FrameworkId,
        spec: &FrameworkSpec,
    ) -> Result<(), Error> {
        let key = self.framework_key(id)?;
        check_spec(id, spec)?;
        self.apply_spec(key, spec);
        self.all_dirty = true;
        Ok(())
    }

    /// Marks the framework as connected again.
    ///
    /// # Errors
    /// For an unknown framework.
    pub fn activate_framework(&mut self, id: &FrameworkId) -> Result<(), Error> {
        let key = self.framework_key(id)?;
        self.frameworks[key].active = true;
        for slot in self.frameworks[key].slots.clone() {
            self.place_slot(slot);
        }
        self.all_dirty = true;
        Ok(())
    }

    /// Marks the framework as disconnected: it gets no offers, and loses its filters.
    ///
    /// # Errors
    /// For an unknown framework.
    pub fn deactivate_framework(&mut self, id: &FrameworkId) -> Result<(), Error> {
        let key = self.framework_key(id)?;
        self.frameworks[key].active = false;
        let slots = self.frameworks[key].slots.clone();
        self.clear_filters(&slots);
        for slot in slots {
            self.place_slot(slot);
        }
        self.clear_inverse_filters(key);
        Ok(())
    }

    /// Stops offers for these roles until they are revived; an empty set means all roles.
    ///
    /// # Errors
    /// For an unknown framework, or one without one of the roles.
    pub fn suppress(&mut self, id: &FrameworkId, roles: &BTreeSet<Role>) -> Result<(), Error> {
        let key = self.framework_key(id)?;
        for slot in self.named_slots(key, roles)? {
            self.slots[slot].suppressed = true;
            self.place_slot(slot);
        }
        Ok(())
    }

    /// Resumes offers for these roles, and clears their filters; an empty set means all roles.
    ///
    /// # Errors
    /// For an unknown framework, or one without one of the roles.
    pub fn revive(&mut self, id: &FrameworkId, roles: &BTreeSet<Role>) -> Result<(), Error> {
        let key = self.framework_key(id)?;
        let slots = self.named_slots(key, roles)?;
        self.clear_filters(&slots);
        for slot in slots {
            self.slots[slot].suppressed = false;
            self.place_slot(slot);
        }
        self.clear_inverse_filters(key);
        self.all_dirty = true;
        Ok(())
    }

    fn named_slots(
        &self,
        key: FrameworkKey,
        roles: &BTreeSet<Role>,
    ) -> Result<Vec<SlotKey>, Error> {
        let framework = &self.frameworks[key];
        if roles.is_empty() {
            let slots = framework.slots.iter().copied();
            return Ok(slots.filter(|slot| self.slots[*slot].subscribed).collect());
        }
        let slot = |role: &Role| {
            let slot = self
                .roles
                .find(role)
                .and_then(|role| self.slot_of(key, role));
            slot.filter(|slot| self.slots[*slot].subscribed)
                .ok_or_else(|| Error::NotSubscribed {
                    framework: framework.id.clone(),
                    role: role.clone(),
                })
        };
        roles.iter().map(slot).collect()
    }

    /// Sets weights; 1 is the default. A weight also stays for an unused role.
    ///
    /// # Errors
    /// If a weight is not a finite number above 0; nothing changes then.
    pub fn update_weights(&mut self, weights: &[(Role, f64)]) -> Result<(), Error> {
        for (role, weight) in weights {
            Self::check_role(role)?;
            if !weight.is_finite() || *weight <= 0.0 {
                return Err(Error::Weight {
                    role: role.clone(),
                    weight: *weight,
                });
            }
        }
        for (role, weight) in weights {
            let key = self.roles.ensure(&mut self.sorter, role);
            let differs = weight.total_cmp(&1.0).is_ne();
            self.roles[key].weight = differs.then_some(*weight);
            self.sorter.set_weight(self.roles[key].node, *weight);
            self.roles.prune(&mut self.sorter, key);
        }
        Ok(())
    }

    /// Sets the quota of a role; the default quota removes it.
    ///
    /// # Errors
    /// If a limit is negative or below the guarantee.
    pub fn update_quota(&mut self, role: &Role, quota: &Quota) -> Result<(), Error> {
        Self::check_role(role)?;
        quota.check(role)?;
        let classes = &mut self.classes;
        let mut compile =
            |name: &_, amount: Scalar| -> (Kind, i64) { (classes.kind(name), amount.millis()) };
        let guarantees = quota
            .guarantees
            .iter()
            .map(|(name, n)| compile(name, n))
            .collect();
        let limits = quota
            .limits
            .iter()
            .map(|(name, n)| compile(name, n))
            .collect();
        let compiled = RoleQuota {
            guarantees,
            limits,
            legacy: quota.legacy,
        };
        let key = self.roles.ensure(&mut self.sorter, role);
        self.roles
            .set_quota(key, (!quota.is_default()).then_some(compiled));
        self.roles.prune(&mut self.sorter, key);
        self.relaxed = true;
        // Cycles visit held-back agents only while there is quota; removing the last quota frees them all.
        self.all_dirty = true;
        Ok(())
    }

    pub(crate) fn framework_or_placeholder(&mut self, id: &FrameworkId) -> FrameworkKey {
        if let Some(key) = self.framework_keys.get(id) {
            return *key;
        }
        let key = self.frameworks.insert(Framework {
            id: id.clone(),
            capabilities: FrameworkCapabilities::default(),
            active: false,
            added: false,
            slots: Vec::new(),
            slot_by_role: KeyMap::default(),
            asked: BTreeSet::new(),
        });
        self.framework_keys.insert(id.clone(), key);
        key
    }

    pub(crate) fn ensure_slot(&mut self, framework: FrameworkKey, role: &Role) -> SlotKey {
        let role_key = self.roles.ensure(&mut self.sorter, role);
        if let Some(slot) = self.slot_of(framework, role_key) {
            return slot;
        }
        let name = self.frameworks[framework].id.as_str().into();
        let bound = self.slots.bound();
        let own = self.roles[role_key].own;
        let local = self.roles[role_key].slots.insert(bound);
        let key = self.slots.insert(Slot {
            framework,
            role: role_key,
            local,
            node: 0,
            filters: 0,
            subscribed: false,
            suppressed: false,
            is_nested: self.roles[role_key].parent.is_some(),
            minimum: None,
            profile: None,
            constraints: OfferConstraints::default(),
            excluded: None,
            holdings: 0,
        });
        self.roles[role_key].slots[local] = key;
        let node = self.sorter.add(own, name, key);
        let filters = self.filters.new_owner(key, framework, role_key, local);
        let slot = &mut self.slots[key];
        (slot.node, slot.filters) = (node, filters);
        let framework = &mut self.frameworks[framework];
        framework.slots.push(key);
        framework.slot_by_role.insert(role_key, key);
        key
    }

    fn apply_spec(&mut self, key: FrameworkKey, spec: &FrameworkSpec) {
        let before = std::mem::replace(&mut self.frameworks[key].capabilities, spec.capabilities);
        // The former capabilities decided about the filters.
        let mut slots = self.frameworks[key].slots.iter();
        let filters = |slot: &SlotKey| self.filters.count(self.slots[*slot].filters);
        let are_misjudged = before != spec.capabilities && slots.any(|slot| filters(slot) > 0);
        self.constrain(key, spec);
        let mut minimums = KeyMap::default();
        let mut revived = Vec::new();
        for role in &spec.roles {
            let slot = self.ensure_slot(key, role);
            let suppressed = spec.suppressed.contains(role);
            if self.slots[slot].suppressed && !suppressed {
                revived.push(slot);
            }
            let minimum = spec.min_allocatable.get(role);
            let minimum = minimum.map(|minimum| {
                let compile = || Arc::new(Minimum::of_framework(&self.classes, minimum));
                minimums.entry(minimum).or_insert_with(compile).clone()
            });
            self.set_minimum(slot, minimum);
            self.update_profile(slot);
            let entry = &mut self.slots[slot];
            (entry.subscribed, entry.suppressed) = (true, suppressed);
            self.place_slot(slot);
        }
        let left = self.frameworks[key].slots.iter().copied().filter(|slot| {
            let slot = &self.slots[*slot];
            slot.subscribed && !spec.roles.contains(&self.roles[slot.role].role)
        });
        let left: Vec<SlotKey> = left.collect();
        revived.extend(&left);
        self.clear_filters(&revived);
        for slot in left {
            self.set_minimum(slot, None);
            let entry = &mut self.slots[slot];
            (entry.subscribed, entry.suppressed) = (false, false);
            entry.constraints = OfferConstraints::default();
            self.set_excluded(slot, None);
            self.place_slot(slot);
            self.drop_slot_if_unused(slot);
        }
        if are_misjudged {
            self.reconsider_filters();
        }
    }

    /// Finds the agents that the constraints of roles exclude, if the constraints have changed.
    fn constrain(&mut self, key: FrameworkKey, spec: &FrameworkSpec) {
        let none = OfferConstraints::default();
        let mut changed = Vec::new();
        for role in &spec.roles {
            let slot = self.ensure_slot(key, role);
            let constraints = spec.constraints.get(role).unwrap_or(&none);
            if self.slots[slot].constraints != *constraints {
                changed.push((slot, constraints));
            }
        }
        let mut excluded = vec![Bits::default(); changed.len()];
        if changed.iter().any(|(_, new)| !new.groups.is_empty()) {
            let mut all = ConstraintsOfRoles::from_roles(changed.iter().map(|(_, new)| *new));
            for (agent, entry) in self.agents.iter() {
                for role in all.ruled_out(&entry.facts) {
                    excluded[role].insert(agent);
                }
            }
        }
        for ((slot, new), excluded) in changed.into_iter().zip(excluded) {
            self.set_excluded(slot, (!new.groups.is_empty()).then_some(excluded));
            self.slots[slot].constraints = new.clone();
        }
    }

    fn set_excluded(&mut self, slot: SlotKey, excluded: Option<Bits>) {
        let entry = &mut self.slots[slot];
        self.constrained += usize::from(excluded.is_some());
        self.constrained -= usize::from(entry.excluded.is_some());
        entry.excluded = excluded;
    }

    /// Marks all refusals as outdated, because they depend on capabilities.
    fn reconsider_filters(&mut self) {
        for (_, agent) in self.agents.iter_mut() {
            agent.filters.forget_basis();
        }
    }

    fn set_minimum(&mut self, slot: SlotKey, minimum: Option<Arc<Minimum>>) {
        let entry = &mut self.slots[slot];
        let role = &mut self.roles[entry.role];
        match (entry.minimum.is_some(), minimum.is_some()) {
            (false, true) => {
                self.minimum_overrides += 1;
                role.own_minimums += 1;
            }
            (true, false) => {
                self.minimum_overrides -= 1;
                role.own_minimums -= 1;
            }
            _ => {}
        }
        entry.minimum = minimum;
    }

    /// Adds a slot to the active slots of its role, or removes it.
    pub(crate) fn place_slot(&mut self, slot: SlotKey) {
        let entry = &self.slots[slot];
        let active =
            entry.subscribed && !entry.suppressed && self.frameworks[entry.framework].active;
        let role = entry.role;
        if active {
            self.sorter.activate(entry.node);
            self.roles[entry.role].active.insert(entry.local);
        } else {
            self.sorter.deactivate(entry.node);
            let role = &mut self.roles[entry.role];
            let left = role.active.remove(entry.local) && role.active.is_empty();
            if left && self.roles.guarantees > 0 {
                // Roles below may now claim the role's guarantee.
                self.all_dirty = true;
            }
        }
        self.forget_profile_of(role);
    }

    /// Clears the filters of slots with at most one pass over all agents.
    pub(crate) fn clear_filters(&mut self, slots: &[SlotKey]) {
        let mut everywhere: KeyMap<RoleKey, Bits> = KeyMap::default();
        for slot in slots {
            let entry = &self.slots[*slot];
            let (framework, role) = (entry.framework, entry.role);
            let (local, old) = (entry.local, entry.filters);
            if self.filters.count(old) == 0 {
                continue;
            }
            let agents = self.filters.agents(old).map(<[AgentKey]>::to_vec);
            self.filters.retire(old);
            if let Some(agents) = agents {
                for agent in agents {
                    if self.agents.contains(agent) {
                        self.agents[agent].filters.forget(role, local);
                    }
                }
            } else {
                everywhere.entry(role).or_default().insert(local);
            }
            let filters = self.filters.new_owner(*slot, framework, role, local);
            self.slots[*slot].filters = filters;
        }
        if !everywhere.is_empty() {
            for (_, agent) in self.agents.iter_mut() {
                agent.filters.forget_all(&everywhere);
            }
        }
    }

    fn clear_inverse_filters(&mut self, key: FrameworkKey) {
        let asked = std::mem::take(&mut self.frameworks[key].asked);
        let framework = self.frameworks[key].id.clone();
        for agent in &asked {
            if let Some(maintenance) = self.maintenance_of(*agent) {
                maintenance.clear_filter(&framework);
            }
        }
        self.frameworks[key].asked = asked;
    }

    /// Removes an unused slot. A slot exists while it is subscribed or holds resources; a framework that was never
    /// added exists while it has a slot.
    pub(crate) fn drop_slot_if_unused(&mut self, slot: SlotKey) {
        if !self.slots.contains(slot) {
            return;
        }
        let entry = &self.slots[slot];
        if entry.subscribed || entry.holdings > 0 {
            return;
        }
        self.set_minimum(slot, None);
        self.set_excluded(slot, None);
        self.clear_filters(&[slot]);
        let Some(entry) = self.slots.remove(slot) else {
            return;
        };
        let role: RoleKey = entry.role;
        self.drop_profile(entry.profile);
        self.filters.retire(entry.filters);
        self.sorter.remove(entry.node);
        let node = &mut self.roles[role];
        node.slots.remove(entry.local);
        debug_assert!(
            !node.active.contains(entry.local),
            "unsubscribed, so not active"
        );
        self.roles.prune(&mut self.sorter, role);
        let framework = &mut self.frameworks[entry.framework];
        framework.slots.retain(|other| *other != slot);
        framework.slot_by_role.remove(&role);
        if !framework.added && framework.slots.is_empty() {
            self.drop_framework(entry.framework);
        }
    }
}

fn check_spec(id: &FrameworkId, spec: &FrameworkSpec) -> Result<(), Error> {
    for role in &spec.roles {
        Allocator::check_role(role)?;
    }
    let named = spec.suppressed.iter();
    let named = named
        .chain(spec.min_allocatable.keys())
        .chain(spec.constraints.keys());
    for role in named {
        if !spec.roles.contains(role) {
            return Err(Error::NotSubscribed {
                framework: id.clone(),
                role: role.clone(),
            });
        }
    }
    for (role, constraints) in &spec.constraints {
        if constraints.groups.iter().any(Vec::is_empty) {
            return Err(Error::Constraint {
                role: role.clone(),
                what: "a group without constraints",
            });
        }
    }
    Ok(())
}
