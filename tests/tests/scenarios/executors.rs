//! Tests of frameworks' executors, task groups, fetched files and checks, through master and agent.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use meseta_tests::daemon::free_port;
use meseta_tests::{Cluster, Setup, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::clients::{installed_python, unless_pymesos};

meseta_tests::scenarios! {
    unless_pymesos:
        pymesos_is_executor_and_scheduler,
        pymesos_executor_writes_to_volume;
}

/// The time for the whole conversation, including an agent's restart.
const LIMIT: Duration = Duration::from_secs(240);

/// The time for the agent to execute an operation that the master has already reported as done.
const REST_LIMIT: Duration = Duration::from_secs(30);

/// Starts a cluster whose agent comes back at the same port, which executors use.
fn lasting_cluster() -> Cluster {
    let mut setup = Setup {
        agent_port: Some(free_port()),
        ..Setup::default()
    };
    // pymesos waits some seconds before it reconnects.
    setup
        .agent_flags
        .push("--executor_reregistration_timeout=30secs".to_owned());
    Cluster::start(setup)
}

/// Runs one of the client scripts to its end; restarts the agent on its request. Returns the observations.
fn converse(cluster: &mut Cluster, script: &str) -> Value {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(script);
    let mut client = Command::new(installed_python())
        .arg(script)
        .arg("scheduler")
        .arg(cluster.master.address())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("python starts");
    let pid = i32::try_from(client.id()).expect("a pid");
    let mut stdin = client.stdin.take().expect("its input");
    let stdout = client.stdout.take().expect("its output");
    let (lines_in, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            let _ = lines_in.send(line);
        }
    });
    let first = lines.recv_timeout(LIMIT);
    if first.as_deref() == Ok("restart") {
        cluster.restart_agent(0);
        cluster.wait_for_agents(1);
        stdin.write_all(b"\n").expect("it listens");
    }
    let second = lines.recv_timeout(LIMIT);
    let waiting = std::thread::spawn(move || client.wait_with_output());
    if !wait::holds(Duration::from_secs(30), || waiting.is_finished()) {
        meseta_tests::kernel::kill(pid, Signal::SIGKILL);
    }
    let output = waiting.join().expect("joined").expect("waited for");
    let errors = String::from_utf8_lossy(&output.stderr);
    let saw = second
        .unwrap_or_else(|_| panic!("{first:?} {errors}\nagent: {}", cluster.agent().log_text()));
    serde_json::from_str(&saw).expect("what pymesos saw")
}

fn pymesos_executor_writes_to_volume() {
    let mut cluster = lasting_cluster();
    let saw = converse(&mut cluster, "pymesos_reservations.py");
    assert_eq!(saw["errors"], serde_json::json!([]), "{saw}");
    let states = saw["states"].as_array().expect("states of three tasks");
    let ends = ["TASK_KILLED", "TASK_KILLED", "TASK_FINISHED"];
    for (states, end) in states.iter().zip(ends) {
        let last = states.as_array().and_then(|states| states.last());
        assert_eq!(last, Some(&Value::from(end)), "{saw}");
    }
    // The master offers unreserved resources before the agent has unreserved them.
    wait::eventually("nothing is reserved", REST_LIMIT, || {
        let state = cluster.agent().page("/state").json();
        (state["reserved_resources_full"] == serde_json::json!({})).then_some(())
    });
    let volumes = cluster.dir.path().join("agent-0/volumes/roles/dev");
    wait::eventually("the volume's data is gone", REST_LIMIT, || {
        let left = std::fs::read_dir(&volumes).map_or(0, Iterator::count);
        (left == 0).then_some(())
    });
}

fn pymesos_is_executor_and_scheduler() {
    let saw = converse(&mut lasting_cluster(), "pymesos_executor.py");
    assert_eq!(saw["errors"], serde_json::json!([]), "{saw}");
    assert_eq!(saw["reason"], "REASON_EXECUTOR_TERMINATED", "{saw}");
    assert_eq!(
        saw["states"]["a"],
        serde_json::json!(["TASK_RUNNING", "TASK_KILLED"])
    );
    let lost = saw["lost"].as_array().expect("executors");
    assert_eq!(lost[0][0], "first", "{saw}");
    // wait(2) encodes an exit with code 9 like this.
    assert_eq!(lost[1], serde_json::json!(["second", 9 << 8]), "{saw}");
}
