//! Our answers beside those recorded from a genuine Mesos (`tests/golden`).

use std::collections::BTreeSet;
use std::path::Path;

use meseta_tests::framework::task;
use meseta_tests::raw::Raw;
use meseta_tests::{Cluster, Encoding, Framework};
use serde_json::{Value, json};

use crate::{Scenario, anywhere};

pub(crate) const ALL: &[Scenario] = &[
    (
        "scheduler_calls_are_answered_as_recorded",
        anywhere,
        answers,
    ),
    ("scheduler_events_have_the_shape_recorded", anywhere, events),
];

fn recorded(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(file);
    let text = std::fs::read_to_string(path).expect("a recording");
    text.lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn answers() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    let ours = |text: &str| {
        text.replace("STREAM", &framework.stream_id)
            .replace("FRAMEWORK", &framework.id)
    };
    for exchange in recorded("scheduler-errors.jsonl") {
        let mut raw = Raw::connect(cluster.master.address());
        let mut headers: Vec<String> = Vec::new();
        if let Some(content_type) = exchange["content_type"].as_str() {
            headers.push(format!("Content-Type: {content_type}"));
        }
        let sent = exchange["headers"].as_array().into_iter().flatten();
        headers.extend(sent.map(|header| ours(header.as_str().expect("a header"))));
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        let body = ours(exchange["body"].as_str().unwrap_or_default());
        raw.request(
            exchange["request"].as_str().expect("a request"),
            &headers,
            &body,
        );
        let (head, text) = raw.answer();
        let status = exchange["status"].as_str().expect("a status");
        assert!(
            status.starts_with(&head.status.to_string()),
            "{exchange:#}: {text}"
        );
        assert_eq!(
            text,
            ours(exchange["response"].as_str().expect("a text")),
            "{exchange:#}"
        );
        for name in ["Allow", "Content-Type"] {
            let theirs = exchange["response_headers"]
                .get(name)
                .and_then(Value::as_str);
            assert_eq!(
                head.header(&name.to_lowercase()),
                theirs,
                "{name} of {exchange:#}"
            );
        }
        let length = text.len().to_string();
        assert_eq!(head.header("content-length"), Some(length.as_str()));
    }
}

/// Every path to a value with the value's type; what differs between elements of a list is united.
fn shape(value: &Value, path: &str, into: &mut BTreeSet<String>) {
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(all) => {
            for one in all {
                shape(one, &format!("{path}[]"), into);
            }
            return;
        }
        Value::Object(all) => {
            for (key, one) in all {
                shape(one, &format!("{path}.{key}"), into);
            }
            return;
        }
    };
    into.insert(format!("{path}: {kind}"));
}

/// Compares shapes. What a network of containers would add is not meaningful on the host's.
fn same_shape(name: &str, theirs: &Value, ours: &Value) {
    let incidental =
        |path: &String| path.contains(".network_infos") || path.contains("executor_pid");
    let of = |value: &Value| {
        let mut paths = BTreeSet::new();
        shape(value, "", &mut paths);
        paths.retain(|path| !incidental(path));
        paths
    };
    let (theirs, ours) = (of(theirs), of(ours));
    let missing: Vec<_> = theirs.difference(&ours).collect();
    let added: Vec<_> = ours.difference(&theirs).collect();
    assert!(
        missing.is_empty() && added.is_empty(),
        "{name}: missing {missing:?}, added {added:?}"
    );
}

struct Recording(Vec<Value>);

impl Recording {
    fn event(&self, name: &str) -> &Value {
        let found = self.0.iter().find(|line| line["name"] == name);
        &found.unwrap_or_else(|| panic!("nothing recorded as {name:?}"))["event"]
    }

    /// Same shape, and these texts to the letter.
    fn compare(&self, name: &str, ours: &Value, texts: &[&str]) {
        let theirs = self.event(name);
        same_shape(name, theirs, ours);
        for pointer in texts {
            assert_eq!(
                theirs.pointer(pointer),
                ours.pointer(pointer),
                "{name} {pointer}"
            );
        }
    }
}

const STATUS: [&str; 3] = [
    "/update/status/state",
    "/update/status/reason",
    "/update/status/source",
];

fn update(framework: &mut Framework, task: &str, state: &str) -> Value {
    let event = framework.wait_until(&format!("{task} {state}"), |event| {
        let status = &event["update"]["status"];
        status["task_id"]["value"] == task && status["state"] == state
    });
    framework.acknowledge(&event["update"]["status"]);
    event
}

