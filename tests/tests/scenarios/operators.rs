//! What operators do to agents and see of the cluster, over the real binaries: draining, and every question.

use std::time::Duration;

use meseta_proto::mesos::v1::master::{Call, Response};
use meseta_tests::framework::framework_info;
use meseta_tests::raw::Raw;
use meseta_tests::{Cluster, http, wait};
use prost::Message as _;
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        a_drained_agent_ends_its_tasks,
        every_question_is_answered_in_both_encodings;
}

fn get(cluster: &Cluster, path: &str) -> Value {
    let answer = http::get(&format!("{}{path}", cluster.master.url));
    assert_eq!(answer.status, 200, "{path}: {}", answer.text());
    answer.json()
}

fn call(cluster: &Cluster, body: &Value) -> (u16, String) {
    let answer = http::post_json(&format!("{}/api/v1", cluster.master.url), body);
    (answer.status, answer.text())
}

fn a_drained_agent_ends_its_tasks() {
    let cluster = Cluster::default();
    let id = cluster.agent_id();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let stubborn = "trap '' TERM; echo up; while :; do sleep 0.1; done";
    framework.run_task(&offer, "t1", stubborn, &[("cpus", 0.1), ("mem", 32.0)]);
    let drain = json!({"type": "DRAIN_AGENT",
        "drain_agent": {"agent_id": {"value": id}, "max_grace_period": {"seconds": 1}}});
    assert_eq!(call(&cluster, &drain), (200, String::new()));
    let reactivate =
        json!({"type": "REACTIVATE_AGENT", "reactivate_agent": {"agent_id": {"value": id}}});
    let killed = framework.until_state("t1", "TASK_KILLED");
    assert_eq!(killed["reason"], "REASON_AGENT_DRAINING", "{killed}");
    let state = |cluster: &Cluster| get(cluster, "/slaves")["slaves"][0]["drain_info"].clone();
    wait::eventually("the agent is drained", Duration::from_secs(30), || {
        (state(&cluster)["state"] == "DRAINED").then_some(())
    });
    let drained = json!({"state": "DRAINED",
        "config": {"max_grace_period": {"nanoseconds": 1_000_000_000}, "mark_gone": false}});
    assert_eq!(state(&cluster), drained);
    assert_eq!(call(&cluster, &reactivate), (200, String::new()));
    let mut again = cluster.subscribe(&framework_info("dev"));
    again.offer();
    let hasty = json!({"type": "DRAIN_AGENT",
        "drain_agent": {"agent_id": {"value": id}, "max_grace_period": {"seconds": -1}}});
    let text = "Failed to drain agent: 'max_grace_period' must not be negative";
    assert_eq!(call(&cluster, &hasty), (400, text.to_owned()));
}

/// The answer to a question, from JSON and from protobuf alike.
fn ask(cluster: &Cluster, kind: &str) -> Value {
    let call = json!({"type": kind, "get_metrics": {}});
    let url = format!("{}/api/v1", cluster.master.url);
    let answer = http::post_json(&url, &call);
    assert_eq!(answer.status, 200, "{kind}: {}", answer.text());
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert!(answer.header("content-length").is_some(), "{kind}");
    let json = answer.json();
    assert_eq!(json["type"], kind);
    let message: Call = serde_json::from_value(call).expect("a call");
    let protobuf = http::post(
        &url,
        &[
            ("content-type", "application/x-protobuf"),
            ("accept", "application/x-protobuf"),
        ],
        &message.encode_to_vec(),
    );
    assert_eq!(protobuf.status, 200, "{kind}");
    let message = Response::decode(protobuf.body.as_slice()).expect("a response");
    // Metrics and the like move on; what is in both is the same.
    let same = serde_json::to_value(&message).expect("JSON");
    let keys = |value: &Value| -> Vec<String> {
        let object = value.as_object().expect("an object");
        object.keys().cloned().collect()
    };
    assert_eq!(keys(&same), keys(&json), "{kind}");
    json[kind.to_lowercase()].clone()
}

