//! Operations, groups and checks that make no sense, live: the error says so, and nothing has changed.

use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Framework, wait};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::{
    cluster, dynamic, is, offer_where, operate, reserved_full, scalar, sum, volume_of, with,
};

meseta_tests::scenarios! {
    anywhere:
        bad_operations_change_nothing,
        bad_groups_and_checks_are_task_errors,
        a_thousand_operations_in_one_call;
}

const LIMIT: Duration = Duration::from_secs(60);

fn named(id: &str, mut operation: Value) -> Value {
    operation["id"] = json!({"value": id});
    operation
}

fn reserve(resource: Value) -> Value {
    json!({"type": "RESERVE", "reserve": {"resources": [resource]}})
}

fn unreserve(resource: Value) -> Value {
    json!({"type": "UNRESERVE", "unreserve": {"resources": [resource]}})
}

fn create(volume: Value) -> Value {
    json!({"type": "CREATE", "create": {"volumes": [volume]}})
}

fn bad_operations_change_nothing() {
    let cluster = cluster("cpus:3;cpus(dev):1;mem:1024;disk:1024;disk(dev):64");
    let before = cluster.agent().page("/state").json()["resources"].clone();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let fixed = |name: &str, value: f64| {
        let stack = json!([{"type": "STATIC", "role": "dev"}]);
        with(scalar(name, value), "reservations", stack)
    };
    let stack = json!([{"type": "DYNAMIC", "role": "dev"}, {"type": "DYNAMIC", "role": "ops/web"}]);
    let no_sub_role = with(scalar("cpus", 1.0), "reservations", stack);
    let oversubscribed = with(dynamic("disk", 64.0, "dev"), "revocable", json!({}));
    let mut read_only = volume_of(fixed("disk", 64.0), "v");
    read_only["disk"]["volume"]["mode"] = json!("RO");
    let mut of_host = volume_of(fixed("disk", 64.0), "v");
    of_host["disk"]["volume"]["host_path"] = json!("/tmp");
    let shared = with(volume_of(fixed("disk", 64.0), "v"), "shared", json!({}));
    let bad = [
        ("static", unreserve(fixed("cpus", 1.0)), ""),
        ("no-sub-role", reserve(no_sub_role), ""),
        ("other-role", reserve(dynamic("cpus", 1.0, "ads")), ""),
        ("star", reserve(dynamic("cpus", 1.0, "*")), ""),
        ("too-much", reserve(dynamic("cpus", 30.0, "dev")), ""),
        (
            "unreserved",
            create(volume_of(scalar("disk", 64.0), "v")),
            "unreserved resources",
        ),
        (
            "revocable",
            create(volume_of(oversubscribed, "v")),
            "revocable resources",
        ),
        ("read-only", create(read_only), "Read-only"),
        ("of-host", create(of_host), "'host_path' to be unset"),
        (
            "path",
            create(volume_of(fixed("disk", 64.0), "../v")),
            "Persistence ID",
        ),
        ("plain", create(fixed("disk", 64.0)), "DiskInfo"),
        (
            "shared-cpus",
            reserve(with(dynamic("cpus", 1.0, "dev"), "shared", json!({}))),
            "",
        ),
        ("shared", create(shared), "SHARED_RESOURCES"),
    ];
    let all: Vec<Value> = bad
        .iter()
        .map(|(id, operation, _)| named(id, operation.clone()))
        .collect();
    operate(&framework, &offer, json!(all));
    for (id, _, complaint) in &bad {
        let event = framework.wait_until(id, |event| {
            event["type"] == "UPDATE_OPERATION_STATUS"
                && event["update_operation_status"]["status"]["operation_id"]["value"] == *id
        });
        let status = &event["update_operation_status"]["status"];
        assert_eq!(status["state"], "OPERATION_ERROR", "{status}");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(
            !message.is_empty() && message.contains(complaint),
            "{id}: {message}"
        );
    }
    assert_eq!(cluster.agent().page("/state").json()["resources"], before);
    let offer = offer_where(&mut framework, "everything again", |offer| {
        is(sum(&offer["resources"], "cpus", |_| true), 4.0)
    });
    framework.decline(&offer, 0.0);
}

/// The error of a task that could not be.
fn refused(framework: &mut Framework, id: &str) -> String {
    let status = framework.update(id);
    assert_eq!(status["state"], "TASK_ERROR", "{status}");
    status["message"].as_str().unwrap_or_default().to_owned()
}

fn bad_groups_and_checks_are_task_errors() {
    let cluster = cluster("cpus:4;mem:1024");
    let mut framework = cluster.framework();
    let resources = [("cpus", 0.1), ("mem", 32.0)];
    let executor = |kind: &str, id: &str| {
        json!({"type": kind, "executor_id": {"value": id},
            "resources": [scalar("cpus", 0.1), scalar("mem", 32.0)]})
    };
    let offer = framework.offer();
    let plain = task(&offer, "g1", "true", &resources);
    let mut mixed = task(&offer, "g2", "true", &resources);
    mixed["executor"] = executor("DEFAULT", "other");
    let mut group = executor("DEFAULT", "group");
    group["framework_id"] = json!({"value": framework.id});
    operate(
        &framework,
        &offer,
        json!([{"type": "LAUNCH_GROUP", "launch_group": {
            "executor": group, "task_group": {"tasks": [plain, mixed]}}}]),
    );
    // One bad task, and none of them is launched.
    for id in ["g1", "g2"] {
        let message = refused(&mut framework, id);
        assert!(
            message.to_lowercase().contains("executor"),
            "{id}: {message}"
        );
    }
    let checks = [
        (
            "health_check",
            json!({"type": "COMMAND"}),
            "'command' to be set for COMMAND health check",
        ),
        ("health_check", json!({}), "must specify 'type'"),
        (
            "check",
            json!({"type": "COMMAND"}),
            "'command' to be set for COMMAND check",
        ),
        (
            "check",
            json!({"type": "HTTP"}),
            "'http' to be set for HTTP check",
        ),
    ];
    for (number, (kind, check, complaint)) in checks.into_iter().enumerate() {
        let offer = framework.offer();
        let id = format!("c{number}");
        let mut info = task(&offer, &id, "true", &resources);
        info[kind] = check;
        framework.launch(&offer, &[info]);
        let message = refused(&mut framework, &id);
        assert!(message.contains(complaint), "{id}: {message}");
    }
    let state = cluster.agent().page("/state").json();
    assert_eq!(
        state["frameworks"],
        json!([]),
        "the agent has heard of none"
    );
}

fn a_thousand_operations_in_one_call() {
    let cluster = cluster("cpus:4;mem:1024");
    let before = cluster.agent().page("/state").json()["resources"].clone();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let crumb = dynamic("cpus", 0.001, "dev");
    operate(
        &framework,
        &offer,
        json!(vec![reserve(crumb.clone()); 1000]),
    );
    let mine = |one: &Value| one.get("reservations").is_some();
    let offer = offer_where(&mut framework, "a thousand crumbs", |offer| {
        is(sum(&offer["resources"], "cpus", mine), 1.0)
    });
    let full = reserved_full(&cluster, "dev", 1);
    assert!(is(sum(&full, "cpus", |_| true), 1.0), "{full}");
    operate(&framework, &offer, json!(vec![unreserve(crumb); 1000]));
    wait::eventually("all as before", LIMIT, || {
        let resources = cluster.agent().page("/state").json()["resources"].clone();
        (resources == before).then_some(())
    });
}
