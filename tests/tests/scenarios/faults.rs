//! The agent is killed in the middle of a launch, or its descriptors are gone: running tasks continue, failed work is
//! reported or done later, and nothing is left over.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use meseta_tests::dice::Dice;
use meseta_tests::raw::Raw;
use meseta_tests::{
    Cluster, Framework, Missing, agent_kills, kernel, unless_installed, unless_root, wait,
};
use serde_json::Value;

use crate::enforcement::{is_container, standing_offer};

meseta_tests::scenarios! {
    unless_root:
        agent_killed_during_launch_loses_nothing,
        killed_agent_reports_each_end_once;
    unless_prlimit:
        descriptor_shortage_delays_and_loses_nothing,
        agent_without_descriptors_serves_open_connections;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);

fn unless_prlimit() -> Missing {
    unless_root().or_else(|| unless_installed("prlimit"))
}

/// Whether a folder of this name exists at any depth.
fn has_folder(dir: &Path, name: &str) -> bool {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders
        .map(|entry| entry.path())
        .any(|path| path.ends_with(name) || has_folder(&path, name))
}

fn containers(cluster: &Cluster) -> usize {
    let groups = kernel::groups_below(&cluster.cgroups_root);
    groups.iter().filter(|group| is_container(group)).count()
}

/// The progress of a launch at which the agent is killed.
type Sign = fn(&Cluster, &str) -> bool;

const SIGNS: &[(&str, Sign)] = &[
    ("it was sent", |_, _| true),
    ("the intent is written", |cluster, id| {
        has_folder(&cluster.agent_dir(0).join("meta"), id)
    }),
    ("the sandbox is made", |cluster, id| {
        has_folder(&cluster.agent_dir(0).join("slaves"), id)
    }),
    ("a group is made", |cluster, _| containers(cluster) > 0),
    ("a supervisor is there", |cluster, _| {
        // The launcher is always among the processes.
        kernel::processes_below(&cluster.cgroups_root).len() > 1
    }),
    ("a process is there", |cluster, _| {
        !kernel::tasks_below(&cluster.cgroups_root).is_empty()
    }),
    ("it has begun", |cluster, id| {
        cluster.dir.path().join(format!("{id}-began")).exists()
    }),
];

/// Returns the result of a task: its first state after the waiting states.
fn outcome(framework: &mut Framework, id: &str) -> String {
    loop {
        let status = framework.update(id);
        framework.acknowledge(&status);
        let state = status["state"].as_str().expect("a state").to_owned();
        if !["TASK_STAGING", "TASK_STARTING"].contains(&state.as_str()) {
            return state;
        }
    }
}

fn agent_killed_during_launch_loses_nothing() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    framework.launch_task(&offer, "first", "true", SMALL);
    framework.until_state("first", "TASK_FINISHED");
    for (number, (sign, so)) in SIGNS.iter().enumerate() {
        let id = format!("t{number}");
        let began = cluster.dir.path().join(format!("{id}-began"));
        let command = format!("echo $$ >> {}; exec sleep 600", began.display());
        let offer = standing_offer(&mut framework);
        framework.launch_task(&offer, &id, &command, SMALL);
        wait::eventually(sign, PATIENCE, || so(&cluster, &id).then_some(()));
        cluster.restart_agent(0);
        cluster.wait_for_agents(1);
        let state = outcome(&mut framework, &id);
        eprintln!("killed when {sign}: {state}");
        let times = std::fs::read_to_string(&began).unwrap_or_default();
        assert!(times.lines().count() <= 1, "it began twice: {times}");
        if state == "TASK_RUNNING" {
            wait::eventually("it has begun", PATIENCE, || began.exists().then_some(()));
            framework.kill(&id);
            framework.until_state(&id, "TASK_KILLED");
        }
        // A task reported as ended is over, whatever had been made.
        wait::eventually("nothing is left", PATIENCE, || {
            let processes = kernel::tasks_below(&cluster.cgroups_root);
            (processes.is_empty() && containers(&cluster) == 0).then_some(())
        });
    }
}

