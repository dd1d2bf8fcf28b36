//! Roles: who may use how much, and who uses it.

use std::collections::BTreeMap;

use meseta_proto::v0::Quantities;
use meseta_resources::{FrameworkId, ResourceQuantities, Role};
use serde::Serialize;

use crate::core::Snapshot;

#[derive(Debug, Default)]
struct Tally<'a> {
    allocated: ResourceQuantities,
    offered: ResourceQuantities,
    reserved: ResourceQuantities,
    frameworks: Vec<&'a FrameworkId>,
}

/// `/roles`: those in use, and all above them.
pub(in super::super) fn roles(snapshot: &Snapshot) -> impl Serialize + '_ {
    #[derive(Serialize)]
    struct Roles {
        roles: Vec<serde_json::Value>,
    }
    let mut tallies: BTreeMap<Role, Tally<'_>> = BTreeMap::new();
    for framework in &snapshot.frameworks {
        for role in &framework.roles {
            tallies
                .entry(role.clone())
                .or_default()
                .frameworks
                .push(&framework.id);
        }
    }
    for agent in &snapshot.agents {
        for used in agent.used.values() {
            for (role, resources) in used.allocations() {
                tallies.entry(role).or_default().allocated += &resources.quantities();
            }
        }
        for (role, resources) in agent.offered.allocations() {
            tallies.entry(role).or_default().offered += &resources.quantities();
        }
        for (role, resources) in agent.profile.total.reservations() {
            tallies.entry(role).or_default().reserved += &resources.quantities();
        }
    }
    for role in snapshot
        .weights
        .keys()
        .chain(snapshot.whitelisted_roles.iter().flatten())
    {
        tallies.entry(role.clone()).or_default();
    }
    let ancestors: Vec<Role> = tallies.keys().flat_map(Role::ancestors).collect();
    for role in ancestors {
        tallies.entry(role).or_default();
    }
    let roles = tallies
        .iter()
        .map(|(role, tally)| view(snapshot, role, tally))
        .collect();
    Roles { roles }
}

fn view(snapshot: &Snapshot, role: &Role, tally: &Tally<'_>) -> serde_json::Value {
    let held = &tally.allocated + &tally.offered;
    let frameworks: Vec<_> = tally.frameworks.iter().map(|id| id.as_str()).collect();
    serde_json::json!({
        "name": role.as_str(),
        "weight": snapshot.weights.get(role).copied().unwrap_or(1.0),
        "quota": {
            "role": role.as_str(),
            "guarantee": {},
            "limit": {},
            "consumed": Quantities(&tally.allocated),
        },
        "resources": Quantities(&held),
        "allocated": Quantities(&tally.allocated),
        "offered": Quantities(&tally.offered),
        "reserved": Quantities(&tally.reserved),
        "frameworks": frameworks,
    })
}
