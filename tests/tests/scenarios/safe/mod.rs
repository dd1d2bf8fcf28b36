//! Security: a tenant's attempts against others, the node and the master, and their results.
//!
//! One file for each kind of attack. `tests/vm/run` runs this group in its machine too, under the shipped unit's umask, as
//! root and as an ordinary user: `cargo test -p meseta-tests --test scenarios -- safe::`.

mod modes;
mod paths;

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use meseta_tests::framework::{framework_info, task};
use meseta_tests::{Cluster, Framework, Setup, unless_root};
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    unless_root:
        paths::check_writes_through_no_link,
        paths::check_opens_no_foreign_file,
        paths::nested_removal_follows_no_link,
        paths::nested_sandbox_keeps_foreign_folder,
        paths::api_reads_no_foreign_file,
        paths::file_read_race_never_succeeds,
        modes::user_task_runs_under_any_umask;
    anywhere:
        modes::user_agent_runs_under_any_umask;
    unless_root:
        modes::tasks_see_no_foreign_ids,
        modes::core_files_need_request,
        modes::unconfined_seccomp_needs_operator;
}

const NOBODY: u32 = 65534;

/// Starts a cluster whose sandboxes an ordinary user's tasks can reach.
fn open_cluster(agent_flags: &[&str]) -> Cluster {
    let mut setup = Setup::default();
    let flags = agent_flags.iter().map(|flag| (*flag).to_owned());
    setup.agent_flags.extend(flags);
    let cluster = Cluster::start(setup);
    for dir in [cluster.dir.path(), &cluster.agent_dir(0)] {
        let through = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(dir, through).expect("permissions");
    }
    cluster
}

/// Subscribes a framework of an ordinary user.
fn framework_of_nobody(cluster: &Cluster) -> Framework {
    let mut info = framework_info("dev");
    info["user"] = "nobody".into();
    cluster.subscribe(&info)
}

fn small(offer: &Value, id: &str, command: &str) -> Value {
    task(offer, id, command, &[("cpus", 0.1), ("mem", 32.0)])
}

/// Returns the sandbox of an executor's only run.
fn sandbox(cluster: &Cluster, framework: &Framework, executor: &str) -> PathBuf {
    let agents = cluster.agent_dir(0).join("slaves");
    let mut entries = std::fs::read_dir(agents).expect("the agents' sandboxes");
    let agent = entries
        .next()
        .expect("one agent")
        .expect("its folder")
        .path();
    let runs = agent
        .join("frameworks")
        .join(&framework.id)
        .join("executors")
        .join(executor)
        .join("runs/latest");
    std::fs::canonicalize(runs).expect("its run")
}

/// Runs a shell command as an ordinary user, and returns whether it succeeded.
fn as_nobody(dir: &Path, script: &str) -> bool {
    let status = Command::new("/bin/sh")
        .args(["-e", "-c", script])
        .current_dir(dir)
        .uid(NOBODY)
        .gid(NOBODY)
        .status();
    status.expect("a shell").success()
}

/// Makes a folder of root alone with one file in it.
fn secret(cluster: &Cluster, name: &str) -> PathBuf {
    let dir = cluster.dir.path().join(name);
    std::fs::create_dir(&dir).expect("made");
    std::fs::write(dir.join("file"), "secret").expect("written");
    for (path, mode) in [(dir.join("file"), 0o600), (dir.clone(), 0o700)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }
    dir
}

/// Returns a health check that never gives up.
fn health(command: &str) -> Value {
    json!({
        "type": "COMMAND", "command": {"value": command}, "delay_seconds": 0.0,
        "interval_seconds": 0.1, "timeout_seconds": 20.0, "grace_period_seconds": 0.0,
        "consecutive_failures": 1_000_000,
    })
}

/// Waits for an update with this health of a task.
fn until_healthy(framework: &mut Framework, id: &str, healthy: bool) {
    loop {
        let status = framework.update(id);
        framework.acknowledge(&status);
        let lives = status["state"] == "TASK_STARTING" || status["state"] == "TASK_RUNNING";
        assert!(lives, "{status:#}");
        if status["healthy"] == healthy {
            return;
        }
    }
}
