//! An executor's conversation with its agent, and its scheduler's events, compared with the recordings.
//!
//! The executor's process only waits; the test makes its calls over a plain socket.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::raw::{Head, Raw};
use meseta_tests::recording::{self, Events};
use meseta_tests::{Cluster, Framework, wait};
use serde_json::{Value, json};

use crate::{anywhere, recorded};

meseta_tests::scenarios! {
    anywhere:
        executor_events_match_recording,
        environments_are_as_recorded,
        executor_has_own_session,
        group_events_match_recording,
        failed_fetch_matches_recording;
}

const HEADERS: [&str; 2] = ["Content-Type: application/json", "Accept: application/json"];
const UUID: &str = "AAAAAAAAAAAAAAAAAAAAAA==";
/// The time for a process to do its part.
const LIMIT: Duration = Duration::from_secs(20);

/// A command that waits for a file that ends it. The file with its environment appears once it is complete.
const WAITING: &str = "env > new; mv new environment; until [ -e end ]; do sleep 0.05; done";

fn subscribe(cluster: &Cluster) -> Framework {
    let info = recording::framework_info();
    cluster.subscribe(&info)
}

fn resources(cpus: f64, mem: f64) -> Value {
    json!([{"name": "cpus", "type": "SCALAR", "scalar": {"value": cpus}},
        {"name": "mem", "type": "SCALAR", "scalar": {"value": mem}}])
}

/// Returns a task of the executor `exec-1`.
pub(crate) fn custom(framework: &Framework, offer: &Value) -> Value {
    json!({"name": "custom", "task_id": {"value": "task-7"}, "agent_id": offer["agent_id"],
        "resources": resources(0.1, 32.0), "data": "ZGF0YQ==",
        "executor": {"executor_id": {"value": "exec-1"}, "framework_id": {"value": framework.id},
            "command": {"shell": true, "value": WAITING},
            "resources": resources(0.1, 32.0), "name": "e"}})
}

fn sandbox(cluster: &Cluster, framework: &Framework, offer: &Value, executor: &str) -> PathBuf {
    let agent = offer["agent_id"]["value"].as_str().expect("an id");
    let path = format!(
        "slaves/{agent}/frameworks/{}/executors/{executor}/runs/latest",
        framework.id
    );
    cluster.agent_dir(0).join(path)
}

/// A call of an executor, and its answer.
type Call<'a> = dyn Fn(&Executor<'_>) -> (Head, String) + 'a;

struct Executor<'a> {
    agent: &'a str,
    framework: String,
    stream: Raw,
}

impl<'a> Executor<'a> {
    fn subscribe(agent: &'a str, framework: &Framework) -> Self {
        let mut executor = Self {
            agent,
            framework: framework.id.clone(),
            stream: Raw::connect(agent),
        };
        let call = executor.call("SUBSCRIBE", &json!({"subscribe": {}}));
        let stream = &mut executor.stream;
        stream.request("POST /api/v1/executor", &HEADERS, &call);
        let head = stream.head();
        assert_eq!(head.status, 200);
        assert_eq!(head.header("content-type"), Some("application/json"));
        assert_eq!(head.header("mesos-stream-id"), None);
        executor
    }

    fn call(&self, kind: &str, more: &Value) -> String {
        let mut call = json!({"type": kind, "executor_id": {"value": "exec-1"},
            "framework_id": {"value": self.framework}});
        for (key, value) in more.as_object().expect("an object") {
            call[key] = value.clone();
        }
        call.to_string()
    }

    fn send(&self, kind: &str, more: &Value) -> (Head, String) {
        let mut raw = Raw::connect(self.agent);
        raw.request("POST /api/v1/executor", &HEADERS, &self.call(kind, more));
        raw.answer()
    }

    fn update(&self, changes: &Value) -> (Head, String) {
        let mut status = json!({"task_id": {"value": "task-7"}, "source": "SOURCE_EXECUTOR",
            "timestamp": 1.5e9, "uuid": UUID});
        for (key, value) in changes.as_object().expect("an object") {
            status[key] = value.clone();
        }
        self.send("UPDATE", &json!({"update": {"status": status}}))
    }
}

