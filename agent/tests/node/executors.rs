//! Executors of frameworks and groups of tasks on the real kernel.

use std::path::PathBuf;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::meseta::v1::master_frame::Message as ToAgent;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskFailed, TaskFinished, TaskKilled, TaskRunning, TaskStarting,
};
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_tests::http;
use rustix::process::Signal;
use serde_json::json;

use crate::Test;
use crate::harness::{
    Link, World, command, command_of, container_of, fixed_port, framework, framework_id,
    groups_named, scalar, shell, tasks_of, variable, wait_for,
};

pub(crate) const TESTS: &[Test] = tests![
    an_executor_speaks_json,
    an_executor_speaks_protobuf,
    executor_survives_agent_restart,
    root(executor_resizes_after_isolator_is_added),
    executor_calls_are_validated_in_order,
    root(group_shares_and_ends_with_executor),
    root(group_survives_agent_restart),
    root(group_grows_after_isolator_is_added),
    root(reused_id_in_group_gets_folder),
    subscription_during_agent_pause_is_heard,
];

const EXECUTOR: &str = "executor-1";

pub(crate) fn executor_id() -> pb::ExecutorId {
    pb::ExecutorId {
        value: EXECUTOR.to_owned(),
    }
}

pub(crate) fn custom(id: &str, media: &str) -> pb::TaskInfo {
    let program = std::env::current_exe().expect("our path");
    pb::TaskInfo {
        command: None,
        executor: Some(Box::new(pb::ExecutorInfo {
            executor_id: executor_id(),
            framework_id: Some(framework_id()),
            command: Some(pb::CommandInfo {
                environment: Some(variable("MEDIA", media)),
                ..command(&format!("exec {} executor", program.display()))
            }),
            resources: vec![scalar("cpus", 0.1), scalar("mem", 64.0)],
            ..pb::ExecutorInfo::default()
        })),
        ..shell(id, "")
    }
}

impl World {
    pub(crate) fn run_in_executor(&self, link: &Link, task: pb::TaskInfo, launch_executor: bool) {
        self.run_of(link, framework(), task, launch_executor);
    }

    /// Runs a task in the executor up to RUNNING.
    pub(crate) fn running_in_executor(
        &self,
        link: &mut Link,
        task: pb::TaskInfo,
        launch_executor: bool,
    ) -> pb::TaskStatus {
        self.run_in_executor(link, task, launch_executor);
        self.expect(link, TaskRunning)
    }

    pub(crate) fn run_group(&self, link: &Link, tasks: Vec<pb::TaskInfo>) {
        self.run_in_group(link, tasks, true);
    }

    fn run_in_group(&self, link: &Link, tasks: Vec<pb::TaskInfo>, launch_executor: bool) {
        self.send(
            link,
            ToAgent::RunTaskGroup(wire::RunTaskGroup {
                framework: framework(),
                executor: pb::ExecutorInfo {
                    r#type: Some(pb::executor_info::Type::Default.into()),
                    executor_id: executor_id(),
                    framework_id: Some(framework_id()),
                    resources: vec![scalar("cpus", 0.1), scalar("mem", 32.0)],
                    ..pb::ExecutorInfo::default()
                },
                task_group: pb::TaskGroupInfo { tasks },
                launch_executor,
                resource_version_uuid: None,
                accepted_time: None,
            }),
        );
    }

    /// The next frame that is not a pong, acknowledged if it is an update.
    fn frame(&self, link: &mut Link) -> FromAgent {
        loop {
            match self.next(link) {
                FromAgent::Pong(_) => {}
                FromAgent::StatusUpdate(update) => {
                    self.acknowledge(link, &update.status);
                    return FromAgent::StatusUpdate(update);
                }
                other => return other,
            }
        }
    }

    /// The next update, skipping other frames.
    pub(crate) fn update_besides(&self, link: &mut Link) -> pb::TaskStatus {
        loop {
            if let FromAgent::StatusUpdate(update) = self.frame(link) {
                return update.status;
            }
        }
    }

    pub(crate) fn sandbox(&self) -> PathBuf {
        self.sandbox_of(EXECUTOR).expect("a sandbox")
    }
}

fn an_executor_speaks_json() {
    converse("json");
}

