//! Calls whose parts are missing, of a wrong type or about nobody, on every API of both daemons: refused with
//! words that help, and nothing changed.

use meseta_proto::mesos::v1::{executor, scheduler};
use meseta_tests::framework::framework_info;
use meseta_tests::{Cluster, http};
use serde_json::{Value, json};

use crate::anywhere;
use crate::reservations::agent_id;

meseta_tests::scenarios! {
    anywhere:
        schedulers_calls_without_their_parts,
        executors_calls_without_their_parts,
        operators_calls_about_nobody,
        calls_with_a_key_twice;
}

/// What a part may be instead.
fn parts() -> [Value; 6] {
    [
        Value::Null,
        json!("x"),
        json!([]),
        json!([1]),
        json!(true),
        json!({"task_id": 5, "offer_ids": 5, "agent_id": 5, "uuid": 5, "operations": 5, "tasks": 5,
               "data": 5, "inverse_offer_ids": 5, "requests": 5, "status": 5, "roles": 5,
               "framework_info": 5, "executor_id": 5}),
    ]
}

/// Whether a refusal names the part of the call, or the field in it.
fn is_named(text: &str, part: &str) -> bool {
    text.contains(part) || text.contains("for field '")
}

fn schedulers_calls_without_their_parts() {
    let (cluster, mut framework, offer) = Cluster::with_offer();
    let before = cluster.master.page("/frameworks").json()["frameworks"].clone();
    let kinds = (1..32).filter_map(|kind| scheduler::call::Type::try_from(kind).ok());
    let names: Vec<&str> = kinds.map(|kind| kind.as_str_name()).collect();
    assert!(names.len() >= 16, "{names:?}");
    for name in names {
        // It needs no part and would end everything; the stream is tried below.
        if name == "TEARDOWN" || name == "SUBSCRIBE" {
            continue;
        }
        for part in parts() {
            let field = name.to_lowercase();
            // These mean everything without a part.
            if matches!(name, "REVIVE" | "SUPPRESS") && part.is_null() {
                continue;
            }
            let answer = framework.call(json!({"type": name, field.as_str(): part}));
            let text = answer.text();
            assert_eq!(answer.status, 400, "{name} {part}: {text}");
            assert!(
                is_named(&text, &field),
                "it names the part: {name} {part}: {text}"
            );
        }
    }
    for part in parts() {
        let url = cluster.scheduler_url();
        let answer = http::post_json(&url, &json!({"type": "SUBSCRIBE", "subscribe": part}));
        assert_eq!(answer.status, 400, "{part}: {}", answer.text());
        assert!(
            is_named(&answer.text(), "subscribe"),
            "{part}: {}",
            answer.text()
        );
    }
    assert_eq!(
        cluster.master.page("/frameworks").json()["frameworks"],
        before
    );
    // The offer stands.
    framework.decline(&offer, 0.0);
    framework.offer();
}

fn executors_calls_without_their_parts() {
    let cluster = Cluster::default();
    let url = format!("{}/api/v1/executor", cluster.agent().url);
    let kinds = (1..32).filter_map(|kind| executor::call::Type::try_from(kind).ok());
    let names: Vec<&str> = kinds.map(|kind| kind.as_str_name()).collect();
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let field = name.to_lowercase();
        let call = |part: &Value| {
            json!({"type": name, "framework_id": {"value": "nobody"},
                   "executor_id": {"value": "nobody"}, field.as_str(): part})
        };
        // It is for connections, not for anybody.
        if name == "HEARTBEAT" {
            continue;
        }
        for part in parts() {
            let answer = http::post_json(&url, &call(&part));
            assert_eq!(answer.status, 400, "{name} {part}: {}", answer.text());
            let text = answer.text();
            let is_about = is_named(&text, &field) || text == "Framework cannot be found";
            assert!(is_about, "{name} {part}: {text}");
        }
        let without = http::post_json(&url, &json!({"type": name}));
        assert_eq!(without.status, 400, "{name}: {}", without.text());
        assert!(
            without.text().contains("executor_id"),
            "{name}: {}",
            without.text()
        );
    }
    let subscribe = json!({"type": "SUBSCRIBE", "framework_id": {"value": "nobody"},
        "executor_id": {"value": "nobody"}, "subscribe": {}});
    let answer = http::post_json(&url, &subscribe);
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (400, "Framework cannot be found")
    );
}