fn every_question_is_answered_in_both_encodings() {
    let mut cluster = Cluster::default();
    let id = cluster.agent_id();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let resources = &[("cpus", 0.1), ("mem", 32.0)];
    framework.run_task(&offer, "t1", "sleep 1000", resources);
    assert_eq!(ask(&cluster, "GET_HEALTH"), json!({"healthy": true}));
    let version = ask(&cluster, "GET_VERSION");
    assert_eq!(version["version_info"]["version"], "1.12.0");
    let flags = ask(&cluster, "GET_FLAGS");
    let flag = |name: &str| {
        let flags = flags["flags"].as_array().expect("flags");
        flags.iter().find(|flag| flag["name"] == name).cloned()
    };
    assert_eq!(flag("quota_semantics").expect("a flag")["value"], "seed");
    let metrics = ask(&cluster, "GET_METRICS");
    let metrics = metrics["metrics"].as_array().expect("metrics");
    let elected = json!({"name": "master/elected", "value": 1.0});
    assert!(metrics.contains(&elected));
    let master = ask(&cluster, "GET_MASTER");
    assert!(master["elected_time"].as_f64().is_some(), "{master}");
    assert_eq!(master["master_info"]["hostname"], "127.0.0.1");
    let agents = ask(&cluster, "GET_AGENTS");
    let agent = &agents["agents"][0];
    assert_eq!(agent["agent_info"]["id"]["value"], id.as_str());
    assert_eq!(
        (&agent["active"], &agent["deactivated"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(agent["total_resources"][0]["role"], "*", "{agent}");
    let frameworks = ask(&cluster, "GET_FRAMEWORKS");
    let shown = &frameworks["frameworks"][0];
    assert_eq!(
        shown["framework_info"]["id"]["value"],
        framework.id.as_str()
    );
    assert_eq!(
        (&shown["active"], &shown["connected"]),
        (&json!(true), &json!(true))
    );
    assert!(shown["allocated_resources"].is_array(), "{shown}");
    let tasks = ask(&cluster, "GET_TASKS");
    assert_eq!(tasks["tasks"][0]["task_id"]["value"], "t1");
    assert_eq!(tasks["tasks"][0]["state"], "TASK_RUNNING");
    assert_eq!(tasks["completed_tasks"], json!([]));
    // The agent itself speaks for a command task.
    assert_eq!(ask(&cluster, "GET_EXECUTORS"), json!({"executors": []}));
    assert_eq!(ask(&cluster, "GET_OPERATIONS"), json!({}));
    let state = ask(&cluster, "GET_STATE");
    assert_eq!(state["get_tasks"]["tasks"][0]["task_id"]["value"], "t1");
    assert_eq!(
        state["get_agents"]["agents"][0]["agent_info"]["id"]["value"],
        id.as_str()
    );
    let roles = ask(&cluster, "GET_ROLES");
    assert_eq!(roles["roles"][0]["name"], "dev");
    assert_eq!(roles["roles"][0]["weight"], 1.0);
    assert_eq!(
        roles["roles"][0]["frameworks"][0]["value"],
        framework.id.as_str()
    );
    assert_eq!(ask(&cluster, "GET_WEIGHTS"), json!({}));
    assert_eq!(ask(&cluster, "GET_QUOTA"), json!({"status": {}}));
    let set = json!({"type": "SET_QUOTA", "set_quota": {"quota_request": {"role": "ops",
        "guarantee": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}}]}}});
    assert_eq!(call(&cluster, &set), (200, String::new()));
    let quota = ask(&cluster, "GET_QUOTA");
    assert_eq!(quota["status"]["infos"][0]["role"], "ops");
    let remove = json!({"type": "REMOVE_QUOTA", "remove_quota": {"role": "ops"}});
    assert_eq!(call(&cluster, &remove), (200, String::new()));
    assert_eq!(call(&cluster, &remove).0, 400);
    let weights = json!({"type": "UPDATE_WEIGHTS",
        "update_weights": {"weight_infos": [{"role": "ops", "weight": 4.0}]}});
    assert_eq!(call(&cluster, &weights), (200, String::new()));
    let weights = ask(&cluster, "GET_WEIGHTS");
    assert_eq!(
        weights["weight_infos"],
        json!([{"weight": 4.0, "role": "ops"}])
    );
    assert_eq!(
        ask(&cluster, "GET_MAINTENANCE_SCHEDULE"),
        json!({"schedule": {}})
    );
    assert_eq!(
        ask(&cluster, "GET_MAINTENANCE_STATUS"),
        json!({"status": {}})
    );
    let path = json!({"type": "LIST_FILES", "list_files": {"path": "/nosuch"}});
    assert_eq!(call(&cluster, &path), (404, String::new()));
    let path = json!({"type": "READ_FILE", "read_file": {"path": "/nosuch", "offset": 0}});
    assert_eq!(call(&cluster, &path), (404, String::new()));
    let teardown =
        json!({"type": "TEARDOWN", "teardown": {"framework_id": {"value": framework.id}}});
    assert_eq!(call(&cluster, &teardown), (200, String::new()));
    let tasks = ask(&cluster, "GET_TASKS");
    assert_eq!(tasks["completed_tasks"][0]["task_id"]["value"], "t1");
    // An agent of the registry that has not come back is listed apart.
    cluster.agents[0].kill();
    cluster.restart_master();
    let agents = ask(&cluster, "GET_AGENTS");
    assert_eq!(agents["agents"], json!([]), "{agents}");
    assert_eq!(agents["recovered_agents"][0]["id"]["value"], id.as_str());
    let mut stream = Raw::connect(cluster.master.address());
    let json = "Content-Type: application/json";
    stream.request("POST /api/v1", &[json], r#"{"type": "SUBSCRIBE"}"#);
    assert_eq!(stream.head().status, 200);
    let first = stream.record().expect("an event");
    let recovered = &first["subscribed"]["get_state"]["get_agents"]["recovered_agents"];
    assert_eq!(recovered[0]["id"]["value"], id.as_str());
}
