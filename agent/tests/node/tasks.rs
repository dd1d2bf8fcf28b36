//! Command tasks, from launch to the end.

use std::time::{Duration, Instant};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskFailed, TaskFinished, TaskKilled, TaskRunning, TaskStarting,
};
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use serde_json::json;

use crate::harness::{FRAMEWORK, World, groups_named, patience, shell, wait_for};

pub(crate) const TESTS: &[(&str, bool, fn())] = &[
    ("a_task_runs_and_its_output_can_be_read", false, output),
    ("exit_codes_are_told", false, exit_codes),
    (
        "a_task_that_ignores_sigterm_is_gone_after_the_grace",
        false,
        stubborn,
    ),
    (
        "memory_over_the_limit_is_told_with_the_numbers",
        true,
        out_of_memory,
    ),
    (
        "a_task_sees_the_environment_of_mesos_and_nothing_else",
        false,
        environment,
    ),
    (
        "a_task_of_an_unknown_user_fails_with_the_cause",
        true,
        unknown_user,
    ),
    (
        "usage_is_shown_while_a_container_runs_and_not_after",
        true,
        usage,
    ),
];

fn sandbox_path(task: &str, file: &str) -> String {
    format!("/frameworks/{FRAMEWORK}/executors/{task}/runs/latest/{file}")
}

fn output() {
    let (world, mut link) = World::registered(&[]);
    world.run(
        &link,
        shell(
            "t1",
            "echo hello; cat /proc/self/cgroup; echo $$; sleep 0.1",
        ),
    );
    let starting = world.update(&mut link);
    assert_eq!(starting.state(), TaskStarting);
    assert_eq!(starting.source(), Source::Executor);
    assert_eq!(
        starting.executor_id.as_ref().map(|id| id.value.as_str()),
        Some("t1")
    );
    assert!(starting.container_status.is_some());
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskRunning, TaskFinished]);
    assert_eq!(
        last.message.as_deref(),
        Some("Command exited with status 0")
    );
    let container = last
        .container_status
        .and_then(|status| status.container_id)
        .expect("a container")
        .value;
    assert_eq!(groups_named(&container), Vec::<std::path::PathBuf>::new());

    let read = world.get_json(&format!(
        "/files/read?path={}&offset=0",
        sandbox_path("t1", "stdout")
    ));
    let text = read["data"].as_str().expect("text");
    assert!(text.starts_with("hello\n"), "{text}");
    if rustix::process::geteuid().is_root() {
        // On v2 alone its own groups are all that it sees.
        let v2_alone = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let own = if v2_alone {
            "0::/\n"
        } else {
            container.as_str()
        };
        assert!(text.contains(own), "in its own group: {text}");
    }
    let reply = world.call(&json!({
        "type": "READ_FILE",
        "read_file": {"path": sandbox_path("t1", "stdout"), "offset": 0, "length": 5},
    }));
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(reply["read_file"]["data"], "aGVsbG8=");
    let listed = world.get_json(&format!(
        "/slave(1)/files/browse?path={}",
        sandbox_path("t1", "")
    ));
    let names: Vec<_> = listed.as_array().expect("a list").iter().collect();
    assert_eq!(names.len(), 2, "{listed}");
    let state = world.get_json("/state");
    let completed = &state["completed_frameworks"][0]["completed_executors"][0];
    assert_eq!(
        completed["completed_tasks"][0]["state"], "TASK_FINISHED",
        "{state}"
    );
}

fn exit_codes() {
    let (world, mut link) = World::registered(&[]);
    world.run(&link, shell("three", "exit 3"));
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskFailed);
    assert_eq!(
        last.message.as_deref(),
        Some("Command exited with status 3")
    );
    world.run(&link, shell("signal", "kill -9 $$"));
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskFailed);
    let message = last.message.unwrap_or_default();
    assert!(
        message.starts_with("Command terminated with signal Killed"),
        "{message}"
    );
}

fn stubborn() {
    let (world, mut link) = World::registered(&[]);
    world.run(
        &link,
        shell(
            "deaf",
            "trap '' TERM; touch ready; while :; do sleep 0.1; done",
        ),
    );
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    assert_eq!(world.update(&mut link).state(), TaskRunning);
    wait_for("the trap", || {
        let listed = world.get(&format!("/files/browse?path={}", sandbox_path("deaf", "")));
        listed.text().contains("/ready").then_some(())
    });
    let begun = Instant::now();
    world.kill(&link, "deaf", Some(Duration::from_secs(1)));
    let (states, last) = world.until_terminal(&mut link);
    let took = begun.elapsed();
    assert_eq!(states, [TaskKilled]);
    assert!(took >= Duration::from_secs(1), "{took:?}");
    assert!(took < Duration::from_secs(1) + patience() / 15, "{took:?}");
    assert!(last.message.unwrap_or_default().contains("signal Killed"));
}

