//! The agent dies, the master goes away, flags are wrong: nothing is lost, and it says what is wrong.

use std::process::Stdio;
use std::time::Duration;

use meseta_proto::meseta::v1::agent_frame::Message as FromAgent;
use meseta_proto::mesos::v1::TaskState::{
    TaskFailed, TaskFinished, TaskKilled, TaskRunning, TaskStarting,
};
use meseta_proto::mesos::v1::task_status::Reason;
use rustix::process::Signal;

use crate::harness::{World, groups_named, shell, wait_for};

pub(crate) const TESTS: &[(&str, bool, fn())] = &[
    (
        "a_task_goes_on_when_the_agent_is_killed",
        false,
        killed_agent,
    ),
    (
        "an_exit_while_the_agent_was_down_is_told",
        false,
        exit_unseen,
    ),
    (
        "want_of_memory_while_the_agent_was_down_is_told_so",
        true,
        out_of_memory_unseen,
    ),
    (
        "a_task_goes_on_when_the_runtime_directory_was_wiped",
        false,
        wiped_runtime_dir,
    ),
    (
        "an_unacknowledged_update_survives_the_agent",
        false,
        unacknowledged,
    ),
    (
        "the_agent_stops_without_touching_tasks",
        false,
        graceful_stop,
    ),
    (
        "the_agent_takes_its_tasks_along_if_told_to",
        true,
        stop_with_tasks,
    ),
    ("a_lost_master_is_found_again", false, lost_master),
    (
        "two_agents_do_not_share_a_work_directory",
        false,
        one_work_dir,
    ),
    (
        "an_agent_without_a_launcher_ends_and_says_why",
        false,
        no_launcher,
    ),
    (
        "wrong_flags_are_refused_with_what_to_give",
        false,
        wrong_flags,
    ),
];

fn killed_agent() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(
        &link,
        shell("sleeper", "while ! [ -e go ]; do sleep 0.05; done; exit 0"),
    );
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    let running = world.update(&mut link);
    assert_eq!(running.state(), TaskRunning);
    let pid = running
        .container_status
        .and_then(|status| status.executor_pid)
        .expect("a pid");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives");
    let start = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split(' ').nth(20))
        .map(str::to_owned);

    world.signal_agent(Signal::KILL);
    world.start_agent();
    let (mut link, told) = world.admit_told();
    let FromAgent::Reregister(told) = told else {
        panic!("not a re-registration: {told:?}");
    };
    assert_eq!(told.tasks.len(), 1);
    assert_eq!(told.tasks[0].state(), TaskRunning);
    let again = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it lives on");
    assert_eq!(
        again
            .rsplit(')')
            .next()
            .and_then(|rest| rest.split(' ').nth(20))
            .map(str::to_owned),
        start
    );

    let state = world.get_json("/state");
    let directory = state["frameworks"][0]["executors"][0]["directory"]
        .as_str()
        .expect("a sandbox");
    std::fs::write(format!("{directory}/go"), "").expect("the word to go");
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskFinished], "{last:?}");
}

fn exit_unseen() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(
        &link,
        shell(
            "quick",
            "while ! [ -e go ]; do sleep 0.02; done; touch gone; exit 7",
        ),
    );
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    assert_eq!(world.update(&mut link).state(), TaskRunning);
    let state = world.get_json("/state");
    let directory = state["frameworks"][0]["executors"][0]["directory"]
        .as_str()
        .expect("a sandbox")
        .to_owned();
    world.signal_agent(Signal::KILL);
    std::fs::write(format!("{directory}/go"), "").expect("the word to go");
    wait_for("the task's end", || {
        std::fs::exists(format!("{directory}/gone"))
            .ok()
            .filter(|gone| *gone)
    });
    world.start_agent();
    let mut link = world.admit();
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskFailed]);
    assert_eq!(
        last.message.as_deref(),
        Some("Command exited with status 7")
    );
}

