//! The promises of the units: readiness, and tasks that outlive every end of a daemon.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use meseta_tests::{http, kernel, wait};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::Test;
use crate::node::{
    AGENT, MASTER, Node, PATIENCE, SCOPE, agent_page, main_pid, property, registered, systemctl,
    until_property,
};

pub(crate) const ALL: &[Test] = &[
    ("start_is_over_when_the_agent_answers", start),
    ("the_machine_is_found_fit", check),
    ("tasks_live_in_a_delegated_scope", scope),
    ("an_ordinary_users_task_runs", ordinary_user),
    ("kill_9", kill_9),
    ("a_hung_agent_is_killed_by_the_watchdog", watchdog),
    ("stop_and_start", stop_and_start),
    ("restart", restart),
    ("daemon_reload", daemon_reload),
    ("the_binary_is_replaced", replaced),
    ("the_agent_is_ready_without_a_master", master_down),
    ("the_masters_restart_costs_nothing", master_restart),
    ("the_scope_can_be_stopped_again_and_again", scope_stopped),
    ("invalid_configuration_is_not_retried", wrong_configuration),
];

const BINARY: &str = "/usr/bin/meseta";

/// The agent has recovered, so that no answer has status 503, as soon as `systemctl start` returns.
fn start(node: &mut Node) {
    systemctl(&["stop", AGENT]);
    assert!(http::try_get("http://127.0.0.1:5051/health").is_err());
    systemctl(&["start", AGENT]);
    agent_page("/health");
    agent_page("/state");
    assert_eq!(property(AGENT, "SubState"), "running");
    node.undisturbed();
}

fn check(_: &mut Node) {
    let output = Command::new(BINARY)
        .args(["agent", "--check", "--port=5999"])
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("cgroups: v2") && said.contains("in a separate scope"),
        "{said}"
    );
}

/// The unit's umask restricts the files that the agent makes without a mode; a task of an ordinary user nevertheless
/// starts, writes its sandbox, and can be read.
fn ordinary_user(node: &mut Node) {
    assert_eq!(property(AGENT, "UMask"), "0077");
    let command = "id -u; echo written > file; cat file; umask; ls /var/lib/meseta/agent/slaves \
        || echo unlisted; exec sleep 1000";
    let user = json!({"command": {"value": command, "shell": true, "user": "nobody"}});
    let container = node.launch_with("ordinary", &[("cpus", 0.1), ("mem", 64.0)], user);
    let framework = &node.framework.id;
    let runs = format!("/frameworks/{framework}/executors/ordinary/runs/latest");
    let expected = "65534\nwritten\n0022\nunlisted\n";
    wait::eventually("what it prints is read", PATIENCE, || {
        let page = format!("/files/read?path={runs}/stdout&offset=0");
        (agent_page(&page).json()["data"] == expected).then_some(())
    });
    let listed = agent_page(&format!("/files/browse?path={runs}")).json();
    let entries = listed.as_array().expect("entries");
    let file = entries.iter().find(|one| {
        let path = one["path"].as_str().unwrap_or_default();
        path.ends_with("/file")
    });
    let file = file.expect("what it wrote");
    assert_eq!(
        (&file["uid"], &file["mode"]),
        (&json!("nobody"), &json!("-rw-r--r--"))
    );
    node.kill(&container, "ordinary");
    let other_user = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["ls", "/var/lib/meseta/agent/slaves"])
        .output()
        .expect("it runs");
    assert!(!other_user.status.success());
}

fn scope(node: &mut Node) {
    assert_eq!(property(SCOPE, "ActiveState"), "active");
    assert_eq!(property(SCOPE, "Delegate"), "yes");
    assert_eq!(property(SCOPE, "Slice"), "meseta.slice");
    assert_eq!(property(SCOPE, "TasksMax"), "infinity");
    // The service holds the daemon and its launcher, and no supervisor or task.
    let group = property(AGENT, "ControlGroup");
    let processes = fs::read_to_string(format!("/sys/fs/cgroup{group}/cgroup.procs"));
    let processes = processes.expect("the service runs");
    assert_eq!(processes.lines().count(), 2, "{processes}");
    node.undisturbed();
}

fn another_life(before: i32) {
    until_property(AGENT, "MainPID", |pid| {
        pid != "0" && pid != before.to_string()
    });
    until_property(AGENT, "SubState", |state| state == "running");
    registered();
}

fn kill_9(node: &mut Node) {
    let before = main_pid();
    kernel::kill(before, Signal::SIGKILL);
    another_life(before);
    node.undisturbed();
}

fn watchdog(node: &mut Node) {
    let before = main_pid();
    let restarts: u32 = property(AGENT, "NRestarts").parse().expect("a count");
    kernel::kill(before, Signal::SIGSTOP);
    another_life(before);
    let after: u32 = property(AGENT, "NRestarts").parse().expect("a count");
    assert!(after > restarts);
    let journal = Command::new("journalctl")
        .args(["-b", "-u", AGENT, "--no-pager"])
        .output()
        .expect("journalctl runs");
    assert!(String::from_utf8_lossy(&journal.stdout).contains("Watchdog timeout"));
    node.undisturbed();
}