fn executor_events_match_recording() {
    let cluster = recorded::cluster();
    let mut framework = subscribe(&cluster);
    let offer = framework.offer();
    framework.launch(&offer, &[custom(&framework, &offer)]);
    let sandbox = sandbox(&cluster, &framework, &offer, "exec-1");
    let started = wait::holds(LIMIT, || sandbox.join("environment").is_file());
    assert!(started, "{}", cluster.agent().log_text());

    let heard = Events::read("scheduler-events.jsonl");
    let expected = Events::read("executor-events.jsonl");
    let mut executor = Executor::subscribe(cluster.agent().address(), &framework);
    let ids = ["executor_id", "framework_id"];
    let subscribed = executor.stream.record().expect("an event");
    expected.compare("subscribed", &subscribed, &[]);
    let echo = &subscribed["subscribed"]["executor_info"];
    assert_eq!(echo["executor_id"], json!({"value": "exec-1"}));
    assert_eq!(
        subscribed["subscribed"]["framework_info"]["id"],
        json!({"value": framework.id})
    );
    let launch = executor.stream.record().expect("an event");
    expected.compare(
        "launch",
        &launch,
        &["/launch/task/data", "/launch/task/name"],
    );
    for id in ids {
        assert_eq!(launch["launch"]["task"]["executor"][id], echo[id], "{id}");
    }

    let kill = json!({"state": "TASK_KILLED", "uuid": "AAAAAAAAAAAAAAAAAAAAAQ==",
        "timestamp": 1_500_000_000,
        "executor_id": {"value": "exec-1"}});
    let calls: [&Call<'_>; 5] = [
        &|executor| executor.update(&json!({"state": "TASK_RUNNING"})),
        &|executor| executor.update(&json!({"state": "TASK_RUNNING", "uuid": null})),
        &|executor| executor.update(&json!({"state": "TASK_RUNNING", "uuid": "AAAA"})),
        &|executor| executor.send("MESSAGE", &json!({"message": {"data": "aGVsbG8="}})),
        &|executor| executor.update(&kill),
    ];
    let mut events = Vec::new();
    for (call, reply) in calls.iter().zip(recording::lines("executor-replies.jsonl")) {
        if events.len() == 3 {
            hears(&mut executor, &framework, &offer, &expected);
        }
        let (head, text) = call(&executor);
        let status = reply["status"].as_str().expect("a status");
        assert!(
            status.starts_with(&head.status.to_string()),
            "{reply}: {text}"
        );
        assert_eq!(text, reply["response"], "{reply}");
        match head.status {
            202 => events.push(next(&mut framework)),
            _ => events.push(Value::Null),
        }
        if events.len() == 1 {
            let record = executor.stream.record().expect("an event");
            expected.compare("acknowledged", &record, &[]);
            assert_eq!(record["acknowledged"]["uuid"], UUID);
        }
    }
    // Our agent names the executor in each update; Mesos's agent passes the executor's update on.
    let running = &mut events[0]["update"]["status"];
    let named = running
        .as_object_mut()
        .and_then(|all| all.remove("executor_id"));
    assert_eq!(named, Some(json!({"value": "exec-1"})));
    let status = "/update/status";
    heard.compare(
        "executor running",
        &events[0],
        &[&format!("{status}/source")],
    );
    heard.compare(
        "message",
        &events[3],
        &["/message/data", "/message/executor_id"],
    );
    heard.compare(
        "executor killed",
        &events[4],
        &[&format!("{status}/source")],
    );
    expected.compare("acknowledged", &executor.stream.record().expect("one"), &[]);

    framework.accepted(json!({"type": "SHUTDOWN", "shutdown": {
        "agent_id": offer["agent_id"], "executor_id": {"value": "exec-1"}}}));
    let shutdown = executor.stream.record();
    assert_eq!(shutdown.as_ref(), Some(expected.event("shutdown")));
    std::fs::write(sandbox.join("end"), "").expect("written");
    let failure = framework.wait_for("FAILURE");
    let texts = ["/failure/status", "/failure/executor_id"];
    heard.compare("executor failure", &failure, &texts);
}

/// Returns the next message or update, after its acknowledgement.
fn next(framework: &mut Framework) -> Value {
    let event = framework.wait_until("what the executor said", |event| {
        event["type"] == "UPDATE" || event["type"] == "MESSAGE"
    });
    if event["type"] == "UPDATE" {
        framework.acknowledge(&event["update"]["status"]);
    }
    event
}

/// Checks that the scheduler's messages reach the executor.
fn hears(executor: &mut Executor<'_>, framework: &Framework, offer: &Value, expected: &Events) {
    framework.accepted(
        json!({"type": "MESSAGE", "message": {"agent_id": offer["agent_id"],
        "executor_id": {"value": "exec-1"}, "data": "AAEC"}}),
    );
    let message = executor.stream.record();
    assert_eq!(message.as_ref(), Some(expected.event("message")));
    framework.kill("task-7");
    let kill = executor.stream.record();
    assert_eq!(kill.as_ref(), Some(expected.event("kill")));
}

/// Compares all names, and the values that are the same everywhere.
fn same_environment(file: &str, path: &std::path::Path) {
    let read = wait::eventually("the environment", LIMIT, || {
        std::fs::read_to_string(path).ok()
    });
    let named = |text: &str| -> BTreeSet<String> {
        let names = text.lines().filter_map(|line| line.split('=').next());
        names.map(str::to_owned).collect()
    };
    let recorded = recording::text(file);
    let mut expected = named(&recorded);
    if file == "executor-environment.txt" {
        // The recording has no authentication of executors; here each has its token unless a flag forbids that.
        expected.insert("MESOS_EXECUTOR_AUTHENTICATION_TOKEN".to_owned());
    }
    assert_eq!(expected, named(&read), "{file}");
    let fixed = recorded.lines().filter(|line| !line.ends_with('='));
    for line in fixed {
        assert!(
            read.lines().any(|ours| ours == line),
            "{file}: {line}\n{read}"
        );
    }
}