fn out_of_memory_unseen() {
    let (mut world, mut link) = World::registered(&[]);
    let hungry = "while ! [ -e go ]; do sleep 0.02; done; exec tail /dev/zero";
    world.run(&link, shell("hungry", hungry));
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    let running = world.update(&mut link);
    let pid = running
        .container_status
        .and_then(|status| status.executor_pid)
        .expect("a pid");
    let state = world.get_json("/state");
    let directory = state["frameworks"][0]["executors"][0]["directory"]
        .as_str()
        .expect("a sandbox")
        .to_owned();
    world.signal_agent(Signal::KILL);
    std::fs::write(format!("{directory}/go"), "").expect("the word to go");
    wait_for("the task's end", || {
        (!std::fs::exists(format!("/proc/{pid}")).unwrap_or(true)).then_some(())
    });
    world.start_agent();
    let mut link = world.admit();
    let (states, last) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskFailed]);
    assert_eq!(last.reason(), Reason::ContainerLimitationMemory, "{last:?}");
    let message = last.message.unwrap_or_default();
    assert!(
        message.starts_with("Memory limit exceeded: Requested: 64"),
        "{message}"
    );
}

fn wiped_runtime_dir() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(&link, shell("stays", "sleep 1000"));
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    assert_eq!(world.update(&mut link).state(), TaskRunning);
    world.signal_agent(Signal::KILL);
    std::fs::remove_dir_all(world.dir.path().join("run")).expect("it is wiped");
    world.start_agent();
    let (mut link, told) = world.admit_told();
    let FromAgent::Reregister(told) = told else {
        panic!("not a re-registration: {told:?}");
    };
    assert_eq!(told.tasks[0].state(), TaskRunning);
    world.kill(&link, "stays", Some(Duration::ZERO));
    let (states, _) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskKilled]);
}

fn unacknowledged() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(&link, shell("t", "exit 0"));
    let first = world.unacknowledged_update(&mut link);
    assert_eq!(first.status.state(), TaskStarting);
    world.signal_agent(Signal::KILL);
    world.start_agent();
    let mut link = world.admit();
    let again = world.update(&mut link);
    assert_eq!(again.uuid, first.status.uuid);
    let (states, _) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskRunning, TaskFinished]);
}

fn graceful_stop() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(&link, shell("stays", "sleep 1000"));
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    let running = world.update(&mut link);
    let pid = running
        .container_status
        .and_then(|status| status.executor_pid)
        .expect("a pid");
    let status = world.signal_agent(Signal::TERM);
    assert!(status.success(), "{status}\n{}", world.log());
    assert!(std::fs::exists(format!("/proc/{pid}")).unwrap_or_default());
    world.start_agent();
    let mut link = world.admit();
    world.kill(&link, "stays", None);
    let (states, _) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskKilled]);
}

fn stop_with_tasks() {
    let (mut world, mut link) = World::registered(&["--shutdown_tasks_on_exit"]);
    world.run(&link, shell("goes", "sleep 1000"));
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    let running = world.update(&mut link);
    let container = running
        .container_status
        .and_then(|status| status.container_id)
        .expect("a container");
    assert!(!groups_named(&container.value).is_empty());
    let status = world.signal_agent(Signal::TERM);
    assert!(status.success(), "{status}\n{}", world.log());
    assert!(groups_named(&container.value).is_empty());
}

fn lost_master() {
    let (mut world, mut link) = World::registered(&[]);
    world.run(&link, shell("t", "while ! [ -e go ]; do sleep 0.02; done"));
    assert_eq!(world.update(&mut link).state(), TaskStarting);
    let running = world.unacknowledged_update(&mut link);
    drop(link);
    let (mut link, told) = world.admit_told();
    assert!(matches!(told, FromAgent::Reregister(told) if told.tasks.len() == 1));
    let again = world.update(&mut link);
    assert_eq!(again.uuid, running.status.uuid);
    world.kill(&link, "t", Some(Duration::ZERO));
    let (states, _) = world.until_terminal(&mut link);
    assert_eq!(states, [TaskKilled]);
}