fn stop_and_start(node: &mut Node) {
    systemctl(&["stop", AGENT]);
    assert_eq!(property(AGENT, "ActiveState"), "inactive");
    assert_eq!(property(AGENT, "Result"), "success");
    node.undisturbed();
    systemctl(&["start", AGENT]);
    registered();
    node.undisturbed();
}

fn restart(node: &mut Node) {
    let before = main_pid();
    systemctl(&["restart", AGENT]);
    assert_ne!(main_pid(), before);
    registered();
    node.undisturbed();
}

/// The limits of containers stay the same, and new containers get theirs.
fn daemon_reload(node: &mut Node) {
    let limits = |node: &Node| -> Vec<String> {
        let files = [
            "memory.max",
            "memory.low",
            "cpu.weight",
            "pids.max",
            "cgroup.controllers",
        ];
        let read = |file: &str| {
            let texts = node.lasting.iter().map(|one| crate::node::knob(one, file));
            texts.collect::<String>()
        };
        files.iter().map(|file| read(file)).collect()
    };
    let before = limits(node);
    systemctl(&["daemon-reload"]);
    assert_eq!(limits(node), before);
    let fresh = node.launch("fresh", "exec sleep 1000", &[("cpus", 0.1), ("mem", 48.0)]);
    assert_eq!(
        crate::node::knob(&fresh, "memory.max").trim(),
        (48 << 20).to_string()
    );
    node.kill(&fresh, "fresh");
    node.undisturbed();
}

fn replaced(node: &mut Node) {
    let old = fs::metadata(BINARY).expect("installed").ino();
    fs::copy(BINARY, "/usr/bin/meseta.new").expect("copied");
    fs::rename("/usr/bin/meseta.new", BINARY).expect("replaced");
    let new = fs::metadata(BINARY).expect("installed").ino();
    assert_ne!(old, new);
    systemctl(&["restart", AGENT]);
    registered();
    let runs = fs::metadata(format!("/proc/{}/exe", main_pid()))
        .expect("it runs")
        .ino();
    assert_eq!(runs, new);
    node.undisturbed();
    let fresh = node.launch("fresh", "exec sleep 1000", &[("cpus", 0.1), ("mem", 48.0)]);
    node.kill(&fresh, "fresh");
}

fn master_down(node: &mut Node) {
    systemctl(&["stop", MASTER]);
    systemctl(&["restart", AGENT]);
    assert_eq!(property(AGENT, "SubState"), "running");
    until_property(AGENT, "StatusText", |text| {
        text.starts_with("Not registered")
    });
    agent_page("/state");
    node.undisturbed();
    systemctl(&["start", MASTER]);
    registered();
    node.subscribe_again();
    node.undisturbed();
}

fn master_restart(node: &mut Node) {
    systemctl(&["restart", MASTER]);
    let text = until_property(MASTER, "StatusText", |text| text.contains("agents: 1 of 1"));
    assert!(text.starts_with("Leading"), "{text}");
    registered();
    wait::eventually("the master knows the tasks again", PATIENCE, || {
        let tasks = http::get("http://127.0.0.1:5050/tasks").json();
        let tasks = tasks["tasks"].as_array()?.clone();
        let runs = |task: &&serde_json::Value| task["state"] == "TASK_RUNNING";
        (tasks.iter().filter(runs).count() >= 2).then_some(())
    });
    node.subscribe_again();
    node.undisturbed();
}

/// Stopping the scope ends every task of the node, and does so a second time: later tasks are in a scope that systemd
/// knows.
fn scope_stopped(node: &mut Node) {
    for _ in 0..2 {
        let before = std::mem::take(&mut node.lasting);
        systemctl(&["stop", SCOPE]);
        for (container, name) in before.iter().zip(["lasting-1", "lasting-2"]) {
            node.until_ended(name);
            assert_ne!(kernel::start_time(container.pid), Some(container.start));
            wait::eventually("the group is gone", PATIENCE, || {
                (!container.group.exists()).then_some(())
            });
        }
        node.launch_lasting();
        assert_eq!(property(SCOPE, "ActiveState"), "active");
        assert_eq!(property(SCOPE, "Delegate"), "yes");
        node.undisturbed();
    }
}

fn wrong_configuration(node: &mut Node) {
    let config = "/etc/meseta/agent.toml";
    let before = fs::read_to_string(config).expect("configuration");
    let restarts = || -> u32 { property(AGENT, "NRestarts").parse().expect("a count") };
    let earlier = restarts();
    fs::write(config, format!("{before}\nisolation = \"nosuch\"\n")).expect("written");
    let _ = Command::new("systemctl").args(["restart", AGENT]).status();
    until_property(AGENT, "ActiveState", |state| state == "failed");
    assert!(restarts() <= earlier);
    assert_eq!(property(AGENT, "ExecMainStatus"), "2");
    fs::write(config, before).expect("written");
    systemctl(&["start", AGENT]);
    registered();
    node.undisturbed();
}
