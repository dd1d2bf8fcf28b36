//! Failures: the agent dies, the master goes away, flags are wrong. Nothing is lost, and the agent reports the error.

use std::process::{Command, Stdio};
use std::time::Duration;

use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::mesos::v1::TaskState::{TaskFinished, TaskKilled, TaskRunning, TaskStarting};
use meseta_tests::kernel;
use rustix::process::Signal;

use crate::Test;
use crate::harness::{World, container_of, groups_named, pid_of, shell, tasks_of, wait_for};

pub(crate) const TESTS: &[Test] = tests![
    task_survives_wiped_runtime_directory,
    launch_restores_removed_runtime_directory,
    the_agent_stops_without_touching_tasks,
    leaving_agent_ends_tasks_and_unregisters,
    root(agent_ends_its_tasks_on_request),
    a_lost_master_is_found_again,
    agents_cannot_share_work_directory,
    agent_without_launcher_ends_with_reason,
    wrong_flags_are_refused_with_remedy,
];

fn task_survives_wiped_runtime_directory() {
    let (mut world, mut link) = World::registered(&[]);
    world.running(&mut link, shell("stays", "sleep 1000"));
    world.signal_agent(Signal::KILL);
    std::fs::remove_dir_all(world.dir.path().join("run")).expect("it is wiped");
    let (mut link, told) = world.start_again();
    assert_eq!(tasks_of(&told)[0].state(), TaskRunning);
    world.kill(&link, "stays", Some(Duration::ZERO));
    assert_eq!(world.until_terminal(&mut link).0, [TaskKilled]);
}

/// Regression: every launch failed for ever, while the agent's resources were still offered.
fn launch_restores_removed_runtime_directory() {
    let (mut world, mut link) = World::registered(&[]);
    world.running(&mut link, shell("stays", "sleep 1000"));
    let run = world.dir.path().join("run");
    std::fs::remove_dir_all(&run).expect("it is removed");
    world.run_to(&mut link, shell("next", "exit 0"), TaskFinished);
    assert!(world.log().contains("the runtime folder was removed"));
    // An agent on the new folder would wait for this launcher.
    let instance = std::fs::read_dir(&run).expect("it is there").next();
    let instance = instance.expect("one").expect("readable").path();
    assert!(instance.join("launcher.lock").exists());
    assert!(instance.join("agent.lock").exists());
    // No record of the earlier containers is left, and they continue all the same.
    world.signal_agent(Signal::KILL);
    let (mut link, told) = world.start_again();
    let told = tasks_of(&told);
    let stays = told.iter().find(|task| task.task_id.value == "stays");
    assert_eq!(stays.expect("it is there").state(), TaskRunning);
    world.end(&mut link, "stays");
}

fn leaving_agent_ends_tasks_and_unregisters() {
    let (mut world, mut link) = World::registered(&[]);
    let pid = pid_of(&world.running(&mut link, shell("goes", "sleep 1000")));
    world.send_signal(Signal::USR1);
    assert_eq!(world.until_terminal(&mut link).0, [TaskKilled]);
    let last = world.next(&mut link);
    assert!(matches!(last, FromAgent::Unregister(_)), "{last:?}");
    // A master does the same.
    drop(link);
    let status = world.wait_for_agent();
    assert!(status.success(), "{status}");
    assert!(kernel::start_time(pid).is_none());
    assert!(!world.log().contains("has not confirmed"));
}

fn the_agent_stops_without_touching_tasks() {
    let (mut world, mut link) = World::registered(&[]);
    let pid = pid_of(&world.running(&mut link, shell("stays", "sleep 1000")));
    let status = world.signal_agent(Signal::TERM);
    assert!(status.success(), "{status}");
    assert!(kernel::start_time(pid).is_some());
    let (mut link, _) = world.start_again();
    world.kill(&link, "stays", None);
    assert_eq!(world.until_terminal(&mut link).0, [TaskKilled]);
}

fn agent_ends_its_tasks_on_request() {
    let (mut world, mut link) = World::registered(&["--shutdown_tasks_on_exit"]);
    let container = container_of(&world.running(&mut link, shell("goes", "sleep 1000")));
    assert!(!groups_named(&container).is_empty());
    let status = world.signal_agent(Signal::TERM);
    assert!(status.success(), "{status}");
    assert!(groups_named(&container).is_empty());
}

