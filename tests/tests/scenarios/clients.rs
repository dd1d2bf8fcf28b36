//! Frameworks of other projects: clients from PyPI and npm, and the examples in `docs/examples`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use meseta_tests::{Cluster, Missing, unless_installed, wait};
use serde_json::Value;

meseta_tests::scenarios! {
    unless_pymesos:
        pymesos_runs_unmodified;
    unless_mesoshttp:
        mesoshttp_runs_unmodified = || requests("mesoshttp");
    unless_avmesos:
        avmesos_runs_unmodified = || requests("avmesos");
    unless_mesos_framework:
        mesos_framework_runs_unmodified;
    unless_curl:
        the_example_in_curl;
    unless_python:
        the_example_in_python;
    unless_example:
        the_example_over_grpc;
}

/// The time for a whole client to do its work.
const LIMIT: Duration = Duration::from_secs(180);

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the folder in which `.ci/clients` has installed foreign clients.
fn installed() -> PathBuf {
    std::env::var_os("MESETA_CLIENTS").map_or_else(|| PathBuf::from("/nonexistent"), PathBuf::from)
}

pub(crate) fn installed_python() -> PathBuf {
    installed().join("bin/python")
}

pub(crate) fn unless_imports(module: &str) -> Missing {
    let found = Command::new(installed_python())
        .args(["-c", &format!("import {module}")])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    (!found).then(|| format!("needs {module}: `.ci/clients DIR`, then MESETA_CLIENTS=DIR"))
}

pub(crate) fn unless_pymesos() -> Missing {
    unless_imports("pymesos")
}

pub(super) fn unless_mesoshttp() -> Missing {
    unless_imports("mesoshttp")
}

pub(super) fn unless_avmesos() -> Missing {
    unless_imports("avmesos.client")
}

fn unless_mesos_framework() -> Missing {
    let found = installed().join("node_modules/mesos-framework").is_dir();
    unless_installed("node").or_else(|| {
        (!found)
            .then(|| "needs mesos-framework: `.ci/clients DIR`, then MESETA_CLIENTS=DIR".to_owned())
    })
}

pub(super) fn unless_curl() -> Missing {
    unless_installed("curl").or_else(|| unless_installed("bash"))
}

pub(super) fn unless_python() -> Missing {
    unless_installed("python3")
}

fn example() -> PathBuf {
    let binary = meseta_tests::daemon::binary();
    binary.with_file_name("examples").join("grpc_framework")
}

fn unless_example() -> Missing {
    (!example().is_file())
        .then(|| "needs `cargo build -p meseta-tests --example grpc_framework`".to_owned())
}

/// Runs a client to its end, or kills it after the limit.
fn output(what: &str, command: &mut Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let pid = i32::try_from(child.id()).expect("a pid");
    let waiting = std::thread::spawn(move || child.wait_with_output());
    if !wait::holds(LIMIT, || waiting.is_finished()) {
        meseta_tests::kernel::kill(pid, nix::sys::signal::Signal::SIGKILL);
    }
    waiting.join().expect("joined").expect("waited for")
}

/// Checks an example that runs `echo` as a task, whose output is then in its sandbox.
fn example_finishes(what: &str, program: &Path) {
    let cluster = Cluster::default();
    let mut command = Command::new(program);
    command.arg(cluster.master.address()).arg("echo hello");
    let output = output(what, &mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {text}\n{errors}");
    assert!(text.contains("TASK_RUNNING"), "{what}: {text}");
    assert!(text.contains("TASK_FINISHED"), "{what}: {text}");
    let state = cluster.master.page("/state").json();
    let completed = &state["completed_frameworks"][0]["completed_tasks"];
    assert_eq!(completed[0]["state"], "TASK_FINISHED", "{completed}");
    assert_eq!(state["frameworks"], serde_json::json!([]));
}

pub(super) fn the_example_in_curl() {
    example_finishes(
        "framework.sh",
        &repository().join("docs/examples/framework.sh"),
    );
}

pub(super) fn the_example_in_python() {
    example_finishes(
        "framework.py",
        &repository().join("docs/examples/framework.py"),
    );
}

fn the_example_over_grpc() {
    example_finishes("grpc_framework", &example());
}

pub(super) fn pymesos_runs_unmodified() {
    let cluster = Cluster::default();
    let mut command = Command::new(installed_python());
    command
        .arg(repository().join("tests/clients/pymesos_scheduler.py"))
        .arg(cluster.master.address());
    let output = output("pymesos", &mut command);
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let saw: Value = serde_json::from_str(text.trim()).expect("what pymesos saw");
    let states = |of: &str, state: &str| {
        let all = saw[of].as_object().expect("states by task");
        all.values().filter(|value| *value == state).count()
    };
    assert_eq!(saw["framework_ids"][0], saw["framework_ids"][1]);
    assert_eq!(states("states", "TASK_FINISHED"), 15, "{saw}");
    assert_eq!(states("states", "TASK_KILLED"), 2, "{saw}");
    assert_eq!(states("implicit", "TASK_RUNNING"), 3, "{saw}");
    assert_eq!(saw["explicit"]["long-2"], "TASK_RUNNING");
    assert_eq!(
        saw["explicit"]["short-0"], "TASK_LOST",
        "ended and forgotten"
    );
    assert_eq!(states("after_failover", "TASK_RUNNING"), 3, "{saw}");
    assert_eq!(states("killed_later", "TASK_KILLED"), 3, "{saw}");
    assert_eq!(saw["silent_while_suppressed"], true);
    assert_eq!(saw["errors"], serde_json::json!([]));
    let state = cluster.master.page("/state").json();
    assert_eq!(state["frameworks"], serde_json::json!([]), "torn down");
    assert_eq!(
        state["completed_frameworks"][0]["id"],
        saw["framework_ids"][0]
    );
}

/// Checks the output of a client at its end: the states of its five tasks.
fn five_finished(what: &str, output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {text}\n{errors}");
    let last = text.lines().last().unwrap_or_default();
    let states: Value = serde_json::from_str(last).expect("states by task");
    let states: Vec<_> = states.as_object().expect("an object").values().collect();
    assert_eq!(states.len(), 5, "{what}: {text}");
    assert!(
        states.iter().all(|state| *state == "TASK_FINISHED"),
        "{what}: {text}"
    );
}

/// Runs two clients that use Python's `requests` in the same way.
pub(super) fn requests(module: &str) {
    let cluster = Cluster::default();
    let mut command = Command::new(installed_python());
    command
        .arg(repository().join("tests/clients/mesoshttp_scheduler.py"))
        .arg(cluster.master.address())
        .arg(module);
    five_finished(module, &output(module, &mut command));
}

pub(super) fn mesos_framework_runs_unmodified() {
    let cluster = Cluster::default();
    let mut command = Command::new("node");
    command
        .arg(repository().join("tests/clients/mesos_framework_scheduler.js"))
        .arg(cluster.master.address())
        .arg(cluster.dir.path().join("client-logs"))
        .env("NODE_PATH", installed().join("node_modules"));
    five_finished("mesos-framework", &output("mesos-framework", &mut command));
}
