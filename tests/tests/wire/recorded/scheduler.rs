//! Meseta's responses compared with recordings of a genuine Mesos (`tests/golden`).

use meseta_tests::framework::task;
use meseta_tests::raw::Raw;
use meseta_tests::recording::{self, Events};
use meseta_tests::{Cluster, Framework};
use serde_json::{Value, json};

use crate::{anywhere, recorded};

meseta_tests::scenarios! {
    anywhere:
        scheduler_calls_are_answered_as_recorded,
        scheduler_events_have_the_shape_recorded;
}

fn scheduler_calls_are_answered_as_recorded() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    let names = [
        ("STREAM", framework.stream_id.as_str()),
        ("FRAMEWORK", &framework.id),
    ];
    recorded::replay(&cluster, "scheduler-errors.jsonl", &names);
    // Refused calls left the framework unchanged, and created no other.
    let shown = cluster.master.page("/frameworks").json();
    assert_eq!(shown["frameworks"].as_array().map(Vec::len), Some(1));
    framework.accepted(json!({"type": "REVIVE"}));
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

fn scheduler_events_have_the_shape_recorded() {
    let cluster = Cluster::default();
    let recording = Events::read("scheduler-events.jsonl");
    let info = recording::framework_info();
    let mut first = cluster.subscribe(&info);
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
    first.launch_task(&offer, "task-2", "true", &small);
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
    let second = cluster.subscribe(&again);
    let error = first.wait_for("ERROR");
    assert_eq!(&error, recording.event("failed over"));
    second.teardown();
    one_role(&cluster, &recording);
    removed(&cluster, &recording, &again);
}

/// Checks that a framework without capabilities sees resources in their form before multiple roles.
fn one_role(cluster: &Cluster, recording: &Events) {
    let info = json!({"user": "root", "name": "golden"});
    let mut plain = cluster.subscribe(&info);
    let offers = plain.wait_for("OFFERS");
    recording.compare(
        "offers of one role",
        &offers,
        &["/offers/offers/0/resources/0/role"],
    );
    plain.teardown();
}

fn removed(cluster: &Cluster, recording: &Events, info: &Value) {
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
