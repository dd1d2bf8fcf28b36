//! Estimators and controllers as separate programs, in Rust and in Python.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use meseta_tests::framework::task;
use meseta_tests::revocable::{
    amount, launch_and_decline_rest, revocable_framework, revocable_task, wait_for_revocable_offer,
};
use meseta_tests::{Cluster, Missing, kernel, unless_root, wait};

use super::{PATIENCE, Running, cluster, machine, metric, set};

/// Returns the path beside the tested binary, where examples are built.
fn rust_example() -> PathBuf {
    let binary = meseta_tests::daemon::binary();
    binary.with_file_name("examples").join("plugin")
}

pub(super) fn unless_rust() -> Missing {
    let built = rust_example().is_file();
    let how = "needs `cargo build -p meseta-tests --example plugin`".to_owned();
    unless_root().or_else(|| (!built).then_some(how))
}

pub(super) fn unless_python() -> Missing {
    unless_root().or_else(|| crate::clients::unless_imports("grpc_tools"))
}

fn plugin(mut command: Command, socket: &Path) -> Running {
    let child = command
        .arg(format!("--socket={}", socket.display()))
        .args(["--share=0.5", "--load=6"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("the plug-in runs");
    let running = Running(child);
    wait::eventually("the plug-in serves", PATIENCE, || {
        socket.exists().then_some(())
    });
    running
}

/// Starts a cluster whose agent uses a plug-in for everything.
fn with_plugin(proc: &Path, socket: &Path) -> Cluster {
    cluster(vec![
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        format!("--resource_estimator=unix://{}", socket.display()),
        format!("--qos_controller=unix://{}", socket.display()),
        format!("--host_proc={}", proc.display()),
        "--oversubscribed_resources_interval=500ms".to_owned(),
        "--monitor_interval=200ms".to_owned(),
    ])
}

/// Half of a regular task's 2 cpus is oversubscribed, and taken back when the load is high.
fn lends_and_evicts(cluster: &Cluster, proc: &Path) {
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let resting = task(
        &offer,
        "r",
        "exec sleep 600",
        &[("cpus", 2.0), ("mem", 32.0)],
    );
    launch_and_decline_rest(&regular, &offer, &[resting]);
    regular.until_state("r", "TASK_RUNNING");
    let mut revocable_framework = revocable_framework(cluster);
    let offer = wait_for_revocable_offer(&mut revocable_framework);
    assert_eq!(amount(&offer, "cpus", true), 1.0, "{offer:#}");
    revocable_framework.launch(
        &offer,
        &[revocable_task(&offer, "b", "exec sleep 600", 0.5)],
    );
    revocable_framework.until_state("b", "TASK_RUNNING");
    set(proc, "loadavg", "9.00 7.50 1.00 1/80 4242\n");
    let status = revocable_framework.until_end("b", PATIENCE);
    assert_eq!(status["reason"], "REASON_CONTAINER_PREEMPTED", "{status:#}");
    let message = status["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("the load of 5 minutes is 7.5"),
        "in its own words: {message}"
    );
    set(proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
}

pub(super) fn rust_plugin_oversubscribes() {
    let dir = tempfile::tempdir().expect("a folder");
    let (proc, socket) = (machine(dir.path()), dir.path().join("plugin.sock"));
    set(&proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
    let serving = plugin(Command::new(rust_example()), &socket);
    let cluster = with_plugin(&proc, &socket);
    lends_and_evicts(&cluster, &proc);
    // The plug-in dies: nothing is oversubscribed any more, and everything else continues.
    drop(serving);
    wait::eventually("nothing is oversubscribed", PATIENCE, || {
        let agents = cluster.master.page("/slaves").json();
        let oversubscribed = agents["slaves"][0]["resources"]["cpus_revocable"].as_f64();
        (oversubscribed.unwrap_or(0.0) == 0.0).then_some(())
    });
    let failures =
        "meseta_agent_plugin_failures_total{plugin=\"resource_estimator\",kind=\"unreachable\"}";
    wait::eventually("the failures are counted", PATIENCE, || {
        (metric(&cluster, failures)? > 0.0).then_some(())
    });
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root).len(),
        1,
        "the regular task"
    );
}

pub(super) fn python_plugin_oversubscribes_and_evicts() {
    let dir = tempfile::tempdir().expect("a folder");
    let (proc, socket) = (machine(dir.path()), dir.path().join("plugin.sock"));
    set(&proc, "loadavg", "0.10 0.10 0.10 1/80 4242\n");
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(crate::clients::installed_python());
    command
        .arg(repository.join("docs/examples/plugin.py"))
        .arg(format!(
            "--proto={}",
            repository.join("proto/proto").display()
        ));
    let _serving = plugin(command, &socket);
    let cluster = with_plugin(&proc, &socket);
    lends_and_evicts(&cluster, &proc);
}
