//! Command tasks, from launch to the end.

use std::time::{Duration, Instant};

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::TaskState::{
    TaskFailed, TaskFinished, TaskKilled, TaskRunning, TaskStarting,
};
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use serde_json::json;

use crate::Test;
use crate::harness::{
    FRAMEWORK, World, by, command_of, container_of, groups_named, patience, scalar, shell,
    variable, wait_for, with_uri,
};

pub(crate) const TESTS: &[Test] = tests![
    task_runs_and_output_is_readable,
    stubborn_task_is_killed_after_grace,
    task_sees_own_and_operators_environment,
    root(task_of_unknown_user_fails),
    small_limits_work_invalid_are_refused,
    fetch_stays_within_enforced_disk,
];

fn sandbox_path(task: &str, file: &str) -> String {
    format!("/frameworks/{FRAMEWORK}/executors/{task}/runs/latest/{file}")
}

/// The output of a task, read through the API.
fn stdout(world: &World, task: &str) -> String {
    let path = sandbox_path(task, "stdout");
    let read = world.get_json(&format!("/files/read?path={path}&offset=0"));
    read["data"].as_str().expect("text").to_owned()
}

fn task_runs_and_output_is_readable() {
    let (world, mut link) = World::registered(&[]);
    let text = "echo hello; cat /proc/self/cgroup; echo $$; sleep 0.1";
    world.run(&link, shell("t1", text));
    let starting = world.expect(&mut link, TaskStarting);
    assert_eq!(starting.source(), Source::Executor);
    assert_eq!(starting.executor_id.expect("an id").value, "t1");
    assert!(starting.container_status.is_some());
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskRunning, TaskFinished]);
    assert_eq!(last.message(), "Command exited with status 0");
    let container = container_of(&last);
    assert_eq!(groups_named(&container), Vec::<std::path::PathBuf>::new());

    let text = stdout(&world, "t1");
    assert!(text.starts_with("hello\n"), "{text}");
    if rustix::process::geteuid().is_root() {
        // On v2 alone the task sees only its own groups.
        let v2_alone = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let own = if v2_alone {
            "0::/\n"
        } else {
            container.as_str()
        };
        assert!(text.contains(own), "in its own group: {text}");
    }
    let path = sandbox_path("t1", "stdout");
    let reply = world.get(&format!("/files/read?path={path}&offset=-5"));
    let refused = (400, "Negative offset provided: -5.\n");
    assert_eq!((reply.status, &*reply.text()), refused);
    let reply = world.call(&json!({
        "type": "READ_FILE",
        "read_file": {"path": path, "offset": 0, "length": 5},
    }));
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.json()["read_file"]["data"], "aGVsbG8=");
    let folder = sandbox_path("t1", "");
    let listed = world.get_json(&format!("/slave(1)/files/browse?path={folder}"));
    assert_eq!(listed.as_array().map(Vec::len), Some(2), "{listed}");
    // Once the agent has read the acknowledgement of the last update.
    let task = wait_for("the framework to be retired", || {
        let state = world.get_json("/state");
        let completed = &state["completed_frameworks"][0]["completed_executors"][0];
        let task = completed["completed_tasks"].get(0)?;
        Some(task.clone())
    });
    assert_eq!(task["state"], "TASK_FINISHED", "{task}");
}

fn stubborn_task_is_killed_after_grace() {
    let (world, mut link) = World::registered(&[]);
    let text = "trap '' TERM; touch ready; while :; do sleep 0.1; done";
    world.running(&mut link, shell("deaf", text));
    wait_for("the trap", || {
        let listed = world.get(&format!("/files/browse?path={}", sandbox_path("deaf", "")));
        listed.text().contains("/ready").then_some(())
    });
    let begun = Instant::now();
    // Longer than the default grace period.
    let grace = Duration::from_secs(4);
    world.kill(&link, "deaf", Some(grace));
    let (states, last) = world.until_terminal(&mut link);
    let took = begun.elapsed();
    assert_eq!(states, [TaskKilled]);
    assert!(took >= grace && took < grace + patience() / 15, "{took:?}");
    assert!(last.message().contains("signal Killed"));
}

