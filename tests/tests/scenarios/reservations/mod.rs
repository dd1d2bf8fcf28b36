//! Reservations and volumes on a live cluster: the documents' own messages, and the state of master, agent and disk
//! afterwards.

mod by_frameworks;
mod by_operators;
mod crashes;
mod volumes;

use std::time::Duration;

use meseta_tests::{Cluster, Framework, http, wait};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        by_frameworks::framework_reserves_and_unreserves,
        by_operators::operators_reserve_by_the_v1_api,
        volumes::volume_survives_tasks_and_daemons,
        volumes::resized_volume_keeps_its_data,
        crashes::missing_reserved_resources_refuse_start,
        by_frameworks::named_operations_are_told_until_acknowledged,
        by_frameworks::a_thousand_operations_in_one_call,
        crashes::ten_crashes_leave_everything_exactly_once;
}

const LIMIT: Duration = Duration::from_secs(30);

pub(crate) fn cluster(resources: &str) -> Cluster {
    Cluster::with_resources(resources)
}

/// Sends operations on an offer; the rest is offered again at once.
pub(crate) fn operate(framework: &Framework, offer: &Value, operations: Value) {
    framework.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 0.0}}}));
}

/// Collects the next offers until together they match: one event may contain only a part.
pub(crate) fn offer_where(
    framework: &mut Framework,
    what: &str,
    matches: impl Fn(&Value) -> bool,
) -> Value {
    let end = std::time::Instant::now() + LIMIT;
    loop {
        let offer = framework.offer();
        if matches(&offer) {
            return offer;
        }
        assert!(
            std::time::Instant::now() < end,
            "no offer with {what}; the last: {offer:#}"
        );
        framework.decline(&offer, 0.0);
    }
}

/// Returns the amount of a resource in an offer, among the entries that `keep` accepts.
pub(crate) fn sum(resources: &Value, name: &str, keep: impl Fn(&Value) -> bool) -> f64 {
    let resources = resources.as_array().into_iter().flatten();
    resources
        .filter(|resource| resource["name"] == name && keep(resource))
        .filter_map(|resource| resource["scalar"]["value"].as_f64())
        .sum()
}

pub(crate) fn is(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

/// Returns `reserved_resources_full` of the role from master and agent, once they agree on `count` entries.
pub(crate) fn reserved_full(cluster: &Cluster, role: &str, count: usize) -> Value {
    let probe = || {
        let master = cluster.master.page("/slaves").json();
        let master = master["slaves"][0]["reserved_resources_full"][role].clone();
        let agent = cluster.agent().page("/state").json();
        let agent = agent["reserved_resources_full"][role].clone();
        let entries = master.as_array().map_or(0, Vec::len);
        (master == agent && entries == count).then_some(master)
    };
    wait::eventually("master and agent agree on what is reserved", LIMIT, probe)
}

pub(crate) fn scalar(name: &str, value: f64) -> Value {
    json!({"name": name, "type": "SCALAR", "scalar": {"value": value}})
}

pub(crate) fn with(mut resource: Value, key: &str, value: Value) -> Value {
    resource[key] = value;
    resource
}

pub(crate) fn dynamic(name: &str, value: f64, role: &str) -> Value {
    let stack = json!([{"type": "DYNAMIC", "role": role}]);
    with(scalar(name, value), "reservations", stack)
}

pub(crate) fn volume_of(mut disk: Value, id: &str) -> Value {
    disk["disk"] = json!({"persistence": {"id": id},
                          "volume": {"mode": "RW", "container_path": "data"}});
    disk
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Sends the form of `curl -d slaveId=... -d NAME=...`.
pub(crate) fn post_form(
    cluster: &Cluster,
    path: &str,
    agent: &str,
    name: &str,
    value: &str,
) -> http::Answer {
    let body = format!("slaveId={agent}&{name}={}", percent(value));
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    http::post(
        &format!("{}{path}", cluster.master.url),
        &headers,
        body.as_bytes(),
    )
}

/// Returns the folder of a volume on an agent.
fn volume_dir(cluster: &Cluster, role: &str, id: &str) -> std::path::PathBuf {
    cluster
        .dir
        .path()
        .join("agent-0/volumes/roles")
        .join(role)
        .join(id)
}
