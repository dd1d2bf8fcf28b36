//! Guarantees, limits and consumption of roles, for Prometheus.

use std::collections::BTreeMap;

use meseta_allocator::Quota;
use meseta_resources::{ResourceName, ResourceQuantities, Role, Scalar};

use super::{Families, MEGABYTE};
use crate::core::Snapshot;
use crate::views::{self, Tally};

/// The number of roles with series of their own: the first by name, so that series do not come and go with amounts.
const ROLES_MAX: usize = 1_000;

type Series = Vec<(Vec<String>, f64)>;

pub(super) fn families(
    families: &mut Families,
    snapshot: &Snapshot,
    seen: &Snapshot,
) -> Result<(), prometheus::Error> {
    let mut all = views::tallies(snapshot);
    let unmet = unmet_guarantees(snapshot, seen, &all);
    all.retain(|role, _| seen.viewer_may_view_role(role));
    let tallies: Vec<(&Role, &Tally<'_>)> = all.iter().take(ROLES_MAX).collect();
    let quotas = || seen_quotas(snapshot, seen);
    let mut guarantees = Series::new();
    let mut limits = Series::new();
    for (role, quota) in quotas() {
        guarantees.extend(quota.guarantees.iter().map(|amount| series(role, amount)));
        limits.extend(quota.limits.iter().map(|amount| series(role, amount)));
    }
    let labels = ["role", "resource"];
    families.gauge(
        "meseta_master_role_guarantee",
        "The guarantee of a role; memory and disk in bytes.",
        &labels,
        guarantees,
    )?;
    families.gauge(
        "meseta_master_role_unmet_guarantee",
        "The unmet part of the guarantee of a role that waits for offers, beyond the free \
         resources of the cluster; memory and disk in bytes.",
        &labels,
        unmet,
    )?;
    families.gauge(
        "meseta_master_role_limit",
        "The limit of a role; memory and disk in bytes.",
        &labels,
        limits,
    )?;
    let of_roles =
        |amounts: for<'a> fn(&'a Tally<'_>) -> &'a meseta_resources::ResourceQuantities| {
            let all = tallies.iter();
            let each = all
                .flat_map(|(role, tally)| amounts(tally).iter().map(|amount| series(role, amount)));
            each.collect::<Series>()
        };
    families.gauge(
        "meseta_master_role_consumed",
        "Resources that count towards a role's quota, with the roles below it; memory and disk \
         in bytes.",
        &labels,
        consumed(&tallies, &all, seen_quotas(snapshot, seen)),
    )?;
    families.gauge(
        "meseta_master_role_allocated",
        "Resources in use by a role's frameworks, with the roles below it; memory and disk in \
         bytes.",
        &labels,
        of_roles(|tally| &tally.allocated),
    )?;
    families.gauge(
        "meseta_master_role_offered",
        "Resources offered to a role's frameworks, with the roles below it; memory and disk in \
         bytes.",
        &labels,
        of_roles(|tally| &tally.offered),
    )?;
    families.count(
        "meseta_master_role_frameworks",
        "Frameworks that are subscribed to a role.",
        &["role"],
        tallies
            .iter()
            .map(|(role, tally)| (vec![role.to_string()], tally.frameworks.len())),
    )
}

/// The quotas of the first roles that a reader may see.
fn seen_quotas<'a>(
    snapshot: &'a Snapshot,
    seen: &'a Snapshot,
) -> impl Iterator<Item = (&'a Role, &'a Quota)> {
    let quotas = snapshot.quotas.iter();
    quotas
        .filter(|(role, _)| seen.viewer_may_view_role(role))
        .take(ROLES_MAX)
}

/// The part of each guarantee that the role lacks and that is not free either. The master keeps the missing amount
/// free, so this is 0 in a working cluster, and also if no framework below the role waits for offers.
fn unmet_guarantees(
    snapshot: &Snapshot,
    seen: &Snapshot,
    all: &BTreeMap<Role, Tally<'_>>,
) -> Series {
    if snapshot.quotas.is_empty() {
        return Series::new();
    }
    let mut free = ResourceQuantities::new();
    for agent in snapshot.agents.iter().filter(|agent| agent.is_active()) {
        let total = agent.profile.total.unreserved().unrevocable();
        let used = agent
            .used
            .values()
            .map(|one| one.unreserved().unrevocable());
        let offered = agent.offered.unreserved().unrevocable();
        let mut left = total.quantities();
        for taken in used.chain([offered]) {
            left -= &taken.quantities();
        }
        free += &left;
    }
    let mut unmet = Series::new();
    for (role, quota) in seen_quotas(snapshot, seen) {
        let waits = snapshot.frameworks.iter().any(|framework| {
            let roles = framework.roles.difference(&framework.suppressed);
            framework.active && roles.into_iter().any(|one| one.is_in_subtree_of(role))
        });
        for (name, guarantee) in quota.guarantees.iter() {
            let of = |role: &Tally<'_>| {
                role.consumed.get(name.as_str()) + role.offered.get(name.as_str())
            };
            let has = all.get(role).map(of).unwrap_or_default() + free.get(name.as_str());
            let missing = if waits && guarantee > has {
                guarantee - has
            } else {
                Scalar::default()
            };
            unmet.push(series(role, (name, missing)));
        }
    }
    unmet
}

