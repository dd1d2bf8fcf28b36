//! Pages and answers of both daemons compared with the recorded ones: the same keys with the same types of values.

use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::raw::Raw;
use meseta_tests::recording::{self, Events};
use meseta_tests::{Cluster, Framework, Setup, http, unless_root, wait};
use serde_json::{Value, json};

use super::executor::{custom, launch_group};
use crate::{anywhere, recorded};

meseta_tests::scenarios! {
    unless_root:
        // The statistics are those of cgroups.
        pages_have_the_shape_recorded;
    anywhere:
        reservations_are_shown_as_recorded,
        oversubscription_is_shown_as_recorded,
        operator_events_match_recorded_shape;
}

/// The time for values that a page shows only after a while.
const LIMIT: Duration = Duration::from_secs(20);

/// The paths at which our pages differ from theirs.
const DEPARTURES: &[&str] = &[
    // The recorded Mesos was built without git.
    ".git_sha",
    ".meseta_version",
    // The flags differ between the daemons.
    ".flags",
    // The oversubscribed resources, and the reason for their limit.
    ".oversubscribed_resources",
    ".oversubscription",
    // The v1 messages lack this field of v0.
    ".agent_info.checkpoint",
    // Ours contains it there too, not only in the status.
    ".containers[].container_id.parent",
    // Further statistics were off during the recording.
    ".blkio_statistics",
    ".cpus_nr_",
    ".cpus_throttled_time_secs",
    ".mem_total_memsw_bytes",
    ".processes",
    ".threads",
    // The executor of a command task is the agent: it has no command line and uses no resources.
    "executors[].executor_info.command.arguments",
    "executors[].executor_info.resources",
];

/// The agent was gone when the end was recorded.
fn is_departure(when: &str, path: &str) -> bool {
    DEPARTURES.iter().any(|departure| path.contains(departure))
        || when == "completed" && path.starts_with(".slaves[]")
}

