//! Rules of the wire about values: how they are written in JSON, and what clients read in events.
//!
//! As in `scheduler`, each rule is a test of its own.

use std::time::Duration;

use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, Framework, http, wait};
use serde_json::{Value, json};

use crate::anywhere;
use crate::recorded::pages::oversubscribing;

meseta_tests::scenarios! {
    anywhere:
        numbers_are_numbers_enums_names_and_empty_messages_stay,
        subscribed_says_who_leads,
        offers_name_the_executors_that_run_there,
        uuids_of_operations_come_as_objects_and_go_as_bytes,
        an_executor_has_a_session_of_its_own;
}

/// For a process to write what it knows.
const LIMIT: Duration = Duration::from_secs(20);

fn numbers_are_numbers_enums_names_and_empty_messages_stay() {
    let cluster = oversubscribing(2);
    let url = format!("{}/api/v1", cluster.master.url);
    let agents = http::post_json(&url, &json!({"type": "GET_AGENTS"})).json();
    let agent = &agents["get_agents"]["agents"][0];
    assert!(agent["registered_time"]["nanoseconds"].is_u64(), "{agent}");
    let empty = http::post_json(&url, &json!({"type": "GET_MAINTENANCE_SCHEDULE"})).json();
    assert_eq!(
        empty,
        json!({"type": "GET_MAINTENANCE_SCHEDULE", "get_maintenance_schedule": {"schedule": {}}})
    );

    let mut info = framework_info("dev");
    let capabilities = info["capabilities"].as_array_mut().expect("a list");
    capabilities.push(json!({"type": "REVOCABLE_RESOURCES"}));
    let mut framework = cluster.subscribe(&info);
    let offers = framework.wait_until("an offer of what is oversubscribed", |event| {
        let text = event.to_string();
        text.contains("\"revocable\":{}")
    });
    let offers = offers["offers"]["offers"].as_array().expect("offers");
    let resources: Vec<_> = offers
        .iter()
        .flat_map(|offer| offer["resources"].as_array().expect("resources"))
        .collect();
    assert!(resources.iter().all(|one| one["type"].is_string()));
    framework.accepted(json!({"type": "REVIVE"}));
    let mut plain = cluster.subscribe(&framework_info("b"));
    framework.teardown();
    let offer = plain.offer();
    let resources = offer["resources"].as_array().expect("resources");
    let ports = resources.iter().find(|one| one["name"] == "ports");
    let ports = ports.expect("ports");
    assert_eq!(
        ports["ranges"]["range"],
        json!([{"begin": 31000, "end": 32000}])
    );
    assert_eq!(ports.get("revocable"), None, "what is unset is absent");
    assert_eq!(ports.get("scalar"), None);
    plain.launch_task(&offer, "t", "true", &[("cpus", 0.1), ("mem", 16.0)]);
    let status = plain.update("t");
    assert_eq!(status["source"], "SOURCE_EXECUTOR");
    let uuid = status["uuid"].as_str().expect("base64");
    assert!(uuid.len() == 24 && uuid.ends_with("=="), "{uuid}");
}

fn subscribed_says_who_leads() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    let subscribed = &framework.subscribed["subscribed"];
    assert_eq!(subscribed["framework_id"]["value"], framework.id);
    let master = &subscribed["master_info"];
    let (host, port) = cluster.master.address().rsplit_once(':').expect("a port");
    assert_eq!(master["port"].to_string(), port);
    assert_eq!(master["address"]["ip"], host);
    assert_eq!(master["pid"], format!("master@{host}:{port}"));
    for key in ["hostname", "version", "id"] {
        assert!(master[key].is_string(), "{key} of {master}");
    }
}

/// A task of an executor that only waits, or ends as it is told.
fn of_executor(framework: &Framework, offer: &Value, command: &str) -> Value {
    let amount = |name: &str, value: f64| json!({"name": name, "type": "SCALAR", "scalar": {"value": value}});
    let resources = json!([amount("cpus", 0.1), amount("mem", 32.0)]);
    json!({"name": "t", "task_id": {"value": "t"}, "agent_id": offer["agent_id"],
        "resources": resources, "executor": {
            "executor_id": {"value": "e"}, "framework_id": {"value": framework.id},
            "command": {"value": command}, "resources": resources}})
}

fn offers_name_the_executors_that_run_there() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    assert_eq!(offer.get("executor_ids"), None);
    let one = of_executor(&framework, &offer, "exec sleep 600");
    framework.launch(&offer, &[one]);
    let offer = framework.offer();
    assert_eq!(offer["executor_ids"], json!([{"value": "e"}]));
    let mut other = cluster.subscribe(&framework_info("other"));
    framework.accepted(json!({"type": "SUPPRESS"}));
    framework.decline(&offer, 0.0);
    assert_eq!(other.offer().get("executor_ids"), None, "another's");
}

fn uuids_of_operations_come_as_objects_and_go_as_bytes() {
    let (_cluster, mut framework, offer) = Cluster::with_offer();
    let reserved = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 1},
        "reservations": [{"type": "DYNAMIC", "role": "dev"}]});
    framework.accepted(
        json!({"type": "ACCEPT", "accept": {"offer_ids": [offer["id"]],
        "operations": [{"type": "RESERVE", "id": {"value": "r"},
            "reserve": {"resources": [reserved]}}]}}),
    );
    let event = framework.wait_for("UPDATE_OPERATION_STATUS");
    let status = &event["update_operation_status"]["status"];
    assert_eq!(status["state"], "OPERATION_FINISHED", "{status}");
    let uuid = &status["uuid"]["value"];
    assert!(uuid.is_string(), "{status}");
    let acknowledge = |uuid: &Value| {
        json!({"type": "ACKNOWLEDGE_OPERATION_STATUS", "acknowledge_operation_status": {
            "agent_id": offer["agent_id"], "operation_id": {"value": "r"}, "uuid": uuid}})
    };
    let echoed = framework.call(acknowledge(&status["uuid"]));
    assert_eq!(echoed.status, 400, "{}", echoed.text());
    framework.accepted(acknowledge(uuid));
}

fn an_executor_has_a_session_of_its_own() {
    let (cluster, framework, offer) = Cluster::with_offer();
    // Process, process group and session, as the kernel numbers them where the executor lives.
    let command = "cut -d' ' -f1,5,6 /proc/$$/stat > ids; exec sleep 600";
    let one = of_executor(&framework, &offer, command);
    framework.launch(&offer, &[one]);
    let agent = offer["agent_id"]["value"].as_str().expect("an id");
    let path = cluster.agent_dir(0).join(format!(
        "slaves/{agent}/frameworks/{}/executors/e/runs/latest/ids",
        framework.id
    ));
    let text = wait::eventually("the executor's numbers", LIMIT, || {
        let text = std::fs::read_to_string(&path).ok()?;
        text.ends_with('\n').then_some(text)
    });
    let ids: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(ids.len(), 3, "{text}");
    assert!(ids.iter().all(|id| *id == ids[0]), "{text}");
}