/// Calls of the master's operator API about nobody: its part, the code, and words of the answer.
const OF_MASTER: &str = r#"
TEARDOWN | {"framework_id": {"value": "nosuch"}} | 400 | No framework
DRAIN_AGENT | {"agent_id": {"value": "nosuch"}} | 400 | Unknown agent
DEACTIVATE_AGENT | {"agent_id": {"value": "nosuch"}} | 400 | Unknown agent
REACTIVATE_AGENT | {"agent_id": {"value": "nosuch"}} | 400 | not deactivated
MARK_AGENT_GONE | {"agent_id": {"value": "nosuch"}} | 404 | not found
REMOVE_QUOTA | {"role": "nosuch"} | 400 | no quota
START_MAINTENANCE | {"machines": [{"hostname": "nosuch"}]} | 400 | not part of
STOP_MAINTENANCE | {"machines": [{"hostname": "nosuch"}]} | 400 | not part of
RESERVE_RESOURCES | {"agent_id": {"value": "nosuch"}, "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}, "reservations": [{"type": "DYNAMIC", "role": "ads"}]}]} | 400 | No agent
UNRESERVE_RESOURCES | {"agent_id": {"value": "nosuch"}, "resources": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}, "reservations": [{"type": "DYNAMIC", "role": "ads"}]}]} | 400 | No agent
CREATE_VOLUMES | {"agent_id": {"value": "nosuch"}, "volumes": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}, "reservations": [{"type": "DYNAMIC", "role": "ads"}]}]} | 400 | No agent
DESTROY_VOLUMES | {"agent_id": {"value": "nosuch"}, "volumes": [{"name": "cpus", "type": "SCALAR", "scalar": {"value": 1}, "reservations": [{"type": "DYNAMIC", "role": "ads"}]}]} | 400 | No agent
LIST_FILES | {"path": "/nosuch"} | 404 | ''
READ_FILE | {"path": "/nosuch", "offset": 0} | 404 | ''"#;
/// The same, of the agent's API.
const OF_AGENT: &str = r#"
LIST_FILES | {"path": "/nosuch"} | 404 | ''
READ_FILE | {"path": "/nosuch", "offset": 0} | 404 | ''
WAIT_CONTAINER | {"container_id": {"value": "nosuch"}} | 404 | nosuch
KILL_CONTAINER | {"container_id": {"value": "nosuch"}} | 404 | nosuch
REMOVE_CONTAINER | {"container_id": {"value": "nosuch"}} | 404 | nosuch
WAIT_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | cannot be found
KILL_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | cannot be found
REMOVE_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | cannot be found
LAUNCH_NESTED_CONTAINER | {"container_id": {"value": "a", "parent": {"value": "nosuch"}}, "command": {"value": "true"}} | 404 | nosuch"#;

fn operators_calls_about_nobody() {
    let cluster = Cluster::default();
    let facts = || {
        let page = |path: &str| cluster.master.page(path).json();
        let slave = page("/slaves")["slaves"][0].clone();
        json!([
            page("/quota"),
            page("/weights"),
            page("/maintenance/schedule"),
            slave
        ])
    };
    let before = facts();
    for (url, table) in [
        (&cluster.master.url, OF_MASTER),
        (&cluster.agent().url, OF_AGENT),
    ] {
        for row in table.trim().lines() {
            let cells: Vec<&str> = row.split(" | ").map(str::trim).collect();
            let [name, part, status, words] = cells[..] else {
                panic!("four cells: {row}");
            };
            let part: Value = serde_json::from_str(part).expect("JSON");
            let body = json!({"type": name, name.to_lowercase().as_str(): part});
            let answer = http::post_json(&format!("{url}/api/v1"), &body);
            let text = answer.text();
            assert_eq!(answer.status.to_string(), status, "{body}: {text}");
            assert!(text.contains(words.trim_matches('\'')), "{body}: {text}");
        }
    }
    assert_eq!(facts(), before);
}

/// Of a key that comes twice the last counts, as in Mesos; what it was before does no harm.
fn calls_with_a_key_twice() {
    let cluster = Cluster::default();
    let json = [("content-type", "application/json")];
    let id = agent_id(&cluster);
    for url in [&cluster.master.url, &cluster.agent().url] {
        let body = r#"{"type": "GET_HEALTH", "type": "GET_VERSION"}"#;
        let answer = http::post(&format!("{url}/api/v1"), &json, body.as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["type"], "GET_VERSION");
    }
    let twice = format!(
        r#"{{"type": "DRAIN_AGENT", "drain_agent": {{"agent_id": {{"value": "{id}"}}}},
            "drain_agent": {{"agent_id": {{"value": "nosuch"}}}}}}"#
    );
    let url = format!("{}/api/v1", cluster.master.url);
    let answer = http::post(&url, &json, twice.as_bytes());
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (400, "Unknown agent")
    );
    let info = framework_info("dev");
    cluster.subscribe(&info).offer();
}