fn a_lost_master_is_found_again() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(&link, shell("t", "while ! [ -e go ]; do sleep 0.02; done"));
    world.expect(&mut link, TaskStarting);
    let running = world.unacknowledged_update(&mut link);
    drop(link);
    let (mut link, told) = world.admit_again();
    assert_eq!(told.tasks.len(), 1);
    assert_eq!(world.update(&mut link).uuid, running.status.uuid);
    world.kill(&link, "t", Some(Duration::ZERO));
    assert_eq!(world.until_terminal(&mut link).0, [TaskKilled]);
}

/// Runs an agent that ends with an error at once. Returns the error message.
fn complaint(command: &mut Command) -> String {
    let ended = command.stderr(Stdio::piped()).output().expect("it runs");
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(!ended.status.success(), "{command:?}: {text}");
    text
}

fn agents_cannot_share_work_directory() {
    let (world, _link) = World::registered(&[]);
    let text = complaint(&mut world.command());
    let expected = "in use by another agent: give each agent its own --work_dir";
    assert!(text.contains(expected), "{text}");
}

/// The launcher starts in parallel to the registration; an agent without a launcher ends.
fn agent_without_launcher_ends_with_reason() {
    let (mut world, link) = World::registered(&[]);
    drop(link);
    let run = world.dir.path().join("run");
    let mut instances = std::fs::read_dir(&run).expect("it is there");
    let instance = instances.next().expect("one").expect("readable").path();
    let lock = instance.join("launcher.lock");
    wait_for("the first launcher", || lock.exists().then_some(()));
    world.signal_agent(Signal::KILL);
    std::fs::remove_file(&lock).expect("it is there");
    std::os::unix::fs::symlink("nowhere/launcher.lock", &lock).expect("made");
    let text = complaint(&mut world.command());
    for part in [
        "failed to start the launcher",
        "looking for an earlier launcher",
        "No such file or directory",
    ] {
        assert!(text.contains(part), "{text}");
    }
    std::fs::remove_file(&lock).expect("removed");
}

fn wrong_flags_are_refused_with_remedy() {
    let (world, _link) = World::registered(&[]);
    for (flag, expected) in [
        ("--resources=cpus", "--resources is invalid"),
        ("--resources=cpus:-1", "--resources is invalid"),
        ("--resources=cpus(a:1", "--resources is invalid"),
        (r#"--resources=[{"name":"cpus"}]"#, "--resources is invalid"),
        ("--resources=file:///no/such/file", "cannot be read"),
        ("--attributes=x", "--attributes is invalid"),
        (
            "--isolation=cgroups/cpuu",
            r#"unknown isolator "cgroups/cpuu"; known are"#,
        ),
        ("--default_role=a//b", "--default_role is invalid"),
        (
            r#"--executor_environment_variables={"A":1}"#,
            "not a JSON object of strings",
        ),
        ("--ip=0.0.0.0", "give --insecure"),
        ("--resource_estimator=slak", "did you mean \"slack\"?"),
        ("--qos_controller=lode", "did you mean \"load\"?"),
        (
            "--qos_controller=load",
            "give load_threshold_5min or load_threshold_15min",
        ),
        ("--modules_dir=/nonexistent", "--modules_dir"),
        (
            "--qos_correction_interval_min=-1secs",
            "qos_correction_interval_min",
        ),
        (
            "--oversubscribed_resources_interval=soon",
            "oversubscribed_resources_interval",
        ),
        ("--monitor_interval=0secs", "must be above 0"),
    ] {
        let text = complaint(world.command().arg(flag));
        assert!(text.contains(expected), "{flag}: {text}");
    }
    let pid = world.get_json("/state")["pid"].clone();
    let port = pid.as_str().and_then(|pid| pid.rsplit(':').next());
    let port = format!("--port={}", port.expect("a port"));
    let third = format!("--work_dir={}", world.dir.path().join("third").display());
    let own = "--work_dir=/tmp/x";
    let nowhere = "--master=127.0.0.1:1";
    for (flags, expected) in [
        (vec!["--master=nowhere", own], "is not host:port"),
        (
            vec![nowhere, "--work_dir=/proc/x"],
            "give a directory that this user can write",
        ),
        (vec!["--master=zk://a/b"], "ZooKeeper"),
        (vec![nowhere, &port, &third], "failed to listen on"),
    ] {
        let mut command = Command::new(std::env::current_exe().expect("our path"));
        let text = complaint(command.arg("agent").args(&flags));
        assert!(text.contains(expected), "{flags:?}: {text}");
    }
}
