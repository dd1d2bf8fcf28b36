//! Oversubscription from a framework's view: offers of revocable resources, and tasks on them.

use serde_json::{Value, json};

use crate::Cluster;
use crate::framework::{Encoding, Framework, framework_info, task};

/// Rounds of waiting for revocable CPUs and memory in one offer.
const OFFERS_MAX: usize = 100;

/// Subscribes a framework that accepts revocable resources.
pub fn revocable_framework(cluster: &Cluster) -> Framework {
    let mut info = framework_info("batch");
    let capabilities = info["capabilities"].as_array_mut().expect("capabilities");
    capabilities.push(json!({"type": "REVOCABLE_RESOURCES"}));
    Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info)
}

pub fn is_revocable(resource: &Value) -> bool {
    resource.get("revocable").is_some()
}

/// Returns the sum of a scalar in an offer, regular or revocable.
pub fn amount(offer: &Value, name: &str, revocable: bool) -> f64 {
    let all = offer["resources"].as_array().expect("resources");
    all.iter()
        .filter(|resource| resource["name"] == name && is_revocable(resource) == revocable)
        .map(|resource| resource["scalar"]["value"].as_f64().expect("a number"))
        .sum()
}

/// Returns an offer of revocable cpus and memory. Partial offers are declined together, and come back whole with the next
/// batch.
pub fn wait_for_revocable_offer(framework: &mut Framework) -> Value {
    let mut partial_offers: Vec<Value> = Vec::new();
    for _ in 0..OFFERS_MAX {
        let offer = framework.offer();
        if amount(&offer, "cpus", true) > 0.0 && amount(&offer, "mem", false) > 0.0 {
            return offer;
        }
        partial_offers.push(offer);
        let has = |name, revocable| {
            partial_offers
                .iter()
                .any(|one| amount(one, name, revocable) > 0.0)
        };
        if has("cpus", true) && has("mem", false) {
            let ids: Vec<_> = partial_offers
                .drain(..)
                .map(|one| one["id"].clone())
                .collect();
            framework.accepted(json!({"type": "DECLINE", "decline": {
                "offer_ids": ids, "filters": {"refuse_seconds": 0.0}}}));
        }
    }
    panic!("no offer of revocable cpus beside memory came");
}

/// Launches tasks, and declines the remaining resources for an hour.
pub fn launch_and_decline_rest(framework: &Framework, offer: &Value, tasks: &[Value]) {
    let operations = json!([{"type": "LAUNCH", "launch": {"task_infos": tasks}}]);
    framework.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 3600.0}}}));
}

/// Returns a task on revocable CPUs and regular memory.
pub fn revocable_task(offer: &Value, id: &str, command: &str, cpus: f64) -> Value {
    let mut task = task(offer, id, command, &[("cpus", cpus), ("mem", 64.0)]);
    task["resources"][0]["revocable"] = json!({});
    task["resources"][0]["allocation_info"] = json!({"role": "batch"});
    task["resources"][1]["allocation_info"] = json!({"role": "batch"});
    task
}