/// Runs a few of the kills that the example `agent_kills` makes in large numbers.
fn killed_agent_reports_each_end_once() {
    let outcome = agent_kills::run(4, 80, Dice::new(7));
    assert_eq!(outcome.wrong, Vec::<String>::new());
    assert!(outcome.told.len() >= 80);
}

/// Starts a task, and returns its process with the start time.
fn steady(framework: &mut Framework) -> (i32, Option<u64>) {
    let offer = framework.offer();
    let status = framework.run_task(&offer, "steady", "exec sleep 600", SMALL);
    let pid = status["container_status"]["executor_pid"].as_i64();
    let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
    (pid, kernel::start_time(pid))
}

/// Checks that the steady task has survived everything.
fn still_steady(framework: &mut Framework, (pid, born): (i32, Option<u64>)) {
    assert!(born.is_some());
    assert_eq!(kernel::start_time(pid), born, "another process, or none");
    framework.kill("steady");
    framework.until_state("steady", "TASK_KILLED");
}

/// Waits until the agent's log contains these words.
fn says(cluster: &Cluster, part: &str) {
    wait::eventually(part, PATIENCE, || {
        cluster.agent().log_text().contains(part).then_some(())
    });
}

/// Sets the limit of a process's descriptors; open ones stay.
fn allow_descriptors(pid: i32, count: &str) {
    let status = Command::new("prlimit")
        .arg(format!("--pid={pid}"))
        .arg(format!("--nofile={count}:"))
        .status()
        .expect("prlimit runs");
    assert!(status.success());
}

fn descriptor_shortage_delays_and_loses_nothing() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let before = steady(&mut framework);
    let pid = cluster.agent().pid();
    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("limits");
    let usual = limits
        .lines()
        .find_map(|line| {
            line.strip_prefix("Max open files")?
                .split_whitespace()
                .next()
        })
        .expect("a limit")
        .to_owned();
    allow_descriptors(pid, "8");
    let offer = framework.offer();
    framework.launch_task(&offer, "late", "echo late", SMALL);
    says(&cluster, "Too many open files");
    allow_descriptors(pid, &usual);
    let status = ended(&mut framework, "late");
    eprintln!("without descriptors: {status:#}");
    // The agent works as if new.
    let offer = framework.offer();
    framework.launch_task(&offer, "after", "true", SMALL);
    framework.until_state("after", "TASK_FINISHED");
    still_steady(&mut framework, before);
}

/// Returns the end of a task that was delayed and ran, or failed with a report.
fn ended(framework: &mut Framework, id: &str) -> Value {
    loop {
        let status = framework.update(id);
        framework.acknowledge(&status);
        match status["state"].as_str() {
            Some("TASK_FINISHED") => return status,
            Some("TASK_FAILED") => {
                let message = status["message"].as_str().expect("a message");
                assert!(message.contains("Too many open files"), "{message}");
                return status;
            }
            _ => {}
        }
    }
}

/// Returns the processor seconds of a process.
fn used_seconds(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let rest = stat.rsplit(") ").next().expect("fields");
    let ticks = rest.split(' ').skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|one| one.parse::<f64>().ok()).sum();
    ticks / 100.0
}

fn agent_without_descriptors_serves_open_connections() {
    const LASTING: Duration = Duration::from_secs(3);
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let before = steady(&mut framework);
    let agent = cluster.agent();
    allow_descriptors(agent.pid(), "8");
    // Further connections wait to be accepted.
    let knocking: Vec<_> = (0..50)
        .map(|_| TcpStream::connect(agent.address()).expect("connected"))
        .collect();
    says(&cluster, "failed to accept a connection");
    let (began, used) = (Instant::now(), used_seconds(agent.pid()));
    wait::holds(LASTING, || false);
    cluster.wait_for_agents(1);
    let share = (used_seconds(agent.pid()) - used) / began.elapsed().as_secs_f64();
    eprintln!("it takes {:.1} % of a processor meanwhile", share * 100.0);
    assert!(share < 0.10, "{share}");
    allow_descriptors(agent.pid(), "20000");
    drop(knocking);
    let mut fresh = Raw::connect(agent.address());
    fresh.request("GET /health", &[], "");
    assert_eq!(fresh.head().status, 200);
    still_steady(&mut framework, before);
}