fn an_executor_speaks_protobuf() {
    converse("protobuf");
}

fn converse(media: &str) {
    // The executor gets time to end by itself.
    let grace = "--executor_shutdown_grace_period=1mins";
    let (world, mut link) = World::registered(&[grace]);
    let running = world.running_in_executor(&mut link, custom("a", media), true);
    assert_eq!(running.source(), Source::Executor);
    // Another task of the same executor, in the same container.
    let second = world.running_in_executor(&mut link, custom("b", media), false);
    assert_eq!(second.task_id.value, "b");
    assert_eq!(container_of(&running), container_of(&second));

    let message = wire::ExecutorMessage {
        framework_id: framework_id(),
        executor_id: executor_id(),
        data: vec![0, 159, 146, 150],
    };
    world.send(&link, ToAgent::ExecutorMessage(message.clone()));
    assert_eq!(world.frame(&mut link), FromAgent::ExecutorMessage(message));

    world.kill(&link, "a", None);
    world.expect(&mut link, TaskKilled);
    world.send(
        &link,
        ToAgent::ShutdownExecutor(wire::ShutdownExecutor {
            framework_id: framework_id(),
            executor_id: executor_id(),
        }),
    );
    let (mut exited, mut ended) = (None, None);
    while exited.is_none() || ended.is_none() {
        match world.frame(&mut link) {
            FromAgent::ExecutorExited(told) => exited = Some(told),
            FromAgent::StatusUpdate(update) => ended = Some(update.status),
            other => panic!("{other:?}"),
        }
    }
    // The executor ended successfully, and its other task with it.
    assert_eq!(exited.expect("told").status, Some(0));
    let ended = ended.expect("told");
    let found = (ended.task_id.value.as_str(), ended.state());
    assert_eq!(found, ("b", TaskFailed));
    assert_eq!(ended.reason(), Reason::ExecutorTerminated);
    let stdout = std::fs::read_to_string(world.sandbox().join("stdout")).expect("its output");
    assert!(stdout.contains("shut down"), "{stdout}");
    wait_for("the executor to be retired", || {
        let state = world.get_json("/state");
        state["frameworks"].as_array()?.is_empty().then_some(())
    });
}

/// Regression: the end of one task of an executor ended its others, since the group for the new isolator's limit was
/// missing.
fn executor_resizes_after_isolator_is_added() {
    let timeout = "--executor_reregistration_timeout=15secs";
    let (mut world, mut link) = World::registered(&[timeout, &fixed_port(), ISOLATION]);
    for (task, is_first) in [("a", true), ("b", false)] {
        world.running_in_executor(&mut link, custom(task, "json"), is_first);
    }
    let mut link = with_another_isolator(&mut world);
    wait_for("the executor to subscribe again", || {
        let stdout = std::fs::read_to_string(world.sandbox().join("stdout")).ok()?;
        (stdout.matches("Subscribed").count() > 1).then_some(())
    });
    world.kill(&link, "a", None);
    world.expect(&mut link, TaskKilled);
    let third = world.running_in_executor(&mut link, custom("c", "json"), false);
    assert_eq!(third.task_id.value, "c");
    assert!(
        !world.log().contains("could not be resized") && !world.log().contains("failed to resize"),
        "{}",
        world.log()
    );
}

fn executor_survives_agent_restart() {
    let timeout = "--executor_reregistration_timeout=15secs";
    let (mut world, mut link) = World::registered(&[timeout, &fixed_port()]);
    world.running_in_executor(&mut link, custom("a", "json"), true);
    world.signal_agent(Signal::KILL);
    let (mut link, told) = world.start_again();
    assert_eq!(told.executors.len(), 1);
    assert_eq!(told.executors[0].executor_id, executor_id());
    assert_eq!(told.tasks.len(), 1);
    assert_eq!(tasks_of(&told)[0].executor_id, Some(executor_id()));
    world.kill(&link, "a", None);
    world.expect(&mut link, TaskKilled);
}

