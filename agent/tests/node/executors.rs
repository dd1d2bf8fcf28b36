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
use rustix::process::Signal;
use serde_json::json;

use crate::harness::{
    FRAMEWORK, Link, World, framework, framework_id, groups_named, scalar, shell, wait_for,
};

pub(crate) const TESTS: &[(&str, bool, fn())] = &[
    ("an_executor_speaks_json", false, || converse("json")),
    ("an_executor_speaks_protobuf", false, || {
        converse("protobuf")
    }),
    ("a_container_is_resized_as_tasks_come_and_go", true, resized),
    (
        "an_executor_lives_through_the_agents_restart",
        false,
        restart,
    ),
    (
        "calls_of_executors_are_checked_in_mesoss_order",
        false,
        codes,
    ),
    (
        "a_group_shares_its_executors_sandbox_and_ends_with_it",
        true,
        group,
    ),
    ("a_failed_task_takes_its_group_along", true, group_fails),
    (
        "a_group_lives_through_the_agents_restart",
        true,
        group_restart,
    ),
    (
        "an_id_used_again_in_a_living_group_has_a_folder_of_its_own",
        true,
        used_again,
    ),
    (
        "an_executor_that_subscribed_while_the_agent_stood_still_is_heard",
        false,
        stood_still,
    ),
];

const EXECUTOR: &str = "executor-1";

pub(crate) fn executor_id() -> pb::ExecutorId {
    pb::ExecutorId {
        value: EXECUTOR.to_owned(),
    }
}

pub(crate) fn custom(id: &str, media: &str) -> pb::TaskInfo {
    let program = std::env::current_exe().expect("our path");
    let variable = pb::environment::Variable {
        name: "MEDIA".to_owned(),
        value: Some(media.to_owned()),
        ..pb::environment::Variable::default()
    };
    pb::TaskInfo {
        command: None,
        executor: Some(Box::new(pb::ExecutorInfo {
            executor_id: executor_id(),
            framework_id: Some(framework_id()),
            command: Some(pb::CommandInfo {
                value: Some(format!("exec {} executor", program.display())),
                environment: Some(pb::Environment {
                    variables: vec![variable],
                }),
                ..pb::CommandInfo::default()
            }),
            resources: vec![scalar("cpus", 0.1), scalar("mem", 64.0)],
            ..pb::ExecutorInfo::default()
        })),
        ..shell(id, "")
    }
}

impl World {
    pub(crate) fn run_in_executor(&self, link: &Link, task: pb::TaskInfo, launch_executor: bool) {
        self.send(
            link,
            ToAgent::RunTask(wire::RunTask {
                framework: framework(),
                task,
                launch_executor,
                resource_version_uuid: None,
                accepted_time: None,
            }),
        );
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

    fn frame(&self, link: &mut Link) -> FromAgent {
        loop {
            match self.next(link) {
                FromAgent::Pong(_) => {}
                other => return other,
            }
        }
    }

    pub(crate) fn sandbox(&self) -> PathBuf {
        self.try_sandbox().expect("a sandbox")
    }

    fn try_sandbox(&self) -> Option<PathBuf> {
        let runs = self.work_dir().join(format!(
            "slaves/agent-S0/frameworks/{FRAMEWORK}/executors/{EXECUTOR}/runs/latest"
        ));
        std::fs::canonicalize(runs).ok()
    }
}

fn converse(media: &str) {
    let (world, mut link) = World::registered(&[]);
    world.run_in_executor(&link, custom("a", media), true);
    let running = world.update(&mut link);
    assert_eq!(running.state(), TaskRunning, "{}", world.log());
    assert_eq!(running.source(), Source::Executor);
    // Another task of the same executor, in the same container.
    world.run_in_executor(&link, custom("b", media), false);
    let second = world.update(&mut link);
    assert_eq!(
        (second.task_id.value.as_str(), second.state()),
        ("b", TaskRunning)
    );
    let container = |status: &pb::TaskStatus| {
        let status = status.container_status.clone().expect("a container");
        status.container_id.expect("an id").value
    };
    assert_eq!(container(&running), container(&second));

    let message = wire::ExecutorMessage {
        framework_id: framework_id(),
        executor_id: executor_id(),
        data: vec![0, 159, 146, 150],
    };
    world.send(&link, ToAgent::ExecutorMessage(message.clone()));
    assert_eq!(world.frame(&mut link), FromAgent::ExecutorMessage(message));

    world.kill(&link, "a", None);
    assert_eq!(world.update(&mut link).state(), TaskKilled);
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
            FromAgent::StatusUpdate(update) => {
                world.acknowledge(&link, &update.status);
                ended = Some(update.status);
            }
            other => panic!("{other:?}"),
        }
    }
    // The executor ended well, and its other task with it.
    assert_eq!(exited.expect("told").status, Some(0));
    let ended = ended.expect("told");
    assert_eq!(
        (ended.task_id.value.as_str(), ended.state()),
        ("b", TaskFailed)
    );
    assert_eq!(ended.reason(), Reason::ExecutorTerminated);
    let stdout = std::fs::read_to_string(world.sandbox().join("stdout")).expect("its output");
    assert!(stdout.contains("shut down"), "{stdout}");
    wait_for("the executor to be retired", || {
        let state = world.get_json("/state");
        state["frameworks"].as_array()?.is_empty().then_some(())
    });
}

