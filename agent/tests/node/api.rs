//! The HTTP API on a real port: codes, types, values. Formats are compared with recorded ones.

use meseta_tests::http;
use serde_json::{Value, json};

use crate::Test;
use crate::harness::{World, shell};

pub(crate) const TESTS: &[Test] = tests![
    calls_are_validated_as_in_mesos,
    answers_have_the_values_of_mesos,
];

fn calls_are_validated_as_in_mesos() {
    let (world, _link) = World::registered(&[]);
    const JSON: Option<&str> = Some("application/json");
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let other = |kind: &str, message: &str| {
        format!(r#"{{"type":"{kind}","{message}":{{"container_id":{{"value":"a"}}}}}}"#)
    };
    let kill = other("KILL_CONTAINER", "kill_nested_container");
    let wait = other("WAIT_CONTAINER", "wait_nested_container");
    let remove = other("REMOVE_CONTAINER", "remove_nested_container");
    let level =
        r#"{"type":"GET_HEALTH","set_logging_level":{"level":3,"duration":{"nanoseconds":1}}}"#;
    let no_type = "Expecting 'type' to be present";
    let invalid = format!("Failed to validate agent::Call: {no_type}");
    let accepted = "Expecting 'Content-Type' of application/json";
    let unimplemented = "PRUNE_IMAGES is not implemented yet";
    for (content_type, body, status, text) in [
        (None, "{}", 400, "Expecting 'Content-Type' to be present"),
        (Some("text/plain"), "{}", 415, accepted),
        (JSON, "{", 400, "Failed to parse body into JSON"),
        (JSON, &deep, 400, "nested too deeply"),
        (JSON, "{}", 400, &invalid),
        (JSON, r#"{"type":"GET_NOSUCH"}"#, 400, no_type),
        (
            JSON,
            r#"{"type":"READ_FILE"}"#,
            400,
            "Expecting 'read_file' to be present",
        ),
        (JSON, &kill, 400, "Expecting 'kill_container' to be present"),
        (JSON, &wait, 400, "Expecting 'wait_container' to be present"),
        (
            JSON,
            &remove,
            400,
            "Expecting 'remove_container' to be present",
        ),
        (JSON, level, 200, r#""healthy":true"#),
        (JSON, r#"{"type":"PRUNE_IMAGES"}"#, 501, unimplemented),
        (
            JSON,
            r#"{"type":"GET_HEALTH","x":null}"#,
            200,
            r#""healthy":true"#,
        ),
    ] {
        let header = content_type.map(|value| ("content-type", value));
        let url = world.url("/api/v1");
        let reply = http::post(&url, header.as_slice(), body.as_bytes());
        assert_eq!(reply.status, status, "{body:.60}: {}", reply.text());
        assert!(reply.text().contains(text), "{body:.60}: {}", reply.text());
    }
    let get = world.get("/api/v1");
    assert_eq!(get.status, 405);
    assert_eq!(get.header("allow"), Some("POST"));
    for (path, status) in [
        ("/nosuch", 404),
        ("/health", 200),
        ("/slave(1)/health", 200),
        ("/state/", 200),
        ("/files/../state", 404),
        ("/slave(1)/mesos.internal.X", 501),
    ] {
        assert_eq!(world.get(path).status, status, "{path}");
    }
    assert_eq!(world.get("/health").text(), "");
}

fn answers_have_the_values_of_mesos() {
    let (world, mut link) = World::registered(&["--attributes=rack:r1;level:10;ports:[1-2]"]);
    let idle = call(&world, "GET_STATE");
    assert_eq!(idle["get_state"]["get_tasks"]["launched_tasks"], json!([]));
    world.running(&mut link, shell("t", "sleep 1000"));
    let state = world.get_json("/slave(1)/state");
    let expected = json!({"rack": "r1", "level": 10.0, "ports": "[1-2]"});
    assert_eq!(state["attributes"], expected);
    let allocated = &state["unreserved_resources_allocated"];
    assert_eq!(allocated["cpus"], 0.5);
    assert_eq!(allocated["mem"], 64.0);
    assert_eq!(allocated["gpus"], 0.0);
    let executor = &state["frameworks"][0]["executors"][0];
    let name = "Command Executor (Task: t) (Command: sh -c 'sleep 1000')";
    assert_eq!(executor["name"], name);
    let task = &executor["tasks"][0];
    for (part, keys) in [
        (&state, "id hostname pid version"),
        (&state["frameworks"][0], "id name"),
        (executor, "id name container directory"),
        (task, "id name framework_id slave_id"),
    ] {
        for key in keys.split(' ') {
            assert!(!part[key].as_str().expect(key).is_empty(), "{key}: {part}");
        }
    }
    assert_eq!(state["version"], meseta_proto::INTERFACE_VERSION);
    assert_eq!(task["executor_id"], "");
    assert_eq!(task["state"], "TASK_RUNNING");
    assert_eq!(task["statuses"].as_array().map(Vec::len), Some(2));

    let tasks = call(&world, "GET_TASKS");
    assert_eq!(tasks["type"], "GET_TASKS");
    let told = &tasks["get_tasks"]["launched_tasks"][0];
    assert_eq!(told["state"], "TASK_RUNNING");
    assert_eq!(told["statuses"][1]["source"], "SOURCE_EXECUTOR");
    assert_eq!(told["status_update_state"], "TASK_RUNNING");
    let metrics = call(&world, "GET_METRICS");
    let metrics = metrics["get_metrics"]["metrics"].as_array();
    let is_told = |one: &Value| one["name"] == "slave/tasks_running" && one["value"] == 1.0;
    assert!(metrics.expect("a list").iter().any(is_told));
    let jsonp = world.get("/version?jsonp=cb");
    assert_eq!(jsonp.header("content-type"), Some("text/javascript"));
    assert!(jsonp.text().starts_with("cb({"));
}

fn call(world: &World, kind: &str) -> Value {
    let reply = world.call(&json!({ "type": kind }));
    assert_eq!(reply.status, 200, "{kind}: {}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert!(reply.header("content-length").is_some());
    reply.json()
}
