//! Quota set by operators: guarantees, limits, and the legacy form in which one number is both.

use std::collections::{BTreeMap, BTreeSet};

use meseta_resources::{
    ResourceLimits, ResourceName, ResourceQuantities, Resources, Role, Scalar, Value,
};

use crate::Allocator;
use crate::error::Error;

/// The quota of one role. Amounts include the whole subtree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Amounts held back for the role while it does not use them.
    pub guarantees: ResourceQuantities,
    /// Limits that offers never exceed. A resource that is not named has no limit.
    pub limits: ResourceLimits,
    /// The legacy semantics: once the guarantee is met, the role gets no more unreserved non-revocable resources,
    /// whatever their name.
    pub legacy: bool,
}

impl Quota {
    /// Whether the quota enforces nothing.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.guarantees.is_empty() && self.limits.is_empty() && !self.legacy
    }

    /// The legacy quota: a guarantee that is also the limit.
    ///
    /// # Errors
    /// If a resource is not a plain scalar or appears twice.
    pub fn legacy(guarantee: &Resources) -> Result<Self, Error> {
        let guarantees = quantities(guarantee)?;
        let limits = guarantees
            .iter()
            .map(|(name, amount)| (name.clone(), amount))
            .collect();
        Ok(Self {
            guarantees,
            limits,
            legacy: true,
        })
    }

    pub(crate) fn check(&self, role: &Role) -> Result<(), Error> {
        for (name, limit) in self.limits.iter() {
            if limit.is_negative() {
                return Err(Error::NegativeLimit {
                    role: role.clone(),
                    name: name.clone(),
                    limit,
                });
            }
            let guarantee = self.guarantees.get(name.as_str());
            if limit < guarantee {
                let (role, name) = (role.clone(), name.clone());
                return Err(Error::LimitBelowGuarantee {
                    role,
                    name,
                    limit,
                    guarantee,
                });
            }
        }
        Ok(())
    }
}

/// The amounts of a quota request.
///
/// # Errors
/// If a resource is not a plain scalar or appears twice.
pub fn quantities(resources: &Resources) -> Result<ResourceQuantities, Error> {
    let mut quantities = ResourceQuantities::new();
    for resource in resources {
        let name: &ResourceName = resource.name();
        let Value::Scalar(amount) = resource.value() else {
            return Err(Error::QuotaNotScalar(name.clone()));
        };
        let plain = resource.is_unreserved() && !resource.is_revocable() && !resource.is_shared();
        if !plain || resource.disk().is_some() {
            return Err(Error::QuotaNotPlain(name.clone()));
        }
        if quantities.get(name.as_str()) != Scalar::ZERO {
            return Err(Error::QuotaRepeats(name.clone()));
        }
        quantities.set(name, *amount);
    }
    Ok(quantities)
}

impl Allocator {
    /// Checks that the tree of quotas stays valid with this quota, see [`check_quota_tree`]. For requests of
    /// operators; [`Allocator::update_quota`] itself enforces any tree.
    ///
    /// # Errors
    /// Names the broken rule.
    pub fn check_quota_tree(&self, role: &Role, quota: &Quota) -> Result<(), Error> {
        let mut quotas = self.quotas();
        quotas.insert(role.clone(), quota.clone());
        check_quota_tree(&quotas)
    }
}

/// Checks a tree of quotas. A role below another needs a guarantee of its parent, and the guarantees of the children
/// together must not exceed that of the parent.
///
/// # Errors
/// Names the role that breaks the rule.
pub fn check_quota_tree(quotas: &BTreeMap<Role, Quota>) -> Result<(), Error> {
    let mut below: BTreeMap<Role, ResourceQuantities> = BTreeMap::new();
    for (role, quota) in quotas {
        if let Some(parent) = role.parent() {
            *below.entry(parent).or_default() += &quota.guarantees;
        }
    }
    for (role, sums) in below {
        let own = quotas.get(&role);
        for (name, sum) in sums.iter() {
            let guarantee = own.map_or(Scalar::ZERO, |own| own.guarantees.get(name.as_str()));
            if sum > guarantee {
                return Err(Error::QuotaBelowChildren {
                    role,
                    name: name.clone(),
                    guarantee,
                    sum,
                });
            }
        }
    }
    Ok(())
}

/// The total guarantee of a tree of quotas: a nested guarantee is part of its parent's.
#[must_use]
pub fn guaranteed(quotas: &BTreeMap<Role, Quota>) -> ResourceQuantities {
    let mut sums: BTreeMap<Role, ResourceQuantities> = BTreeMap::new();
    let mut all = ResourceQuantities::new();
    // Descendants come after their ancestors, so in reverse order each role is complete at its turn.
    let mut roles: BTreeSet<Role> = quotas.keys().cloned().collect();
    while let Some(role) = roles.pop_last() {
        let mut own = sums.remove(&role).unwrap_or_default();
        if let Some(quota) = quotas.get(&role) {
            for (name, guarantee) in quota.guarantees.iter() {
                own.set(name, guarantee.max(own.get(name.as_str())));
            }
        }
        match role.parent() {
            Some(parent) => {
                *sums.entry(parent.clone()).or_default() += &own;
                roles.insert(parent);
            }
            None => all += &own,
        }
    }
    all
}
