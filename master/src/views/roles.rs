//! Roles: who may use how much, and who uses it; their quotas and weights.

use std::collections::BTreeMap;

use meseta_allocator::Quota;
use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaInfo, QuotaStatus};
use meseta_proto::mesos::v1::{self, WeightInfo, value};
use meseta_proto::v0::Quantities;
use meseta_resources::{FrameworkId, ResourceName, ResourceQuantities, Role, Scalar};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::core::{QuotaSemantics, Snapshot};

/// What there is to tell of one role.
#[derive(Debug, Default)]
pub(crate) struct Tally<'a> {
    pub(crate) allocated: ResourceQuantities,
    pub(crate) offered: ResourceQuantities,
    pub(crate) reserved: ResourceQuantities,
    /// Counts towards quota: what the role and those below it use unreserved, and have reserved.
    pub(crate) consumed: ResourceQuantities,
    pub(crate) frameworks: Vec<&'a FrameworkId>,
}

/// The roles in use, and all above them.
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

/// Adds what is consumed below a role to the role.
fn add_up(tallies: &mut BTreeMap<Role, Tally<'_>>) {
    // A role comes after those above it, so from the end each is complete when it is added.
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

/// Answers requests for `/roles`.
pub(crate) fn roles(snapshot: &Snapshot) -> impl Serialize + '_ {
    #[derive(Serialize)]
    struct Roles {
        roles: Vec<serde_json::Value>,
    }
    let tallies = tallies(snapshot);
    // With a whitelist, a role that is not on it is shown nowhere.
    let is_visible = |role: &Role| {
        let whitelist = snapshot.whitelisted_roles.as_ref();
        whitelist.is_none_or(|roles| roles.contains(role)) && snapshot.viewer_may_view_role(role)
    };
    let visible = tallies.iter().filter(|(role, _)| is_visible(role));
    Roles {
        roles: visible
            .map(|(role, tally)| view(snapshot, role, tally))
            .collect(),
    }
}

fn view(snapshot: &Snapshot, role: &Role, tally: &Tally<'_>) -> serde_json::Value {
    let allocated_and_offered = &tally.allocated + &tally.offered;
    let frameworks: Vec<_> = tally.frameworks.iter().map(|id| id.as_str()).collect();
    let none = Quota::default();
    let quota = snapshot.quotas.get(role).unwrap_or(&none);
    let limit: BTreeMap<&str, f64> = quota
        .limits
        .iter()
        .map(|(name, limit)| (name.as_str(), limit.to_f64()))
        .collect();
    serde_json::json!({
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
    })
}

/// Answers requests for `/weights`.
pub(crate) fn weights(snapshot: &Snapshot) -> Vec<WeightInfo> {
    let weights = snapshot.weights.iter();
    weights
        .map(|(role, weight)| WeightInfo {
            weight: *weight,
            role: Some(role.to_string()),
        })
        .collect()
}

/// The answer to GET /quota, whose parts are made one at a time: there may be thousands, and one takes several times in
/// memory what it takes as text.
pub(crate) struct QuotaAnswer<'a>(&'a Snapshot);

impl Serialize for QuotaAnswer<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quotas = &self.0.quotas;
        let role = role_of_resources(self.0);
        let mut map = serializer.serialize_map(None)?;
        if !quotas.is_empty() {
            let info = |(of, quota): (&Role, &Quota)| info(of, quota, role);
            map.serialize_entry("infos", &OneByOne(|| quotas.iter().map(info)))?;
            map.serialize_entry("configs", &OneByOne(|| quotas.iter().map(config)))?;
        }
        map.end()
    }
}

/// A list whose items are made while it is written.
struct OneByOne<F>(F);

impl<F: Fn() -> I, I: Iterator<Item: Serialize>> Serialize for OneByOne<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// The answer to GET `/quota`.
pub(crate) fn quota(snapshot: &Snapshot) -> QuotaAnswer<'_> {
    QuotaAnswer(snapshot)
}

/// The role that guarantees are for in the older form of Mesos.
fn role_of_resources(snapshot: &Snapshot) -> Option<&'static str> {
    match snapshot.quota_semantics {
        QuotaSemantics::Seed => Some("*"),
        QuotaSemantics::Head => None,
    }
}

/// The answer to the call GET_QUOTA.
pub(crate) fn quota_status(snapshot: &Snapshot) -> QuotaStatus {
    let quotas = snapshot.quotas.iter();
    QuotaStatus {
        infos: quotas
            .clone()
            .map(|(role, quota)| info(role, quota, None))
            .collect(),
        configs: quotas.map(config).collect(),
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
            // The same amounts, and a guarantee of 0 as well, which is a limit.
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