fn events() {
    let cluster = Cluster::default();
    let recording = Recording(recorded("scheduler-events.jsonl"));
    let info = json!({"user": "root", "name": "golden", "roles": ["dev"],
        "capabilities": [{"type": "MULTI_ROLE"}, {"type": "RESERVATION_REFINEMENT"}],
        "failover_timeout": 0, "checkpoint": true});
    let mut first = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
    let subscribed = first.subscribed.clone();
    recording.compare(
        "subscribed",
        &subscribed,
        &["/subscribed/heartbeat_interval_seconds"],
    );
    assert_eq!(&first.wait_for("HEARTBEAT"), recording.event("heartbeat"));
    let offers = first.wait_for("OFFERS");
    recording.compare("offers", &offers, &["/offers/offers/0/url/path"]);
    let offer = offers["offers"]["offers"][0].clone();

    let small = [("cpus", 0.5), ("mem", 64.0)];
    first.launch(
        &offer,
        &[
            task(&offer, "task-1", "exec sleep 600", &small),
            task(&offer, "task-3", "true", &[("cpus", 1000.0)]),
            task(&offer, "task-4", "exit 0", &small),
            task(&offer, "task-5", "exit 3", &small),
        ],
    );
    let too_big = update(&mut first, "task-3", "TASK_ERROR");
    recording.compare("too big", &too_big, &STATUS);
    for name in ["starting", "running"] {
        let state = format!("TASK_{}", name.to_uppercase());
        let event = update(&mut first, "task-1", &state);
        recording.compare(name, &event, &STATUS);
    }
    for (name, task, state) in [
        ("finished", "task-4", "TASK_FINISHED"),
        ("failed", "task-5", "TASK_FAILED"),
    ] {
        for state in ["TASK_STARTING", "TASK_RUNNING"] {
            update(&mut first, task, state);
        }
        let event = update(&mut first, task, state);
        recording.compare(
            name,
            &event,
            &[STATUS[0], STATUS[1], STATUS[2], "/update/status/message"],
        );
    }
    first.launch(&offer, &[task(&offer, "task-2", "true", &small)]);
    let invalid = update(&mut first, "task-2", "TASK_LOST");
    recording.compare("invalid offer", &invalid, &STATUS);
    first.accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": [
        {"task_id": {"value": "task-1"}}, {"task_id": {"value": "nosuch"}}]}}));
    let message = "/update/status/message";
    let known = update(&mut first, "task-1", "TASK_RUNNING");
    recording.compare(
        "reconciled",
        &known,
        &[STATUS[0], STATUS[1], STATUS[2], message],
    );
    let unknown = update(&mut first, "nosuch", "TASK_LOST");
    recording.compare(
        "unknown",
        &unknown,
        &[STATUS[0], STATUS[1], STATUS[2], message],
    );
    first.kill("task-1");
    let killed = update(&mut first, "task-1", "TASK_KILLED");
    recording.compare(
        "killed",
        &killed,
        &[STATUS[0], STATUS[1], STATUS[2], message],
    );

    let mut again = info.clone();
    again["id"] = json!({"value": first.id});
    let second = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &again);
    let error = first.wait_for("ERROR");
    assert_eq!(&error, recording.event("failed over"));
    second.teardown();
    one_role(&cluster, &recording);
    removed(&cluster, &recording, &again);
}

/// A framework without capabilities sees resources as they were before roles were many.
fn one_role(cluster: &Cluster, recording: &Recording) {
    let info = json!({"user": "root", "name": "golden"});
    let mut plain = Framework::subscribe(&cluster.scheduler_url(), Encoding::Json, &info);
    let offers = plain.wait_for("OFFERS");
    recording.compare(
        "offers of one role",
        &offers,
        &["/offers/offers/0/resources/0/role"],
    );
    plain.teardown();
}

fn removed(cluster: &Cluster, recording: &Recording, info: &Value) {
    let call = json!({"type": "SUBSCRIBE", "framework_id": info["id"],
        "subscribe": {"framework_info": info}});
    let mut raw = Raw::connect(cluster.master.address());
    raw.request(
        "POST /api/v1/scheduler",
        &["Content-Type: application/json"],
        &call.to_string(),
    );
    assert_eq!(raw.head().status, 200);
    assert_eq!(raw.record().as_ref(), Some(recording.event("removed")));
    assert_eq!(raw.record(), None, "and the stream ends");
}
