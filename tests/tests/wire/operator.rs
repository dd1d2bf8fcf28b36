//! Rules of the wire beyond the scheduler API: what command lines, web pages and operators' clients rely on.
//!
//! As in `scheduler`, each is checked to the byte over a plain socket.

use meseta_tests::Cluster;
use meseta_tests::framework::task;
use meseta_tests::raw::{Head, Raw};
use serde_json::{Value, json};

use crate::anywhere;
use crate::requests::{JSON, exchange, send_in_chunks};

meseta_tests::scenarios! {
    anywhere:
        calls_that_set_something_have_no_body_and_no_type,
        single_answers_say_their_length,
        operators_may_send_chunks_too,
        every_page_comes_as_jsonp,
        paths_of_the_agent_go_by_the_longest_prefix,
        streaming_headers_belong_to_streams,
        a_session_streams_records_in_json,
        data_of_tasks_and_labels_pass_unchanged;
}

/// The address of the one agent as the master knows it, and its id.
fn machine(cluster: &Cluster) -> (Value, String) {
    let agent = cluster.master.page("/slaves").json()["slaves"][0].clone();
    let id = agent["id"].as_str().expect("an id").to_owned();
    (json!({"hostname": agent["hostname"]}), id)
}

fn calls_that_set_something_have_no_body_and_no_type() {
    let cluster = Cluster::default();
    let (machine, agent) = machine(&cluster);
    let guarantee = json!([{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}}]);
    let reserved = json!([{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1},
        "reservations": [{"type": "DYNAMIC", "role": "wire"}]}]);
    let of_agent = json!({"agent_id": {"value": agent}, "resources": reserved});
    let window = json!({"machine_ids": [machine], "unavailability": {"start": {"nanoseconds": 1}}});
    for (kind, part, status) in [
        (
            "UPDATE_WEIGHTS",
            json!({"weight_infos": [{"role": "wire", "weight": 2.0}]}),
            200,
        ),
        (
            "SET_QUOTA",
            json!({"quota_request": {"role": "quiet", "guarantee": guarantee}}),
            200,
        ),
        ("REMOVE_QUOTA", json!({"role": "quiet"}), 200),
        (
            "UPDATE_QUOTA",
            json!({"quota_configs": [{"role": "quiet", "limits": {"cpus": {"value": 1}}}]}),
            200,
        ),
        ("RESERVE_RESOURCES", of_agent.clone(), 202),
        ("UNRESERVE_RESOURCES", of_agent, 202),
        (
            "UPDATE_MAINTENANCE_SCHEDULE",
            json!({"schedule": {"windows": [window]}}),
            200,
        ),
        ("UPDATE_MAINTENANCE_SCHEDULE", json!({"schedule": {}}), 200),
    ] {
        let call = json!({"type": kind, kind.to_lowercase().as_str(): part});
        let address = cluster.master.address();
        let (head, text) = exchange(address, "POST /api/v1", &[JSON], &call.to_string());
        assert_eq!((head.status, text.as_str()), (status, ""), "{call}");
        assert_eq!(head.header("content-type"), None, "{call}");
        assert_eq!(head.header("content-length"), Some("0"), "{call}");
    }
}

fn single_answers_say_their_length() {
    let cluster = Cluster::default();
    let of_master = [
        "GET_HEALTH",
        "GET_FLAGS",
        "GET_VERSION",
        "GET_STATE",
        "GET_AGENTS",
        "GET_FRAMEWORKS",
        "GET_EXECUTORS",
        "GET_OPERATIONS",
        "GET_TASKS",
        "GET_ROLES",
        "GET_WEIGHTS",
        "GET_MASTER",
        "GET_MAINTENANCE_STATUS",
        "GET_MAINTENANCE_SCHEDULE",
        "GET_QUOTA",
    ];
    let of_agent = [
        "GET_HEALTH",
        "GET_FLAGS",
        "GET_VERSION",
        "GET_STATE",
        "GET_CONTAINERS",
        "GET_FRAMEWORKS",
        "GET_EXECUTORS",
        "GET_TASKS",
        "GET_AGENT",
    ];
    let agent = cluster.agent().address();
    let asked = of_master.map(|kind| (cluster.master.address(), kind));
    for (address, kind) in asked.into_iter().chain(of_agent.map(|kind| (agent, kind))) {
        for media in ["application/json", "application/x-protobuf"] {
            let mut raw = Raw::connect(address);
            let accept = format!("Accept: {media}");
            let call = json!({"type": kind}).to_string();
            raw.request("POST /api/v1", &[JSON, &accept], &call);
            let head = raw.head();
            assert_eq!(head.status, 200, "{kind}");
            assert_eq!(head.header("content-type"), Some(media), "{kind}");
            let length = head.header("content-length");
            assert!(
                length.is_some_and(|length| length != "0"),
                "{kind}: {head:?}"
            );
        }
    }
}

/// A request whose body comes in small chunks.
fn in_chunks(address: &str, line: &str, body: &str) -> (Head, String) {
    let mut raw = Raw::connect(address);
    send_in_chunks(&mut raw, line, body, 5);
    raw.answer()
}

fn operators_may_send_chunks_too() {
    let cluster = Cluster::default();
    let health = r#"{"type": "GET_HEALTH"}"#;
    for address in [cluster.master.address(), cluster.agent().address()] {
        let (head, text) = in_chunks(address, "POST /api/v1", health);
        assert_eq!((head.status, text.contains("true")), (200, true), "{text}");
    }
    let weights = r#"[{"role": "wire", "weight": 3.5}]"#;
    let (head, text) = in_chunks(cluster.master.address(), "PUT /weights", weights);
    assert_eq!(head.status, 200, "{text}");
    let weights = cluster.master.page("/weights").json();
    assert_eq!(weights[0]["weight"], 3.5, "{weights}");
}

