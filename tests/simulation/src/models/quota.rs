//! The model of quota: a role is offered nothing beyond its limit, and no role is offered another's guarantee.
//!
//! Unreserved resources count that are offered to a role or used by it, except revocable ones, and all reservations of the
//! role; each counts also for every role above it.

use std::collections::BTreeMap;

use meseta_allocator::Quota;
use meseta_resources::{ResourceQuantities, Resources, Role};

/// The resources that the roles of a cluster hold.
#[derive(Debug, Default)]
pub(crate) struct Held(BTreeMap<Role, ResourceQuantities>);

impl Held {
    /// Counts resources that are allocated to roles.
    pub(crate) fn allocated(&mut self, resources: &Resources) {
        for (role, allocated) in resources.allocations() {
            self.add(&role, &allocated.unreserved());
        }
    }

    /// Counts the reservations in an agent's total.
    pub(crate) fn reserved(&mut self, total: &Resources) {
        for (role, reserved) in total.reservations() {
            self.add(&role, &reserved);
        }
    }

    fn add(&mut self, role: &Role, resources: &Resources) {
        let amount = resources.unrevocable().unshared().scalar_quantities();
        let mut next = Some(role.clone());
        while let Some(role) = next {
            next = role.parent();
            *self.0.entry(role).or_default() += &amount;
        }
    }

    fn by_role(&self, role: &Role) -> ResourceQuantities {
        self.0.get(role).cloned().unwrap_or_default()
    }

    /// Returns the exceeded limit of an offer to a role, of that role or one above it.
    pub(crate) fn exceeded(
        &self,
        quotas: &BTreeMap<Role, Quota>,
        role: &Role,
        offered: &Resources,
    ) -> Option<String> {
        let offered = offered.unreserved().unrevocable().scalar_quantities();
        let mut next = Some(role.clone());
        while let Some(role) = next {
            let held = self.by_role(&role);
            let limits = quotas.get(&role).map(|quota| &quota.limits);
            for (name, limit) in limits.into_iter().flat_map(|limits| limits.iter()) {
                if offered.get(name.as_str()).is_positive() && held.get(name.as_str()) > limit {
                    return Some(format!(
                        "role {role} holds {held} and may hold {name}:{limit}"
                    ));
                }
            }
            next = role.parent();
        }
        None
    }

    /// Returns the unmet guarantees of all top-level roles together.
    pub(crate) fn unmet(&self, quotas: &BTreeMap<Role, Quota>) -> ResourceQuantities {
        let mut unmet = ResourceQuantities::new();
        for (role, quota) in quotas.iter().filter(|(role, _)| role.parent().is_none()) {
            unmet += &(&quota.guarantees - &self.by_role(role));
        }
        unmet
    }
}
