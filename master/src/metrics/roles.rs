//! What roles are guaranteed, limited to and use, for Prometheus.

use std::collections::BTreeMap;

use meseta_resources::{ResourceName, Role, Scalar};

use super::{Families, MEGABYTE};
use crate::core::Snapshot;
use crate::views::{self, Tally};

/// Roles with series of their own: the first by name, so that series do not come and go with amounts.
const ROLES_MAX: usize = 1_000;

type Series = Vec<(Vec<String>, f64)>;

pub(super) fn families(
    families: &mut Families,
    snapshot: &Snapshot,
) -> Result<(), prometheus::Error> {
    let all = views::tallies(snapshot);
    let tallies: Vec<(&Role, &Tally<'_>)> = all.iter().take(ROLES_MAX).collect();
    let quotas = || snapshot.quotas.iter().take(ROLES_MAX);
    let mut guarantees = Series::new();
    let mut limits = Series::new();
    for (role, quota) in quotas() {
        guarantees.extend(quota.guarantees.iter().map(|amount| series(role, amount)));
        limits.extend(quota.limits.iter().map(|amount| series(role, amount)));
    }
    let labels = ["role", "resource"];
    families.gauge(
        "meseta_master_role_guarantee",
        "What a role is guaranteed; memory and disk in bytes.",
        &labels,
        guarantees,
    )?;
    families.gauge(
        "meseta_master_role_limit",
        "What a role is limited to; memory and disk in bytes.",
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
        "What counts towards a role's quota, with that of the roles below it; memory and disk in bytes.",
        &labels,
        consumed(&tallies, &all, snapshot),
    )?;
    families.gauge(
        "meseta_master_role_allocated",
        "What a role's frameworks use, with those of the roles below it; memory and disk in bytes.",
        &labels,
        of_roles(|tally| &tally.allocated),
    )?;
    families.gauge(
        "meseta_master_role_offered",
        "What a role's frameworks are offered, with those of the roles below it; memory and disk in bytes.",
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

/// What the first roles consume, and of each role with a quota what that names, also where it has none of it: a role that
/// gets nothing of what it is guaranteed would have no series otherwise, and nothing to compare.
fn consumed(
    first: &[(&Role, &Tally<'_>)],
    all: &BTreeMap<Role, Tally<'_>>,
    snapshot: &Snapshot,
) -> Series {
    let mut amounts: BTreeMap<(&Role, &ResourceName), Scalar> = BTreeMap::new();
    for (role, tally) in first {
        let each = tally.consumed.iter();
        amounts.extend(each.map(|(name, amount)| ((*role, name), amount)));
    }
    for (role, quota) in snapshot.quotas.iter().take(ROLES_MAX) {
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

    /// The worst that can come of a guarantee had no series, and no alert.
    #[test]
    fn a_role_that_gets_nothing_of_its_guarantee_consumes_zero() {
        let snapshot = many_frameworks(0, 0);
        let mut snapshot = Arc::into_inner(snapshot).expect("nobody else has it");
        let mut quota = Quota::default();
        let name = |text: &str| ResourceName::new(text).expect("a name");
        quota.guarantees.set(&name("cpus"), Scalar::from_units(100));
        quota.limits.set(&name("mem"), Scalar::from_units(1_024));
        let role = Role::new("eng").expect("a role");
        snapshot.quotas = Arc::new([(role, quota)].into());
        let mut made = Families(Vec::new());
        families(&mut made, &snapshot).expect("families");
        let family = made.0.iter();
        let mut family = family.filter(|one| one.name() == "meseta_master_role_consumed");
        let metrics = family.next().expect("the family").get_metric();
        let told: Vec<_> = metrics
            .iter()
            .map(|one| (one.get_label()[0].value(), one.get_gauge().get_value()))
            .collect();
        // Labels are sorted by their names: of the resource, of the role.
        assert_eq!(told.len(), 2, "{told:?}");
        for resource in ["cpus", "mem"] {
            assert!(told.contains(&(resource, 0.0)), "{told:?}");
        }
    }
}
