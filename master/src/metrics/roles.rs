//! What roles are guaranteed, limited to and use, for Prometheus.

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
    let tallies = views::tallies(snapshot);
    let tallies: Vec<(&Role, &Tally<'_>)> = tallies.iter().take(ROLES_MAX).collect();
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
        of_roles(|tally| &tally.consumed),
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