/// Soft and hard limit on memory, in MB, as the kernel holds them.
fn memory_limits(container: &str) -> (u64, u64) {
    let groups = groups_named(container);
    let number = |files: [&str; 2]| {
        let paths = groups
            .iter()
            .flat_map(|group| files.map(|file| group.join(file)));
        let text = paths
            .into_iter()
            .find_map(|path| std::fs::read_to_string(path).ok());
        let text = text.expect("a memory group");
        text.trim().parse::<u64>().expect("a number") >> 20
    };
    let soft = number(["memory.soft_limit_in_bytes", "memory.low"]);
    (soft, number(["memory.limit_in_bytes", "memory.max"]))
}

/// It has a task's memory before the task is there, and gives it back before its end is told.
fn resized() {
    let (world, mut link) = World::registered(&[]);
    world.run_in_executor(&link, custom("a", "json"), true);
    let running = world.update(&mut link);
    let container = running
        .container_status
        .and_then(|status| status.container_id);
    let container = container.expect("a container").value;
    assert_eq!(memory_limits(&container), (128, 128));
    world.run_in_executor(&link, custom("b", "json"), false);
    world.update(&mut link);
    assert_eq!(memory_limits(&container), (192, 192));
    world.kill(&link, "b", None);
    assert_eq!(world.update(&mut link).state(), TaskKilled);
    wait_for("the memory is taken back", || {
        (memory_limits(&container) == (128, 128)).then_some(())
    });
    world.kill(&link, "a", None);
    assert_eq!(world.update(&mut link).state(), TaskKilled);
}

fn restart() {
    // The executor looks for the agent where it was.
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = free.local_addr().expect("an address").port();
    drop(free);
    let port = format!("--port={port}");
    let (mut world, mut link) =
        World::registered(&["--executor_reregistration_timeout=15secs", &port]);
    world.run_in_executor(&link, custom("a", "json"), true);
    assert_eq!(world.update(&mut link).state(), TaskRunning);
    world.signal_agent(Signal::KILL);
    world.start_agent();
    let (mut link, told) = world.admit_told();
    let FromAgent::Reregister(told) = told else {
        panic!("{told:?}");
    };
    assert_eq!(told.executors.len(), 1);
    assert_eq!(told.executors[0].executor_id, executor_id());
    assert_eq!(told.tasks.len(), 1);
    assert_eq!(told.tasks[0].executor_id, Some(executor_id()));
    world.kill(&link, "a", None);
    assert_eq!(world.update(&mut link).state(), TaskKilled);
}