/// The consumption of the first roles, and of each role with a quota for the resources that the quota names, even at
/// zero: otherwise a role without any of its guarantee would have no series to compare.
fn consumed<'a>(
    first: &[(&'a Role, &'a Tally<'_>)],
    all: &BTreeMap<Role, Tally<'_>>,
    quotas: impl Iterator<Item = (&'a Role, &'a Quota)>,
) -> Series {
    let mut amounts: BTreeMap<(&Role, &ResourceName), Scalar> = BTreeMap::new();
    for (role, tally) in first {
        let each = tally.consumed.iter();
        amounts.extend(each.map(|(name, amount)| ((*role, name), amount)));
    }
    for (role, quota) in quotas {
        let named = quota.guarantees.iter().chain(quota.limits.iter());
        let tally = all.get(role);
        amounts.extend(named.map(|(name, _)| {
            let amount = tally.map(|tally| tally.consumed.get(name.as_str()));
            ((role, name), amount.unwrap_or_default())
        }));
    }
    let amounts = amounts.into_iter();
    amounts
        .map(|((role, name), amount)| series(role, (name, amount)))
        .collect()
}

fn series(role: &Role, (name, amount): (&ResourceName, Scalar)) -> (Vec<String>, f64) {
    let scale = match name.as_str() {
        "mem" | "disk" => MEGABYTE,
        _ => 1.0,
    };
    (
        vec![role.to_string(), name.to_string()],
        amount.to_f64() * scale,
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meseta_allocator::Quota;

    use super::*;
    use crate::views::tests::many_frameworks;

    /// The worst case of a guarantee used to have no series, and no alert.
    #[test]
    fn role_consuming_no_guarantee_shows_zero() {
        let snapshot = many_frameworks(0, 0);
        let mut snapshot = Arc::into_inner(snapshot).expect("nobody else has it");
        let mut quota = Quota::default();
        let name = |text: &str| ResourceName::new(text).expect("a name");
        quota.guarantees.set(&name("cpus"), Scalar::from_units(100));
        quota.limits.set(&name("mem"), Scalar::from_units(1_024));
        let role = Role::new("eng").expect("a role");
        snapshot.quotas = Arc::new([(role, quota)].into());
        let mut made = Families(Vec::new());
        families(&mut made, &snapshot, &snapshot).expect("families");
        let family = made.0.iter();
        let mut family = family.filter(|one| one.name() == "meseta_master_role_consumed");
        let metrics = family.next().expect("the family").get_metric();
        let told: Vec<_> = metrics
            .iter()
            .map(|one| (one.get_label()[0].value(), one.get_gauge().get_value()))
            .collect();
        // Labels are sorted by their names: resource, then role.
        assert_eq!(told.len(), 2, "{told:?}");
        for resource in ["cpus", "mem"] {
            assert!(told.contains(&(resource, 0.0)), "{told:?}");
        }
    }

    #[test]
    fn guarantee_is_unmet_without_free_resources() {
        let unmet = |quota_cpus: u64, role: &str| {
            let mut snapshot = Arc::into_inner(many_frameworks(1, 1)).expect("nobody else has it");
            let name = ResourceName::new("cpus").expect("a name");
            let mut quota = Quota::default();
            quota.guarantees.set(&name, Scalar::from_units(quota_cpus));
            snapshot.quotas = Arc::new([(Role::new(role).expect("a role"), quota)].into());
            let all = views::tallies(&snapshot);
            unmet_guarantees(&snapshot, &snapshot, &all)[0].1
        };
        let subscribed = many_frameworks(1, 1).frameworks[0].roles.first().cloned();
        let subscribed = subscribed.expect("a role").to_string();
        assert!(unmet(1_000_000, &subscribed) > 900_000.0);
        assert!(unmet(1, &subscribed) < 0.001, "it is free");
        assert!(unmet(1_000_000, "nobody") < 0.001, "nobody waits");
    }
}