fn one_work_dir() {
    let (world, _link) = World::registered(&[]);
    let second = world
        .command()
        .stderr(Stdio::piped())
        .output()
        .expect("it runs");
    assert!(!second.status.success());
    let text = String::from_utf8_lossy(&second.stderr);
    assert!(
        text.contains("in use by another agent: give each its own --work_dir"),
        "{text}"
    );
}

/// The launcher starts beside the registration; an agent that cannot have one does not stay.
fn no_launcher() {
    let (mut world, link) = World::registered(&[]);
    drop(link);
    let run = world.dir.path().join("run");
    let mut instances = std::fs::read_dir(&run).expect("it is there");
    let instance = instances.next().expect("one").expect("readable").path();
    let log = instance.join("launcher.log");
    wait_for("the first launcher", || log.exists().then_some(()));
    world.signal_agent(Signal::KILL);
    std::fs::remove_file(&log).expect("it is there");
    std::fs::create_dir(&log).expect("made");
    let ended = world.command().stderr(Stdio::piped()).output();
    let ended = ended.expect("it runs");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success(), "{text}");
    for part in [
        "failed to start the launcher",
        "opening launcher.log",
        "directory",
    ] {
        assert!(text.contains(part), "{text}");
    }
    std::fs::remove_dir(&log).expect("removed");
}

fn wrong_flags() {
    let mut world = World::new(&[]);
    world.start_agent();
    let _link = world.admit();
    let port = world.get_json("/state")["pid"]
        .as_str()
        .expect("a pid")
        .to_owned();
    let port = port.rsplit(':').next().expect("a port").to_owned();
    for (flags, complaint) in [
        (vec!["--resources=cpus"], "--resources is invalid"),
        (vec!["--resources=cpus:-1"], "--resources is invalid"),
        (vec!["--resources=cpus(a:1"], "--resources is invalid"),
        (
            vec!["--resources=[{\"name\":\"cpus\"}]"],
            "--resources is invalid",
        ),
        (vec!["--resources=file:///no/such/file"], "cannot be read"),
        (vec!["--attributes=x"], "--attributes is invalid"),
        (
            vec!["--isolation=cgroups/cpuu"],
            "unknown isolator \"cgroups/cpuu\"; known are",
        ),
        (vec!["--default_role=a//b"], "--default_role is invalid"),
        (
            vec!["--executor_environment_variables={\"A\":1}"],
            "no JSON object of strings",
        ),
        (vec!["--ip=0.0.0.0"], "give --insecure"),
        (
            vec!["--monitor_interval=0secs"],
            "must be more than nothing",
        ),
    ] {
        let other = world.dir.path().join("other");
        let output = world
            .command()
            .args(flags.iter().copied())
            .stderr(Stdio::piped())
            .env("IGNORED", &other)
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{flags:?}");
        assert!(text.contains(complaint), "{flags:?}: {text}");
    }
    let exe = std::env::current_exe().expect("our path");
    for (args, complaint) in [
        (
            vec!["--master=nowhere", "--work_dir=/tmp/x"],
            "is not host:port",
        ),
        (
            vec!["--master=127.0.0.1:1", "--work_dir=/proc/x"],
            "give a directory that this user can write",
        ),
        (vec!["--master=zk://a/b"], "ZooKeeper"),
    ] {
        let output = std::process::Command::new(&exe)
            .arg("agent")
            .args(&args)
            .stderr(Stdio::piped())
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}");
        assert!(text.contains(complaint), "{args:?}: {text}");
    }
    let taken = std::process::Command::new(&exe)
        .arg("agent")
        .arg("--master=127.0.0.1:1")
        .arg(format!("--port={port}"))
        .arg(format!(
            "--work_dir={}",
            world.dir.path().join("third").display()
        ))
        .stderr(Stdio::piped())
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&taken.stderr);
    assert!(text.contains("failed to listen on"), "{text}");
}
