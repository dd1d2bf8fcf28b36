//! Roles: their quotas, weights, consumption and frameworks.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_allocator::Quota;
use meseta_proto::mesos::v1::quota::{
    QuotaConfig, QuotaInfo, QuotaSemantics as QuotaSemanticsOfRole, QuotaStatus,
};
use meseta_proto::mesos::v1::{self, WeightInfo, value};
use meseta_proto::v0::Quantities;
use meseta_resources::{FrameworkId, ResourceName, ResourceQuantities, Role, Scalar};

use super::{between_lists, write};
use crate::chunked_response::{Document, list, text};
use crate::core::{QuotaSemantics, Snapshot};

/// The sums of one role.
#[derive(Debug, Default)]
pub(crate) struct Tally<'a> {
    pub(crate) allocated: ResourceQuantities,
    pub(crate) offered: ResourceQuantities,
    pub(crate) reserved: ResourceQuantities,
    /// The amount that counts towards quota: used unreserved resources and reservations of the role and its subtree.
    pub(crate) consumed: ResourceQuantities,
    pub(crate) frameworks: Vec<&'a FrameworkId>,
}

/// The roles in use, and all their ancestors.
pub(crate) fn tallies(snapshot: &Snapshot) -> BTreeMap<Role, Tally<'_>> {
    let mut tallies: BTreeMap<Role, Tally<'_>> = BTreeMap::new();
    for framework in snapshot.frameworks.iter() {
        for role in &framework.roles {
            let tally = tallies.entry(role.clone()).or_default();
            tally.frameworks.push(&framework.id);
        }
    }
    for (role, amounts) in snapshot
        .agents
        .iter()
        .flat_map(|agent| agent.role_amounts())
    {
        let tally = tallies.entry(role.clone()).or_default();
        tally.allocated += &amounts.allocated;
        tally.offered += &amounts.offered;
        tally.reserved += &amounts.reserved;
        tally.consumed += &amounts.consumed;
    }
    let weighted = snapshot.weights.keys();
    let listed = snapshot.whitelisted_roles.iter().flatten();
    for role in weighted.chain(listed).chain(snapshot.quotas.keys()) {
        tallies.entry(role.clone()).or_default();
    }
    let ancestors: Vec<Role> = tallies.keys().flat_map(Role::ancestors).collect();
    for role in ancestors {
        tallies.entry(role).or_default();
    }
    add_up(&mut tallies);
    tallies
}

/// Adds the consumption of each subtree to its role.
fn add_up(tallies: &mut BTreeMap<Role, Tally<'_>>) {
    // A role comes after its ancestors, so in reverse order each is complete when it is added.
    let roles: Vec<Role> = tallies.keys().rev().cloned().collect();
    for role in roles {
        let Some(parent) = role.parent() else {
            continue;
        };
        let below = tallies.get(&role).map(|tally| tally.consumed.clone());
        if let (Some(below), Some(parent)) = (below, tallies.get_mut(&parent)) {
            parent.consumed += &below;
        }
    }
}

/// The approximate size of a role in a list without its frameworks, in bytes; below, that of each framework id.
const ROLE_BYTES: usize = 400;
const ID_BYTES: usize = 50;

/// Answers requests for `/roles`. Tenants create any number of roles: the tallies are computed after the head, and
/// each role is converted while it is written.
pub(crate) fn roles(snapshot: &Arc<Snapshot>) -> Document {
    let first = vec![text("{\"roles\":[")];
    let snapshot = snapshot.clone();
    let rest = move || {
        let visible = visible_roles(&snapshot);
        let ids: usize = visible.iter().map(|role| role.frameworks.len()).sum();
        let each = ROLE_BYTES + ID_BYTES * ids / visible.len().max(1);
        let roles = list(visible.len(), each, move |index, out| {
            write(out, &visible.get(index).map(|role| view(&snapshot, role)));
        });
        vec![roles, text("]}")]
    };
    Document {
        first,
        rest: Some(Box::new(rest)),
    }
}