/// Compares all pages that were recorded at this point.
fn compare(cluster: &Cluster, when: &str) {
    let all = recording::lines("pages.jsonl");
    let pages: Vec<_> = all.iter().filter(|page| page["when"] == when).collect();
    assert!(!pages.is_empty(), "nothing was recorded at {when:?}");
    let mut wrong = Vec::new();
    for page in pages {
        let mut last = None;
        wait::holds(LIMIT, || {
            let departs = |path: &str| is_departure(when, path);
            last = recording::difference(&page["response"], &ask(cluster, page), &departs);
            last.is_none()
        });
        let of = format!("{} {} {}", page["of"], page["request"], page["body"]);
        wrong.extend(last.map(|difference| format!("{of}, {when}: {difference}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn ask(cluster: &Cluster, page: &Value) -> Value {
    let daemon = if page["of"] == "agent" {
        cluster.agent()
    } else {
        &cluster.master
    };
    let request = page["request"].as_str().expect("a request");
    let answer = match request.split_once(' ').expect("a method") {
        ("GET", path) => daemon.page(path),
        (_, path) => http::post_json(&format!("{}{path}", daemon.url), &page["body"]),
    };
    assert_eq!(answer.status, 200, "{page}");
    answer.json()
}

fn subscribe(cluster: &Cluster) -> Framework {
    let info = recording::framework_info();
    cluster.subscribe(&info)
}

/// Returns the task that ran during most of the recording.
fn recorded_task(offer: &Value) -> Value {
    let command = "env | sort > environment; exec sleep 600";
    let mut one = task(offer, "task-1", command, &[("cpus", 0.5), ("mem", 64.0)]);
    let ports = json!({"name": "ports", "type": "RANGES",
        "ranges": {"range": [{"begin": 31000, "end": 31001}]}});
    one["resources"].as_array_mut().expect("a list").push(ports);
    one["labels"] = json!({"labels": [{"key": "a", "value": "b"}]});
    one["discovery"] = json!({"visibility": "CLUSTER", "name": "gold"});
    one
}

/// Accepts an offer, and declines the rest of that agent for an hour.
fn launch_only(framework: &Framework, offer: &Value, tasks: &[Value]) {
    framework.accepted(
        json!({"type": "ACCEPT", "accept": {"offer_ids": [offer["id"]],
        "operations": [{"type": "LAUNCH", "launch": {"task_infos": tasks}}],
        "filters": {"refuse_seconds": 3600}}}),
    );
}

fn pages_have_the_shape_recorded() {
    let cluster = recorded::cluster();
    compare(&cluster, "idle");
    let mut framework = subscribe(&cluster);
    let offer = framework.offer();
    launch_only(&framework, &offer, &[recorded_task(&offer)]);
    framework.until_state("task-1", "TASK_RUNNING");
    compare(&cluster, "one task");

    framework.kill("task-1");
    framework.until_state("task-1", "TASK_KILLED");
    framework.accepted(json!({"type": "REVIVE"}));
    let offer = framework.offer();
    let mut unfetched = task(&offer, "task-6", "true", &[("cpus", 0.1), ("mem", 32.0)]);
    unfetched["command"]["uris"] = json!([{"value": "/nosuch/file"}]);
    framework.launch(&offer, &[unfetched, custom(&framework, &offer)]);
    framework.until_state("task-6", "TASK_FAILED");
    compare(&cluster, "executor");

    let offer = framework.offer();
    launch_group(&framework, &offer);
    framework.until_state("pod-b", "TASK_RUNNING");
    compare(&cluster, "pod");
    let mut info = recording::framework_info();
    info["id"] = json!({"value": framework.id});
    cluster.subscribe(&info).teardown();
    let plain = json!({"user": "root", "name": "golden"});
    cluster.subscribe(&plain).teardown();
    compare(&cluster, "completed");
}

fn reservations_are_shown_as_recorded() {
    let cluster = recorded::cluster();
    let agent = cluster.agent_id();
    let stack = |labels: Value| json!([{"type": "DYNAMIC", "role": "dev", "principal": "ops", "labels": labels}]);
    let labels = json!({"labels": [{"key": "k", "value": "v"}]});
    let cpus = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 2},
        "reservations": stack(labels)});
    let disk = json!({"name": "disk", "type": "SCALAR", "scalar": {"value": 64},
        "reservations": stack(Value::Null)});
    let mut volume = disk.clone();
    volume["disk"] = json!({"persistence": {"id": "vol1", "principal": "ops"},
        "volume": {"mode": "RW", "container_path": "data"}});
    let call = |kind: &str, field: &str, resources: Value| {
        let part = json!({"agent_id": {"value": agent}, field: resources});
        let answer = cluster.operate(kind, &part);
        assert_eq!(answer.status, 202, "{}", answer.text());
    };
    call("RESERVE_RESOURCES", "resources", json!([cpus, disk]));
    call("CREATE_VOLUMES", "volumes", json!([volume]));
    compare(&cluster, "reservation");
}

/// Starts a cluster whose agent oversubscribes this many cpus.
fn oversubscribing(cpus: u32) -> Cluster {
    let modules = json!({"libraries": {"modules": {
        "name": "org_apache_mesos_FixedResourceEstimator",
        "parameters": {"key": "resources", "value": format!("cpus:{cpus}")}}}});
    Cluster::start(Setup {
        agent_flags: vec![
            "--resources=cpus:8;mem:8192;disk:10240;ports:[31000-32000]".into(),
            "--resource_estimator=org_apache_mesos_FixedResourceEstimator".into(),
            format!("--modules={modules}"),
            "--oversubscribed_resources_interval=100ms".into(),
        ],
        ..Setup::default()
    })
}

fn oversubscription_is_shown_as_recorded() {
    compare(&oversubscribing(4), "revocable");
}

/// Compares the first of each kind of event, while a framework comes, runs a task, fails over and goes, and the agent with
/// it.
fn operator_events_match_recorded_shape() {
    let cluster = recorded::cluster();
    let mut stream = Raw::connect(cluster.master.address());
    let json = "Content-Type: application/json";
    stream.request("POST /api/v1", &[json], r#"{"type": "SUBSCRIBE"}"#);
    assert_eq!(stream.head().status, 200);
    let recorded = Events::read("operator-events.jsonl");
    let mut see = |name: &str| {
        let event = stream.until(&name.to_uppercase());
        let departs = |path: &str| is_departure("at any time", path);
        let difference = recording::difference(recorded.event(name), &event, &departs);
        assert_eq!(difference, None, "{name}");
    };
    see("subscribed");
    let mut framework = subscribe(&cluster);
    see("framework_added");
    let offer = framework.offer();
    launch_only(&framework, &offer, &[recorded_task(&offer)]);
    see("task_added");
    framework.until_state("task-1", "TASK_RUNNING");
    see("task_updated");
    let mut info = recording::framework_info();
    info["id"] = json!({"value": framework.id});
    let again = cluster.subscribe(&info);
    see("framework_updated");
    again.teardown();
    see("framework_removed");
    let answer = cluster.operate("MARK_AGENT_GONE", &json!({"agent_id": offer["agent_id"]}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    see("agent_removed");
}