fn out_of_memory() {
    let (world, mut link) = World::registered(&[]);
    // Doubles a text until 200 MB are touched.
    let hungry = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}";
    world.run(&link, shell("hungry", hungry));
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskFailed);
    assert_eq!(last.reason(), Reason::ContainerLimitationMemory, "{last:?}");
    let message = last.message.clone().unwrap_or_default();
    assert!(
        message.starts_with("Memory limit exceeded: Requested: 64"),
        "{message}"
    );
    let limited = last.limitation.expect("what was limited").resources;
    assert_eq!(limited[0].name, "mem");
    assert!(limited[0].scalar.expect("an amount").value >= 60.0);
}

fn environment() {
    let (world, mut link) =
        World::registered(&["--executor_environment_variables={\"SITE\":\"here\"}"]);
    let mut task = shell("env", "env");
    if let Some(command) = &mut task.command {
        command.environment = Some(pb::Environment {
            variables: vec![pb::environment::Variable {
                name: "OWN".to_owned(),
                value: Some("mine".to_owned()),
                ..pb::environment::Variable::default()
            }],
        });
    }
    world.run(&link, task);
    let (_, last) = world.until_terminal(&mut link);
    assert_eq!(last.state(), TaskFinished, "{last:?}");
    let read = world.get_json(&format!(
        "/files/read?path={}&offset=0",
        sandbox_path("env", "stdout")
    ));
    let text = read["data"].as_str().expect("text").to_owned();
    let mut names: Vec<_> = text
        .lines()
        .filter_map(|line| line.split('=').next())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "LIBPROCESS_IP",
            "LIBPROCESS_PORT",
            "MESOS_AGENT_ENDPOINT",
            "MESOS_ALLOCATION_ROLE",
            "MESOS_CHECKPOINT",
            "MESOS_DIRECTORY",
            "MESOS_EXECUTOR_ID",
            "MESOS_EXECUTOR_SHUTDOWN_GRACE_PERIOD",
            "MESOS_FRAMEWORK_ID",
            "MESOS_HTTP_COMMAND_EXECUTOR",
            "MESOS_RECOVERY_TIMEOUT",
            "MESOS_SANDBOX",
            "MESOS_SLAVE_ID",
            "MESOS_SLAVE_PID",
            "MESOS_SUBSCRIPTION_BACKOFF_MAX",
            "OWN",
            "PATH",
            "PWD",
            "SITE",
        ],
        "{text}"
    );
    assert!(
        text.contains("MESOS_EXECUTOR_SHUTDOWN_GRACE_PERIOD=5secs\n"),
        "{text}"
    );
    assert!(text.contains("MESOS_RECOVERY_TIMEOUT=15mins\n"), "{text}");
    // Whatever the framework asked for: its executors are to stay when the agent restarts.
    assert!(text.contains("MESOS_CHECKPOINT=1\n"), "{text}");
}

fn unknown_user() {
    let (world, mut link) = World::registered(&[]);
    let mut task = shell("who", "true");
    if let Some(command) = &mut task.command {
        command.user = Some("no-such-user".to_owned());
    }
    world.run(&link, task);
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskFailed]);
    assert_eq!(last.reason(), Reason::ContainerLaunchFailed);
    let message = last.message.unwrap_or_default();
    assert!(
        message.contains("no such user: \"no-such-user\""),
        "{message}"
    );
}

fn usage() {
    let (world, mut link) = World::registered(&["--monitor_interval=50ms"]);
    world.run(&link, shell("busy", "while :; do :; done"));
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    assert_eq!(world.update(&mut link).state(), TaskRunning);
    let label = "executor_id=\"busy\"";
    let scraped = wait_for("the container's series", || {
        let text = world.get("/metrics").text();
        let needed = "meseta_agent_container_memory_limit_bytes{";
        (text.contains(label) && text.contains(needed)).then_some(text)
    });
    assert!(
        scraped.contains("meseta_agent_container_cpu_user_seconds_total{"),
        "{scraped}"
    );
    let statistics = world.get_json("/monitor/statistics");
    assert_eq!(
        statistics[0]["statistics"]["cpus_soft_limit"], 0.5,
        "{statistics}"
    );
    assert_eq!(
        statistics[0]["statistics"]["mem_limit_bytes"],
        64 * 1024 * 1024
    );
    world.kill(&link, "busy", Some(Duration::ZERO));
    let (states, _) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskKilled]);
    wait_for("the series to go", || {
        (!world.get("/metrics").text().contains(label)).then_some(())
    });
}