/// A shown role with its own amounts.
struct ShownRole {
    role: Role,
    tally: Tally<'static>,
    frameworks: Vec<FrameworkId>,
}

fn visible_roles(snapshot: &Snapshot) -> Vec<ShownRole> {
    // With a whitelist, other roles are shown nowhere.
    let is_visible = |role: &Role| {
        let whitelist = snapshot.whitelisted_roles.as_ref();
        whitelist.is_none_or(|roles| roles.contains(role)) && snapshot.viewer_may_view_role(role)
    };
    let visible = tallies(snapshot).into_iter();
    let visible = visible.filter(|(role, _)| is_visible(role));
    let shown = visible.map(|(role, mut tally)| {
        let frameworks = std::mem::take(&mut tally.frameworks);
        ShownRole {
            role,
            frameworks: frameworks.into_iter().cloned().collect(),
            tally: Tally {
                frameworks: Vec::new(),
                ..tally
            },
        }
    });
    shown.collect()
}

fn view(snapshot: &Snapshot, shown: &ShownRole) -> serde_json::Value {
    let ShownRole {
        role,
        tally,
        frameworks,
    } = shown;
    let allocated_and_offered = &tally.allocated + &tally.offered;
    let frameworks: Vec<_> = frameworks.iter().map(|id| id.as_str()).collect();
    let none = Quota::default();
    let quota = snapshot.quotas.get(role).unwrap_or(&none);
    let limit: BTreeMap<&str, f64> = quota
        .limits
        .iter()
        .map(|(name, limit)| (name.as_str(), limit.to_f64()))
        .collect();
    let mut view = serde_json::json!({
        "name": role.as_str(),
        "weight": snapshot.weights.get(role).copied().unwrap_or(1.0),
        "quota": {
            "role": role.as_str(),
            "guarantee": Quantities(&quota.guarantees),
            "limit": limit,
            "consumed": Quantities(&tally.consumed),
        },
        "resources": Quantities(&allocated_and_offered),
        "allocated": Quantities(&tally.allocated),
        "offered": Quantities(&tally.offered),
        "reserved": Quantities(&tally.reserved),
        "frameworks": frameworks,
    });
    // The role of a quota with the semantics of Mesos has the format of Mesos.
    if let Some(quota) = snapshot.quotas.get(role).filter(|quota| quota.legacy) {
        view["quota"]["semantics"] = semantics(quota).into();
    }
    view
}

/// The semantics of a quota, by the values of `--quota_semantics`.
fn semantics(quota: &Quota) -> &'static str {
    if quota.legacy { "seed" } else { "head" }
}

/// The approximate size of a role's weight in a list, in bytes.
const WEIGHT_BYTES: usize = 60;

/// Answers requests for `/weights`.
pub(crate) fn weight_list(snapshot: &Snapshot) -> Document {
    let weights = weights(snapshot);
    let weights = list(weights.len(), WEIGHT_BYTES, move |index, out| {
        write(out, &weights.get(index));
    });
    Document::from_first(vec![text("["), weights, text("]")])
}

/// The answer to the call GET_WEIGHTS.
pub(crate) fn weights(snapshot: &Snapshot) -> Vec<WeightInfo> {
    let weights = snapshot.weights.iter();
    weights
        .map(|(role, weight)| WeightInfo {
            weight: *weight,
            role: Some(role.to_string()),
        })
        .collect()
}

/// The approximate size of a role's quota in a list, in bytes.
const QUOTA_BYTES: usize = 300;

