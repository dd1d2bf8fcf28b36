//! Oversubscription on a live cluster: the oversubscribed resources, their users, and their recovery.

mod estimators;
mod evicting;
mod plugins;
mod prometheus;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::revocable::launch_and_decline_rest;
use meseta_tests::{Cluster, Framework, Setup, unless_root};
use serde_json::json;

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        estimators::fixed_estimate_goes_to_revocable_frameworks;
    unless_root:
        evicting::load_controller_evicts_revocable_executors,
        estimators::revocable_tasks_survive_restarts,
        estimators::slack_is_oversubscribed_within_two_intervals;
    plugins::unless_rust:
        plugins::rust_plugin_oversubscribes;
    plugins::unless_python:
        plugins::python_plugin_oversubscribes_and_evicts;
    prometheus::unless_prometheus:
        prometheus::prometheus_scrapes_oversubscription_and_alerts_fire;
    unless_root:
        evicting::memory_pressure_kills_largest_revocable_task;
}

/// The text of the document.
const FIXED: &str = r#"{
  "libraries": {
    "file": "/usr/local/lib64/libfixed_resource_estimator.so",
    "modules": {
      "name": "org_apache_mesos_FixedResourceEstimator",
      "parameters": {
        "key": "resources",
        "value": "cpus:14"
      }
    }
  }
}"#;

/// Long enough for any number of rounds, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn fixed_flags() -> Vec<String> {
    vec![
        "--resources=cpus:4;mem:4096;disk:4096;ports:[31000-31999]".to_owned(),
        "--resource_estimator=org_apache_mesos_FixedResourceEstimator".to_owned(),
        format!("--modules={FIXED}"),
        "--monitor_interval=200ms".to_owned(),
    ]
}

fn cluster(agent_flags: Vec<String>) -> Cluster {
    Cluster::start(Setup {
        agent_flags,
        ..Setup::default()
    })
}

fn metric(cluster: &Cluster, series: &str) -> Option<f64> {
    let text = cluster.agent().page("/metrics").text();
    let line = text.lines().find_map(|line| line.strip_prefix(series))?;
    line.trim().parse().ok()
}

/// Creates a simulated machine of files.
fn machine(dir: &Path) -> PathBuf {
    let proc = dir.join("proc");
    std::fs::create_dir_all(&proc).expect("a folder");
    proc
}

fn set(proc: &Path, file: &str, text: &str) {
    // The file is replaced as a whole, because the agent reads it continually.
    let next = proc.join("next");
    std::fs::write(&next, text).expect("written");
    std::fs::rename(next, proc.join(file)).expect("renamed");
}

/// The content of `/proc/stat` for eight idle processors.
const IDLE: &str = "cpu  8 0 8 8000 0 0 0 0 0 0\ncpu0 1 0 1 1000 0 0 0 0 0 0\n\
    cpu1 1 0 1 1000 0 0 0 0 0 0\ncpu2 1 0 1 1000 0 0 0 0 0 0\ncpu3 1 0 1 1000 0 0 0 0 0 0\n\
    cpu4 1 0 1 1000 0 0 0 0 0 0\ncpu5 1 0 1 1000 0 0 0 0 0 0\ncpu6 1 0 1 1000 0 0 0 0 0 0\n\
    cpu7 1 0 1 1000 0 0 0 0 0 0\nctxt 1\nbtime 1\nprocesses 1\nprocs_running 1\nprocs_blocked 0\n";

/// Returns the flags of an agent that oversubscribes slack as soon as possible.
fn slack_flags(proc: &Path) -> Vec<String> {
    let modules = json!({"libraries": {"modules": {"name": "slack", "parameters": [
        {"key": "min_age", "value": "1secs"}, {"key": "min_samples", "value": "3"},
        {"key": "rate_window", "value": "1secs"}, {"key": "growth", "value": "1.0"},
        {"key": "fold", "value": "1secs"}, {"key": "reopen_after", "value": "1secs"}]}}});
    vec![
        "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
        "--resource_estimator=slack".to_owned(),
        format!("--host_proc={}", proc.display()),
        format!("--modules={modules}"),
        "--oversubscribed_resources_interval=2secs".to_owned(),
        "--monitor_interval=200ms".to_owned(),
    ]
}

/// Starts a regular task that was promised 2 CPUs and uses none, as if asleep.
fn asleep(cluster: &Cluster) -> Framework {
    let mut regular = cluster.framework();
    let offer = regular.offer();
    let promised = [("cpus", 2.0), ("mem", 32.0)];
    let task = task(&offer, "r", "exec sleep 600", &promised);
    launch_and_decline_rest(&regular, &offer, &[task]);
    regular.until_state("r", "TASK_RUNNING");
    regular
}

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