fn executor_calls_are_validated_in_order() {
    let (world, _link) = World::registered(&[]);
    let url = world.url("/api/v1/executor");
    let post = |content_type: Option<&str>, body: &str| {
        let header = content_type.map(|value| ("content-type", value));
        let answer = http::post(&url, header.as_slice(), body.as_bytes());
        (answer.status, answer.text())
    };
    let json = Some("application/json");
    let ids = json!({"executor_id": {"value": "e"}, "framework_id": {"value": "f"}});
    let call = |kind: &str, extra: serde_json::Value| {
        let mut call = ids.clone();
        call["type"] = kind.into();
        for (key, value) in extra.as_object().expect("an object") {
            call[key] = value.clone();
        }
        call.to_string()
    };
    assert_eq!(world.get("/api/v1/executor").status, 405);
    assert_eq!(post(None, "{}").0, 400);
    assert_eq!(post(Some("text/plain"), "{}").0, 415);
    assert_eq!(post(json, "{").0, 400);
    let call_of = |kind: &str| call(kind, json!({}));
    for (body, missing) in [
        (ids.to_string(), "type"),
        (call_of("SUBSCRIBE"), "subscribe"),
        (call_of("UPDATE"), "update"),
        (call_of("MESSAGE"), "message"),
    ] {
        let reason = format!("Expecting '{missing}' to be present");
        let expected = format!("Failed to validate Executor::Call: {reason}");
        assert_eq!(post(json, &body), (400, expected));
    }
    let status = |changes: serde_json::Value| {
        let mut status = json!({
            "task_id": {"value": "t"}, "state": "TASK_RUNNING", "source": "SOURCE_EXECUTOR",
            "uuid": "AAAAAAAAAAAAAAAAAAAAAA==",
        });
        for (key, value) in changes.as_object().expect("an object") {
            status[key] = value.clone();
        }
        call("UPDATE", json!({"update": {"status": status}}))
    };
    let other = json!({"value": "x"});
    for (changes, message) in [
        (json!({"uuid": null}), "Expecting 'uuid' to be present"),
        (json!({"uuid": "AAAA"}), "Not a valid UUID"),
        (json!({"source": "SOURCE_MASTER"}), "invalid source"),
        (json!({"state": "TASK_STAGING"}), "Received TASK_STAGING"),
        (json!({ "executor_id": other }), "does not match"),
    ] {
        let (code, text) = post(json, &status(changes));
        assert_eq!(code, 400, "{text}");
        assert!(text.contains(message), "{text} lacks {message}");
    }
    assert_eq!(post(json, "{\"a\": 1}").0, 400);
    let subscribe = call("SUBSCRIBE", json!({"subscribe": {}}));
    let headers = [
        ("content-type", "application/json"),
        ("accept", "text/plain"),
    ];
    let refused = http::post(&url, &headers, subscribe.as_bytes());
    assert_eq!(refused.status, 406);
    let (code, text) = post(json, &subscribe);
    assert_eq!((code, text.as_str()), (400, "Framework cannot be found"));
    assert_eq!(post(json, &call_of("HEARTBEAT")).0, 202);
}

fn group_shares_and_ends_with_executor() {
    let (world, mut link) = World::registered(&[]);
    let first = shell("a", "echo one > made; sleep 0.1; pwd");
    // The file exists before its line, hence `grep`.
    let text = "until grep one ../../tasks/a/made; do sleep 0.02; done";
    let second = shell("b", text);
    world.run_group(&link, vec![first, second]);
    let mut states = std::collections::BTreeMap::<String, Vec<pb::TaskState>>::new();
    let mut containers = Vec::new();
    let mut exited = false;
    while !exited || states.values().map(Vec::len).sum::<usize>() < 6 {
        match world.frame(&mut link) {
            FromAgent::StatusUpdate(update) => {
                let status = update.status;
                let told = states.entry(status.task_id.value.clone()).or_default();
                told.push(status.state());
                let container = status.container_status.and_then(|one| one.container_id);
                containers.extend(container);
            }
            FromAgent::ExecutorExited(_) => exited = true,
            other => panic!("{other:?}"),
        }
    }
    for (task, told) in &states {
        assert_eq!(*told, [TaskStarting, TaskRunning, TaskFinished], "{task}");
    }
    let outer = containers[0].parent.clone().expect("a parent").value;
    for container in &containers {
        assert_eq!(container.parent.as_ref().expect("a parent").value, outer);
    }
    let sandbox = world.sandbox();
    let read = |path: &str| std::fs::read_to_string(sandbox.join(path)).unwrap_or_default();
    assert_eq!(read("tasks/b/stdout"), "one\n");
    let own = std::fs::canonicalize(sandbox.join("tasks/a")).expect("a folder");
    assert_eq!(read("tasks/a/stdout").trim(), own.display().to_string());
    wait_for("the groups to be gone", || {
        groups_named(&outer).is_empty().then_some(())
    });
}

