//! Reservations of frameworks: the document's example, and operations with status updates.

use meseta_tests::framework::framework_info;
use meseta_tests::{Encoding, Framework, http, wait};
use serde_json::{Value, json};

use super::{LIMIT, cluster, dynamic, is, offer_where, operate, reserved_full, scalar, sum};

/// The document's first example, verbatim: 8 of 12 CPUs, in the format before refinement.
pub(super) fn framework_reserves_and_unreserves() {
    let cluster = cluster("cpus:12;mem:6144");
    let mut info = framework_info("engineering");
    info["principal"] = json!("framework-principal");
    info["capabilities"] = json!([{"type": "MULTI_ROLE"}]);
    let mut framework = cluster.subscribe(&info);
    let offer = framework.offer();
    assert_eq!(offer["allocation_info"]["role"], "engineering");
    for resource in offer["resources"].as_array().expect("resources") {
        assert_eq!(resource["allocation_info"]["role"], "engineering");
        assert_eq!(resource["role"], "*", "{resource}");
    }
    let reserved = |name: &str, value: f64| {
        json!({"allocation_info": {"role": "engineering"}, "name": name, "type": "SCALAR",
               "scalar": {"value": value}, "role": "engineering",
               "reservation": {"principal": "framework-principal"}})
    };
    let eight = json!([reserved("cpus", 8.0), reserved("mem", 4096.0)]);
    operate(
        &framework,
        &offer,
        json!([{"type": "RESERVE", "reserve": {"resources": eight}}]),
    );
    let mine = |resource: &Value| {
        resource["role"] == "engineering"
            && resource["reservation"]["principal"] == "framework-principal"
            && resource.get("reservations").is_none()
    };
    let offer = offer_where(&mut framework, "the reservation", |offer| {
        is(sum(&offer["resources"], "cpus", mine), 8.0)
            && is(sum(&offer["resources"], "mem", mine), 4096.0)
    });
    let full = reserved_full(&cluster, "engineering", 2);
    assert_eq!(full[0]["reservations"][0]["type"], "DYNAMIC");
    assert_eq!(full[0]["role"], "engineering");
    // The operator's document has the same for all roles below.
    let operations = json!([{"type": "UNRESERVE", "unreserve": {"resources": eight}}]);
    operate(&framework, &offer, operations);
    offer_where(&mut framework, "everything unreserved", |offer| {
        let free = |resource: &Value| resource["role"] == "*";
        sum(&offer["resources"], "cpus", free) >= 8.0 - 1e-6
            && is(sum(&offer["resources"], "cpus", mine), 0.0)
    });
    wait::eventually("nothing is reserved", LIMIT, || {
        let state = cluster.agent().page("/state").json();
        (state["reserved_resources_full"] == json!({})).then_some(())
    });
}

pub(super) fn named_operations_are_told_until_acknowledged() {
    let mut cluster = cluster("cpus:4;mem:1024");
    let info = framework_info("dev");
    let mut framework = Framework::subscribe(&cluster.scheduler_url(), Encoding::Protobuf, &info);
    let offer = framework.offer();
    let one = dynamic("cpus", 1.0, "dev");
    let operations = json!([
        {"type": "RESERVE", "id": {"value": "good"}, "reserve": {"resources": [one]}},
        {"type": "RESERVE", "id": {"value": "bad"}, "reserve": {"resources": [scalar("cpus", 1.0)]}},
    ]);
    operate(&framework, &offer, operations);
    let told = |framework: &mut Framework, id: &str| {
        let event = framework.wait_until(id, |event| {
            event["type"] == "UPDATE_OPERATION_STATUS"
                && event["update_operation_status"]["status"]["operation_id"]["value"] == id
        });
        event["update_operation_status"]["status"].clone()
    };
    let bad = told(&mut framework, "bad");
    assert_eq!(bad["state"], "OPERATION_ERROR");
    assert!(bad.get("uuid").is_none(), "{bad}");
    let good = told(&mut framework, "good");
    assert_eq!(good["state"], "OPERATION_FINISHED");
    // Without an acknowledgement the agent keeps the status over its own end and repeats it.
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    let again = told(&mut framework, "good");
    assert_eq!(again["uuid"], good["uuid"]);
    framework.accepted(json!({"type": "ACKNOWLEDGE_OPERATION_STATUS",
        "acknowledge_operation_status": {"agent_id": again["agent_id"],
            "operation_id": {"value": "good"}, "uuid": again["uuid"]["value"]}}));
    let url = format!("{}/api/v1", cluster.agent().url);
    wait::eventually("the agent forgets it", LIMIT, || {
        let answer = http::post_json(&url, &json!({"type": "GET_OPERATIONS"})).json();
        let left = answer["get_operations"]["operations"]
            .as_array()
            .map_or(0, Vec::len);
        (left == 0).then_some(())
    });
    framework.accepted(
        json!({"type": "RECONCILE_OPERATIONS", "reconcile_operations": {
        "operations": [{"operation_id": {"value": "good"}, "agent_id": again["agent_id"]}]}}),
    );
    // Until the acknowledgement arrived, the status may have come more than twice.
    framework.wait_until("the operation is unknown", |event| {
        let status = &event["update_operation_status"]["status"];
        status["operation_id"]["value"] == "good" && status["state"] == "OPERATION_UNKNOWN"
    });
}

pub(super) fn a_thousand_operations_in_one_call() {
    let cluster = cluster("cpus:4;mem:1024");
    let before = cluster.agent().page("/state").json()["resources"].clone();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let crumb = dynamic("cpus", 0.001, "dev");
    let operation = |kind: &str| json!({"type": kind, kind.to_lowercase(): {"resources": [crumb]}});
    operate(&framework, &offer, json!(vec![operation("RESERVE"); 1000]));
    let mine = |one: &Value| one.get("reservations").is_some();
    let offer = offer_where(&mut framework, "a thousand crumbs", |offer| {
        is(sum(&offer["resources"], "cpus", mine), 1.0)
    });
    let full = reserved_full(&cluster, "dev", 1);
    assert!(is(sum(&full, "cpus", |_| true), 1.0), "{full}");
    operate(
        &framework,
        &offer,
        json!(vec![operation("UNRESERVE"); 1000]),
    );
    wait::eventually("all as before", LIMIT, || {
        let resources = cluster.agent().page("/state").json()["resources"].clone();
        (resources == before).then_some(())
    });
}