fn every_page_comes_as_jsonp() {
    let cluster = Cluster::default();
    let of_master = [
        "/state",
        "/state-summary",
        "/slaves",
        "/frameworks",
        "/tasks",
        "/roles",
        "/version",
        "/flags",
        "/quota",
        "/weights",
        "/maintenance/schedule",
        "/maintenance/status",
        "/metrics/snapshot",
        "/master/state",
    ];
    let of_agent = [
        "/state",
        "/slave(1)/state",
        "/slave(1)/monitor/statistics",
        "/monitor/statistics",
        "/metrics/snapshot",
        "/version",
    ];
    let agent = cluster.agent().address();
    let asked = of_master.map(|path| (cluster.master.address(), path));
    for (address, path) in asked.into_iter().chain(of_agent.map(|path| (agent, path))) {
        let mut raw = Raw::connect(address);
        let line = format!("GET {path}?jsonp=a.back");
        raw.request(&line, &["Connection: close"], "");
        let head = raw.head();
        assert_eq!(head.status, 200, "{path}");
        assert_eq!(
            head.header("content-type"),
            Some("text/javascript"),
            "{path}"
        );
        let mut text = String::new();
        match head.header("content-length") {
            Some(_) => text = raw.rest(),
            None => {
                while let Some(chunk) = raw.chunk() {
                    text += &String::from_utf8_lossy(&chunk);
                }
            }
        }
        let inner = text
            .strip_prefix("a.back(")
            .and_then(|text| text.strip_suffix(')'));
        let inner = inner.unwrap_or_else(|| panic!("{path}: {text}"));
        assert!(
            serde_json::from_str::<Value>(inner).is_ok(),
            "{path}: {inner}"
        );
    }
}

fn paths_of_the_agent_go_by_the_longest_prefix() {
    let cluster = Cluster::default();
    let agent = cluster.agent().address();
    let health = r#"{"type": "GET_HEALTH"}"#;
    for path in [
        "/api/v1",
        "/api/v1/operator",
        "/slave(1)/api/v1",
        "/slave(1)/api/v1/operator/",
    ] {
        let (head, text) = exchange(agent, &format!("POST {path}"), &[JSON], health);
        assert_eq!(
            (head.status, text.contains("get_health")),
            (200, true),
            "{path}: {text}"
        );
    }
    for (path, status) in [
        ("/monitor/statistics", 200),
        ("/slave(1)/monitor/statistics", 200),
        ("/containers", 200),
        ("/slave(1)/state/", 200),
        ("/state/../state", 404),
        ("/nosuch", 404),
    ] {
        let mut raw = Raw::connect(agent);
        raw.request(&format!("GET {path}"), &["Connection: close"], "");
        assert_eq!(raw.head().status, status, "{path}");
    }
}

fn streaming_headers_belong_to_streams() {
    let cluster = Cluster::default();
    let health = r#"{"type": "GET_HEALTH"}"#;
    let sent: [(&[&str], u16); 5] = [
        (&[JSON, "Message-Accept: application/json"], 406),
        (&[JSON, "Message-Content-Type: application/json"], 415),
        (&["Content-Type: application/recordio"], 400),
        (&[JSON, "Accept: text/html"], 406),
        (&["Content-Type: text/plain"], 415),
    ];
    for (headers, status) in sent {
        let (head, text) = exchange(cluster.agent().address(), "POST /api/v1", headers, health);
        assert_eq!(head.status, status, "{headers:?}: {text}");
    }
}

/// A session in a task's container, as the Mesos command line opens it.
fn a_session_streams_records_in_json() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let small = [("cpus", 0.5), ("mem", 64.0)];
    let running = framework.run_task(&offer, "t", "exec sleep 600", &small);
    let parent = &running["container_status"]["container_id"];
    let call = json!({"type": "LAUNCH_NESTED_CONTAINER_SESSION", "launch_nested_container_session": {
        "container_id": {"value": "s", "parent": parent},
        "command": {"value": "echo", "arguments": ["echo", "hello"], "shell": false}}});
    let mut raw = Raw::connect(cluster.agent().address());
    let accept = "Accept: application/recordio";
    raw.request("POST /api/v1", &[JSON, accept], &call.to_string());
    let head = raw.head();
    assert_eq!(head.status, 200);
    assert_eq!(head.header("content-type"), Some("application/recordio"));
    assert_eq!(
        head.header("message-content-type"),
        Some("application/json")
    );
    let mut output = String::new();
    while let Some(record) = raw.record() {
        if record["data"]["type"] == "STDOUT" {
            output += record["data"]["data"].as_str().expect("base64");
        }
    }
    assert_eq!(output, "aGVsbG8K", "hello and a line feed");
}

fn data_of_tasks_and_labels_pass_unchanged() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let mut one = task(
        &offer,
        "t",
        "exec sleep 600",
        &[("cpus", 0.1), ("mem", 16.0)],
    );
    one["data"] = json!("AAH/");
    one["labels"] = json!({"labels": [{"key": "k", "value": "v"}, {"key": "alone"}]});
    one["discovery"] = json!({"visibility": "EXTERNAL", "name": "svc",
        "ports": {"ports": [{"number": 80, "name": "http", "protocol": "tcp"}]}});
    framework.launch(&offer, &[one.clone()]);
    framework.until_state("t", "TASK_RUNNING");
    let shown = cluster.master.page("/tasks").json()["tasks"][0].clone();
    assert_eq!(shown["labels"], one["labels"]["labels"]);
    assert_eq!(shown["discovery"], one["discovery"]);
    assert_eq!(
        shown["executor_id"], "",
        "a command task has none of its own"
    );
}