fn group_survives_agent_restart() {
    let (mut world, mut link) = World::registered(&[]);
    let waits = shell("a", "until test -e go; do sleep 0.02; done; exit 0");
    world.run_group(&link, vec![waits, shell("b", "exec sleep 1000")]);
    for _ in 0..4 {
        world.update(&mut link);
    }
    world.signal_agent(Signal::KILL);
    // A task ends while no agent is running.
    std::fs::write(world.sandbox().join("tasks/a/go"), "").expect("written");
    let (mut link, _) = world.start_again();
    world.expect_of(&mut link, "a", TaskFinished);
    world.kill(&link, "b", None);
    world.expect_of(&mut link, "b", TaskKilled);
}

/// Regression: nothing could be launched inside it any more, including sessions and checks.
fn group_grows_after_isolator_is_added() {
    let (mut world, mut link) = World::registered(&[ISOLATION]);
    world.run_group(&link, vec![shell("a", "exec sleep 1000")]);
    for state in [TaskStarting, TaskRunning] {
        world.expect_of(&mut link, "a", state);
    }
    let mut link = with_another_isolator(&mut world);
    world.run_in_group(&link, vec![shell("b", "exit 0")], false);
    for state in [TaskStarting, TaskRunning, TaskFinished] {
        world.expect_of(&mut link, "b", state);
    }
    world.kill(&link, "a", None);
    world.expect_of(&mut link, "a", TaskKilled);
}

const ISOLATION: &str = "--isolation=cgroups/cpu,cgroups/mem";

/// Restarts the agent with one isolator more than [`ISOLATION`].
fn with_another_isolator(world: &mut World) -> Link {
    world.signal_agent(Signal::KILL);
    for flag in &mut world.flags {
        if flag == ISOLATION {
            flag.push_str(",cgroups/pids");
        }
    }
    world.start_again().0
}

fn reused_id_in_group_gets_folder() {
    let (world, mut link) = World::registered(&[]);
    let first = shell("a", "echo first");
    world.run_group(&link, vec![first, shell("b", "exec sleep 1000")]);
    let mut ends = 0;
    while ends < 2 {
        let status = world.update_besides(&mut link);
        if meseta_agent::core::is_terminal(status.state) {
            assert_eq!(status.state(), TaskFinished, "{status:?}");
            ends += 1;
            if ends == 1 {
                world.run_in_group(&link, vec![shell("a", "echo second")], false);
            }
        }
    }
    let newest = world.sandbox().join("tasks/a/stdout");
    assert_eq!(std::fs::read_to_string(newest).expect("read"), "second\n");
}

/// The agent is stopped for longer than the registration timeout of executors, while an executor subscribes.
fn subscription_during_agent_pause_is_heard() {
    let (world, mut link) = World::registered(&["--executor_registration_timeout=10secs"]);
    let mut task = custom("t", "json");
    let command = command_of(&mut task);
    let value = command.value.take().expect("a program");
    command.value = Some(format!(
        "touch began; until test -e go; do sleep 0.02; done; {value}"
    ));
    world.run_in_executor(&link, task, true);
    let began = wait_for("the executor", || {
        let path = world.sandbox_of(EXECUTOR)?.join("began");
        path.exists().then_some(path)
    });
    world.send_signal(Signal::STOP);
    std::fs::write(began.with_file_name("go"), "").expect("written");
    let resumes = std::time::Instant::now() + std::time::Duration::from_secs(12);
    wait_for("every deadline to pass", || {
        (std::time::Instant::now() >= resumes).then_some(())
    });
    world.send_signal(Signal::CONT);
    world.expect(&mut link, TaskRunning);
    assert!(world.log().contains("process was paused"));
}
