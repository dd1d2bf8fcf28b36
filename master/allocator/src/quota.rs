//! Quota as operators set it: guarantees, limits, and the older form in which one number is both.

use meseta_resources::{
    ResourceLimits, ResourceName, ResourceQuantities, Resources, Role, Scalar, Value,
};

use crate::Allocator;
use crate::error::Error;

/// The quota of one role. Amounts include the whole subtree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Held back for the role when it does not use it.
    pub guarantees: ResourceQuantities,
    /// Never exceeded by offers; what is not named is not limited.
    pub limits: ResourceLimits,
    /// The older meaning: once the guarantee is met, the role gets nothing that is neither reserved nor
    /// revocable, of any name.
    pub legacy: bool,
}

impl Quota {
    /// Whether there is nothing to enforce.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.guarantees.is_empty() && self.limits.is_empty() && !self.legacy
    }

    /// The older form: a guarantee that is also the limit.
    ///
    /// # Errors
    /// When a resource is not a plain scalar or comes twice.
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
/// When a resource is not a plain scalar or comes twice.
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
    /// Whether the tree of quotas stays sound with this one: a role below another needs that one to have
    /// a guarantee, and what is guaranteed below a role is not more than what is guaranteed to it. For
    /// operators' requests; [`Allocator::update_quota`] itself enforces any tree.
    ///
    /// # Errors
    /// Says which rule is broken.
    pub fn check_quota_tree(&self, role: &Role, quota: &Quota) -> Result<(), Error> {
        let quotas = self.quotas();
        let guarantees = |of: &Role| match of == role {
            true => quota.guarantees.clone(),
            false => quotas
                .get(of)
                .map(|quota| quota.guarantees.clone())
                .unwrap_or_default(),
        };
        let parents = [Some(role.clone()), role.parent()].into_iter().flatten();
        for parent in parents {
            let mut below = ResourceQuantities::new();
            let others = quotas.keys().filter(|other| *other != role).chain([role]);
            for child in others.filter(|child| child.parent().as_ref() == Some(&parent)) {
                below += &guarantees(child);
            }
            let own = guarantees(&parent);
            for (name, sum) in below.iter() {
                let guarantee = own.get(name.as_str());
                if sum > guarantee {
                    let (role, name) = (parent, name.clone());
                    return Err(Error::QuotaBelowChildren {
                        role,
                        name,
                        guarantee,
                        sum,
                    });
                }
            }
        }
        Ok(())
    }
}

/// Whether a cluster can carry a quota: `total resources - statically reserved >= total quota + request`.
/// The first name for which it cannot is returned, with what there is and what is asked for.
///
/// # Errors
/// See above.
pub fn check_capacity(
    capacity: &ResourceQuantities,
    guaranteed: &ResourceQuantities,
    request: &ResourceQuantities,
) -> Result<(), CapacityError> {
    let wanted = guaranteed + request;
    for (name, wanted) in wanted.iter() {
        let available = capacity.get(name.as_str());
        // A kind that the request does not name is not the request's fault.
        if request.get(name.as_str()).is_positive() && wanted > available {
            return Err(CapacityError {
                name: name.clone(),
                wanted,
                available,
            });
        }
    }
    Ok(())
}

/// See [`check_capacity`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not enough cluster capacity: {wanted} {name} would be guaranteed in all, and there are {available}; \
     'force' skips this check"
)]
pub struct CapacityError {
    pub name: ResourceName,
    pub wanted: Scalar,
    pub available: Scalar,
}