/// Answers requests for `/quota`. Its parts are made one at a time: there may be thousands, and each takes several
/// times its text's size in memory.
pub(crate) fn quotas(snapshot: &Snapshot) -> Document {
    let quotas = &snapshot.quotas;
    if quotas.is_empty() {
        return Document::from_first(vec![text("{}")]);
    }
    let roles: Arc<[Role]> = quotas.keys().cloned().collect();
    let of_each = |write_one: fn(&mut Vec<u8>, (&Role, &Quota), Option<&'static str>)| {
        let (roles, quotas) = (roles.clone(), quotas.clone());
        let of_resources = role_of_resources(snapshot);
        list(roles.len(), QUOTA_BYTES, move |index, out| {
            let quota = roles.get(index).and_then(|role| quotas.get_key_value(role));
            if let Some(quota) = quota {
                write_one(out, quota, of_resources);
            }
        })
    };
    let mut rows = vec![
        text("{\"infos\":["),
        of_each(|out, (role, quota), of_resources| write(out, &info(role, quota, of_resources))),
        between_lists("configs"),
        of_each(|out, quota, _| write(out, &config(quota))),
    ];
    // If all quotas have the semantics of Mesos, so does the page.
    if has_own_semantics(quotas) {
        rows.push(between_lists("semantics"));
        rows.push(of_each(|out, (role, quota), _| {
            write(out, &named_semantics(role, quota));
        }));
    }
    rows.push(text("]}"));
    Document::from_first(rows)
}

/// The output of [`quotas`] as a value.
#[cfg(test)]
pub(crate) fn quota(snapshot: &Snapshot) -> serde_json::Value {
    let written = crate::chunked_response::rendered_bytes(quotas(snapshot));
    serde_json::from_slice(&written).expect("JSON")
}

/// The role in guarantees of the legacy format of Mesos.
fn role_of_resources(snapshot: &Snapshot) -> Option<&'static str> {
    match snapshot.quota_semantics {
        QuotaSemantics::Seed => Some("*"),
        QuotaSemantics::Head => None,
    }
}

/// The answer to the call GET_QUOTA.
pub(crate) fn quota_status(snapshot: &Snapshot) -> QuotaStatus {
    let quotas = snapshot.quotas.iter();
    let semantics = match has_own_semantics(&snapshot.quotas) {
        true => quotas
            .clone()
            .map(|(role, quota)| named_semantics(role, quota))
            .collect(),
        false => Vec::new(),
    };
    QuotaStatus {
        infos: quotas
            .clone()
            .map(|(role, quota)| info(role, quota, None))
            .collect(),
        configs: quotas.map(config).collect(),
        semantics,
    }
}

/// Returns true if the semantics of a quota differ from those of Mesos.
fn has_own_semantics(quotas: &BTreeMap<Role, Quota>) -> bool {
    quotas.values().any(|quota| quota.legacy)
}

fn named_semantics(role: &Role, quota: &Quota) -> QuotaSemanticsOfRole {
    QuotaSemanticsOfRole {
        role: role.to_string(),
        semantics: semantics(quota).to_owned(),
    }
}

fn info(role: &Role, quota: &Quota, role_of_resources: Option<&str>) -> QuotaInfo {
    let resource = |(name, amount): (&ResourceName, Scalar)| v1::Resource {
        name: name.to_string(),
        r#type: value::Type::Scalar.into(),
        scalar: Some(scalar(amount)),
        role: role_of_resources.map(str::to_owned),
        ..v1::Resource::default()
    };
    QuotaInfo {
        role: Some(role.to_string()),
        guarantee: if quota.legacy {
            // The same amounts, including a guarantee of 0, which is a limit.
            quota.limits.iter().map(resource).collect()
        } else {
            quota.guarantees.iter().map(resource).collect()
        },
        ..QuotaInfo::default()
    }
}

fn config((role, quota): (&Role, &Quota)) -> QuotaConfig {
    let amount = |(name, amount): (&ResourceName, Scalar)| (name.to_string(), scalar(amount));
    QuotaConfig {
        role: role.to_string(),
        guarantees: quota.guarantees.iter().map(amount).collect(),
        limits: quota.limits.iter().map(amount).collect(),
    }
}

fn scalar(amount: Scalar) -> value::Scalar {
    value::Scalar {
        value: amount.to_f64(),
    }
}