/// The recorded environment is compared by name; these are the other variables.
fn task_sees_own_and_operators_environment() {
    let (world, mut link) =
        World::registered(&["--executor_environment_variables={\"SITE\":\"here\"}"]);
    let mut task = shell("env", "env");
    command_of(&mut task).environment = Some(variable("OWN", "mine"));
    world.run_to(&mut link, task, TaskFinished);
    let text = stdout(&world, "env");
    for line in [
        "OWN=mine\n",
        "SITE=here\n",
        "MESOS_EXECUTOR_SHUTDOWN_GRACE_PERIOD=5secs\n",
        "MESOS_RECOVERY_TIMEOUT=15mins\n",
        // In any case: executors must stay when the agent restarts.
        "MESOS_CHECKPOINT=1\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

fn task_of_unknown_user_fails() {
    let (world, mut link) = World::registered(&[]);
    world.run(&link, by("no-such-user", shell("who", "true")));
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskFailed]);
    assert_eq!(last.reason(), Reason::ContainerLaunchFailed);
    let message = last.message();
    assert!(
        message.contains("no such user: \"no-such-user\""),
        "{message}"
    );
}

/// Regression: with a limit of a few descriptors the launch could not open its remaining files.
fn small_limits_work_invalid_are_refused() {
    let (world, mut link) = World::registered(&[]);
    let limited = |id: &str, soft: u64, hard: u64, hostname: Option<String>| {
        let text = format!("[ $(ulimit -Sn)/$(ulimit -Hn) = {soft}/{hard} ]");
        let mut task = shell(id, &text);
        let limit = pb::r_limit_info::RLimit {
            r#type: Some(pb::r_limit_info::r_limit::Type::RlmtNofile.into()),
            soft: Some(soft),
            hard: Some(hard),
        };
        task.container = Some(Box::new(pb::ContainerInfo {
            r#type: pb::container_info::Type::Mesos.into(),
            hostname,
            rlimit_info: Some(pb::RLimitInfo {
                rlimits: vec![limit],
            }),
            ..pb::ContainerInfo::default()
        }));
        task
    };
    for (id, soft, hard) in [("few", 10, 20), ("some", 10, 2_000), ("many", 2_000, 4_000)] {
        world.run_to(&mut link, limited(id, soft, hard, None), TaskFinished);
    }
    let above = world.run_refused(&mut link, limited("above", 30, 20, None));
    let expected = "RLMT_NOFILE has the soft limit 30, which exceeds the hard limit 20";
    assert!(above.contains(expected), "{above}");
    let name = Some("n".repeat(70));
    let long = limited("long", 10, 20, name);
    if !rustix::process::geteuid().is_root() {
        // The container of an ordinary user has no host name of its own.
        world.run_to(&mut link, long, TaskFinished);
        return;
    }
    let refused = world.run_refused(&mut link, long);
    assert!(
        refused.contains("its host name has 70 bytes, more than 64"),
        "{refused}"
    );
}

/// Regression: the fetch filled the node's disk before the first inspection of the sandbox.
fn fetch_stays_within_enforced_disk() {
    let (world, mut link) = World::registered(&["--enforce_container_disk_quota"]);
    let file = world.dir.path().join("large");
    std::fs::write(&file, vec![0; 3 << 20]).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(&file, mode).expect("readable");
    let fetching = |id: &str, disk: f64| {
        let mut task = with_uri(shell(id, "true"), file.display().to_string(), false);
        task.resources.push(scalar("disk", disk));
        task
    };
    let refused = world.run_refused(&mut link, fetching("small", 2.0));
    let expected = "the fetched files exceed the disk of their container, 2097152 bytes (--enforce_container_disk_quota)";
    assert!(refused.contains(expected), "{refused}");
    world.run_to(&mut link, fetching("enough", 4.0), TaskFinished);
}
