//! A master that is stopped for longer than all timeouts: its unread messages cost nobody anything.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::framework::{Encoding, framework_info, task};
use meseta_tests::{Cluster, Framework, Setup, kernel, wait};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::anywhere;

meseta_tests::scenarios! {
    anywhere:
        paused_master_loses_no_agent;
}

const PATIENCE: Duration = Duration::from_secs(60);

/// Finds a file of this name, without following links.
pub(crate) fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).find_map(|path| {
        if path.ends_with(name) {
            return Some(path);
        }
        let is_dir = path.symlink_metadata().is_ok_and(|found| found.is_dir());
        is_dir.then(|| find(&path, name)).flatten()
    })
}

/// The command of a task in [`outlive`].
pub(crate) const TICKS: &str = "while true; do echo tick >> ticks; sleep 1; done";

/// Waits until the task has lived on for this many seconds, by its output.
pub(crate) fn outlive(cluster: &Cluster, seconds: usize) {
    let ticks = || {
        let file = find(cluster.dir.path(), "ticks");
        let text = file.and_then(|file| std::fs::read_to_string(file).ok());
        text.unwrap_or_default().lines().count()
    };
    let before = ticks();
    wait::eventually("the task goes on", PATIENCE, || {
        (ticks() >= before + seconds).then_some(())
    });
}

/// Replaces a framework's scheduler, and disconnects.
pub(crate) fn leave(cluster: &Cluster, info: &Value) {
    let call = json!({"type": "SUBSCRIBE", "framework_id": info["id"], "subscribe": {"framework_info": info}});
    let body = call.to_string();
    let head = format!(
        "POST /api/v1/scheduler HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(cluster.master.address()).expect("connected");
    stream.write_all((head + &body).as_bytes()).expect("sent");
    let mut answer = String::new();
    while !answer.contains("SUBSCRIBED") {
        let mut bytes = [0; 4096];
        let count = stream.read(&mut bytes).expect("an answer");
        assert!(count > 0, "closed: {answer}");
        answer += &String::from_utf8_lossy(&bytes[..count]);
    }
}

/// Waits until the master's log contains these words.
pub(crate) fn says(cluster: &Cluster, text: &str) {
    wait::eventually(text, PATIENCE, || {
        cluster.master.log_text().contains(text).then_some(())
    });
}

fn state_of(framework: &mut Framework, task: &str) -> Value {
    framework.accepted(
        json!({"type": "RECONCILE", "reconcile": {"tasks": [{"task_id": {"value": task}}]}}),
    );
    framework.update(task)["state"].clone()
}

/// Checks that no agent was given up, and no task or framework ended.
pub(crate) fn assert_nothing_lost(cluster: &Cluster) {
    let metrics = cluster.master.page("/metrics/snapshot").json();
    for name in [
        "master/slave_removals",
        "master/recovery_slave_removals",
        "master/slave_unreachable_scheduled",
        "master/tasks_lost",
        "master/tasks_killed",
    ] {
        assert_eq!(metrics[name].as_f64(), Some(0.0), "{name}");
    }
    let state = cluster.master.page("/state").json();
    assert_eq!(state["completed_frameworks"], json!([]));
}

fn paused_master_loses_no_agent() {
    // The timeouts are five seconds for frameworks and six for agents.
    let limits = [
        "--agent_ping_timeout=2secs",
        "--max_agent_ping_timeouts=3",
        "--agent_reregister_timeout=4secs",
        "--agent_removal_rate_limit=none",
    ];
    let mut cluster = Cluster::start(Setup {
        master_flags: limits.map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    let mut info = framework_info("dev");
    info["failover_timeout"] = json!(5.0);
    let url = cluster.scheduler_url();
    let mut framework = Framework::subscribe(&url, Encoding::Json, &info);
    let offer = framework.offer();
    let run = task(&offer, "t", TICKS, &[("cpus", 0.1), ("mem", 32.0)]);
    framework.launch(&offer, &[run]);
    framework.until_state("t", "TASK_RUNNING");
    info["id"] = json!({"value": framework.id});
    leave(&cluster, &info);
    says(&cluster, "framework disconnected");

    kernel::kill(cluster.master.pid(), Signal::SIGSTOP);
    outlive(&cluster, 4);
    let again = std::thread::spawn({
        let (url, info) = (url.clone(), info.clone());
        move || Framework::subscribe(&url, Encoding::Json, &info)
    });
    outlive(&cluster, 4);
    kernel::kill(cluster.master.pid(), Signal::SIGCONT);
    let mut framework = again.join().expect("it is taken back");
    assert_eq!(state_of(&mut framework, "t"), "TASK_RUNNING");
    says(&cluster, "this master did not run");
    cluster.wait_for_agents(1);
    assert_nothing_lost(&cluster);

    // The pause also comes while the agent is about to return to a new master.
    cluster.restart_master();
    kernel::kill(cluster.master.pid(), Signal::SIGSTOP);
    outlive(&cluster, 7);
    kernel::kill(cluster.master.pid(), Signal::SIGCONT);
    let mut framework = Framework::subscribe(&url, Encoding::Json, &info);
    cluster.wait_for_agents(1);
    assert_eq!(state_of(&mut framework, "t"), "TASK_RUNNING");
    assert_nothing_lost(&cluster);
}