fn codes() {
    let (world, _link) = World::registered(&[]);
    let url = world.url("/api/v1/executor");
    let post = |content_type: Option<&'static str>, body: &str| {
        let mut call = meseta_daemon::client::Call::post(&url).body(body.to_owned());
        if let Some(content_type) = content_type {
            let value = http::HeaderValue::from_static(content_type);
            call = call.header(http::header::CONTENT_TYPE, value);
        }
        let client = meseta_daemon::client::Client::default();
        let reply = world
            .runtime
            .block_on(client.request(call))
            .expect("an answer");
        (reply.status.as_u16(), reply.text())
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
    for (body, message) in [
        (ids.to_string(), "Expecting 'type' to be present"),
        (
            call("SUBSCRIBE", json!({})),
            "Expecting 'subscribe' to be present",
        ),
        (
            call("UPDATE", json!({})),
            "Expecting 'update' to be present",
        ),
        (
            call("MESSAGE", json!({})),
            "Expecting 'message' to be present",
        ),
    ] {
        let expected = format!("Failed to validate Executor::Call: {message}");
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
    for (body, message) in [
        (
            status(json!({"uuid": null})),
            "Expecting 'uuid' to be present",
        ),
        (status(json!({"uuid": "AAAA"})), "Not a valid UUID"),
        (status(json!({"source": "SOURCE_MASTER"})), "invalid source"),
        (
            status(json!({"state": "TASK_STAGING"})),
            "Received TASK_STAGING",
        ),
        (
            status(json!({"executor_id": {"value": "x"}})),
            "does not match",
        ),
    ] {
        let (code, text) = post(json, &body);
        assert_eq!(code, 400, "{text}");
        assert!(text.contains(message), "{text} lacks {message}");
    }
    assert_eq!(post(json, "{\"a\": 1}").0, 400);
    let subscribe = call("SUBSCRIBE", json!({"subscribe": {}}));
    let header = http::HeaderValue::from_static;
    let picky = meseta_daemon::client::Call::post(&url)
        .header(http::header::CONTENT_TYPE, header("application/json"))
        .header(http::header::ACCEPT, header("text/plain"))
        .body(subscribe.clone());
    let client = meseta_daemon::client::Client::default();
    let refused = world.runtime.block_on(client.request(picky));
    assert_eq!(refused.expect("an answer").status, 406);
    let (code, text) = post(json, &subscribe);
    assert_eq!((code, text.as_str()), (400, "Framework cannot be found"));
    assert_eq!(post(json, &call("HEARTBEAT", json!({}))).0, 202);
}

fn group() {
    let (world, mut link) = World::registered(&[]);
    let first = shell("a", "echo one > made; sleep 0.1; pwd");
    // `grep`: the file is there before its line is.
    let second = shell(
        "b",
        "until grep one ../../tasks/a/made; do sleep 0.02; done",
    );
    world.run_group(&link, vec![first, second]);
    let mut states = std::collections::BTreeMap::<String, Vec<pb::TaskState>>::new();
    let mut containers = Vec::new();
    let mut exited = false;
    while !exited || states.values().map(Vec::len).sum::<usize>() < 6 {
        match world.frame(&mut link) {
            FromAgent::StatusUpdate(update) => {
                world.acknowledge(&link, &update.status);
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

fn group_fails() {
    let (world, mut link) = World::registered(&[]);
    world.run_group(
        &link,
        vec![
            shell("a", "sleep 0.1; exit 3"),
            shell("b", "exec sleep 1000"),
        ],
    );
    let mut ends = std::collections::BTreeMap::new();
    while ends.len() < 2 {
        if let FromAgent::StatusUpdate(update) = world.frame(&mut link) {
            world.acknowledge(&link, &update.status);
            if meseta_agent::core::is_terminal(update.status.state) {
                ends.insert(update.status.task_id.value.clone(), update.status.state());
            }
        }
    }
    assert_eq!(ends["a"], TaskFailed);
    assert_eq!(ends["b"], TaskKilled);
}

fn group_restart() {
    let (mut world, mut link) = World::registered(&[]);
    world.run_group(
        &link,
        vec![
            shell("a", "until test -e go; do sleep 0.02; done; exit 0"),
            shell("b", "exec sleep 1000"),
        ],
    );
    for _ in 0..4 {
        world.update(&mut link);
    }
    world.signal_agent(Signal::KILL);
    // One of them ends while nobody looks.
    std::fs::write(world.sandbox().join("tasks/a/go"), "").expect("written");
    world.start_agent();
    let mut link = world.admit();
    let ended = world.update(&mut link);
    assert_eq!(
        (ended.task_id.value.as_str(), ended.state()),
        ("a", TaskFinished)
    );
    world.kill(&link, "b", None);
    let killed = world.update(&mut link);
    assert_eq!(
        (killed.task_id.value.as_str(), killed.state()),
        ("b", TaskKilled)
    );
}

fn used_again() {
    let (world, mut link) = World::registered(&[]);
    world.run_group(
        &link,
        vec![shell("a", "echo first"), shell("b", "exec sleep 1000")],
    );
    let mut ends = 0;
    while ends < 2 {
        let FromAgent::StatusUpdate(update) = world.frame(&mut link) else {
            continue;
        };
        world.acknowledge(&link, &update.status);
        let status = update.status;
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

/// The agent is stopped for longer than executors may take to register, while one subscribes.
fn stood_still() {
    let (world, mut link) = World::registered(&["--executor_registration_timeout=5secs"]);
    let mut task = custom("t", "json");
    let executor = task.executor.as_mut().expect("an executor");
    let command = executor.command.as_mut().expect("a command");
    let value = command.value.take().expect("a program");
    command.value = Some(format!(
        "touch began; until test -e go; do sleep 0.02; done; {value}"
    ));
    world.run_in_executor(&link, task, true);
    let began = wait_for("the executor", || {
        let path = world.try_sandbox()?.join("began");
        path.exists().then_some(path)
    });
    world.stop_agent();
    std::fs::write(began.with_file_name("go"), "").expect("written");
    let resumes = std::time::Instant::now() + std::time::Duration::from_secs(7);
    wait_for("every deadline to pass", || {
        (std::time::Instant::now() >= resumes).then_some(())
    });
    world.continue_agent();
    let running = world.update(&mut link);
    assert_eq!(running.state(), TaskRunning, "{running:?}");
    assert!(
        world.log().contains("process was paused"),
        "{}",
        world.log()
    );
}