fn environments_are_as_recorded() {
    let cluster = recorded::cluster();
    let mut framework = subscribe(&cluster);
    let offer = framework.offer();
    let small = [("cpus", 0.5), ("mem", 64.0)];
    let command = task(
        &offer,
        "task-1",
        "env > new; mv new environment; exec sleep 600",
        &small,
    );
    framework.launch(&offer, &[command, custom(&framework, &offer)]);
    for (executor, file) in [
        ("task-1", "command-task-environment.txt"),
        ("exec-1", "executor-environment.txt"),
    ] {
        let sandbox = sandbox(&cluster, &framework, &offer, executor);
        same_environment(file, &sandbox.join("environment"));
    }
}

fn executor_has_own_session() {
    let cluster = recorded::cluster();
    let mut framework = subscribe(&cluster);
    let offer = framework.offer();
    let mut one = custom(&framework, &offer);
    // The ids are process, process group and session, in the executor's pid namespace.
    let command = "cut -d' ' -f1,5,6 /proc/$$/stat > ids; exec sleep 600";
    one["executor"]["command"]["value"] = json!(command);
    framework.launch(&offer, &[one]);
    let path = sandbox(&cluster, &framework, &offer, "exec-1").join("ids");
    let text = wait::eventually("the executor's numbers", LIMIT, || {
        let text = std::fs::read_to_string(&path).ok()?;
        text.ends_with('\n').then_some(text)
    });
    let ids: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(ids.len(), 3, "{text}");
    assert!(ids.iter().all(|id| *id == ids[0]), "{text}");
}

/// Launches a group of two tasks, of which the second is killed.
pub(crate) fn launch_group(framework: &Framework, offer: &Value) {
    let part = |id: &str, command: &str| {
        json!({"name": id, "task_id": {"value": id}, "agent_id": offer["agent_id"],
            "resources": resources(0.1, 32.0), "command": {"value": command}})
    };
    let mut executor = resources(0.1, 32.0);
    let disk = json!({"name": "disk", "type": "SCALAR", "scalar": {"value": 32}});
    executor.as_array_mut().expect("a list").push(disk);
    framework.accepted(json!({"type": "ACCEPT", "accept": {"offer_ids": [offer["id"]],
        "operations": [{"type": "LAUNCH_GROUP", "launch_group": {
            "executor": {"type": "DEFAULT", "executor_id": {"value": "pod-1"},
                "framework_id": {"value": framework.id}, "resources": executor},
            "task_group": {"tasks": [part("pod-a", "exit 0"), part("pod-b", "exec sleep 600")]}}}]}}));
}

fn group_events_match_recording() {
    let cluster = recorded::cluster();
    let mut framework = subscribe(&cluster);
    let offer = framework.offer();
    launch_group(&framework, &offer);
    let heard = Events::read("scheduler-events.jsonl");
    let status = [
        "/update/status/state",
        "/update/status/source",
        "/update/status/message",
    ];
    let told = |framework: &mut Framework, name: &str, task: &str, state: &str| {
        let event = framework.wait_until(name, |event| {
            let status = &event["update"]["status"];
            status["task_id"]["value"] == task && status["state"] == state
        });
        framework.acknowledge(&event["update"]["status"]);
        heard.compare(name, &event, &status);
    };
    told(&mut framework, "pod starting", "pod-a", "TASK_STARTING");
    told(&mut framework, "pod running", "pod-a", "TASK_RUNNING");
    told(&mut framework, "pod finished", "pod-a", "TASK_FINISHED");
    for state in ["TASK_STARTING", "TASK_RUNNING"] {
        framework.until_state("pod-b", state);
    }
    framework.kill("pod-b");
    told(&mut framework, "pod killed", "pod-b", "TASK_KILLED");
    let failure = framework.wait_for("FAILURE");
    heard.compare("executor failure", &failure, &["/failure/status"]);
}

fn failed_fetch_matches_recording() {
    let cluster = recorded::cluster();
    let mut framework = subscribe(&cluster);
    let offer = framework.offer();
    let mut one = task(&offer, "task-6", "true", &[("cpus", 0.1), ("mem", 32.0)]);
    one["command"]["uris"] = json!([{"value": "/nosuch/file"}]);
    framework.launch(&offer, &[one]);
    let event = framework.wait_until("its end", |event| {
        event["update"]["status"]["state"] == "TASK_FAILED"
    });
    let texts = ["/update/status/reason", "/update/status/source"];
    Events::read("scheduler-events.jsonl").compare("not fetched", &event, &texts);
}
