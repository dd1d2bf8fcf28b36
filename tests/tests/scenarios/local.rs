//! Tests of `meseta local`: started, used and ended, without leftovers.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use meseta_tests::daemon::binary;
use meseta_tests::network::loopback;
use meseta_tests::{Missing, http, kernel, unless_installed, unless_root, wait};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::anywhere;

meseta_tests::scenarios! {
    unless_root:
        ctrl_c_leaves_nothing,
        user_tasks_run_under_any_umask;
    unless_root_quietly:
        killed_local_ends_its_daemons;
    anywhere:
        used_port_is_reported;
    unless_root:
        only_machine_goes_down_and_up;
    without_etcd:
        three_masters_reelect_after_kill;
    anywhere:
        several_masters_require_etcd,
        demo_shows_racks_and_teams;
}

fn without_etcd() -> Missing {
    unless_installed("etcd")
}

fn unless_root_quietly() -> Missing {
    unless_root()
}

struct Local {
    child: Child,
    dir: tempfile::TempDir,
    master: String,
}

impl Local {
    /// Returns the address of a daemon, once it listens.
    fn address_of(&self, daemon: &str) -> String {
        let endpoint = self.dir.path().join(daemon).join("endpoint");
        wait::eventually("the daemon listens", Duration::from_secs(20), || {
            let text = std::fs::read_to_string(&endpoint).ok()?;
            Some(text.trim().trim_start_matches("http://").to_owned())
        })
    }

    /// Interrupts the cluster, and waits for its end.
    fn interrupt(&mut self) -> ExitStatus {
        kernel::kill(
            i32::try_from(self.child.id()).expect("a pid"),
            Signal::SIGINT,
        );
        wait::eventually("it ends", Duration::from_secs(20), || {
            self.child.try_wait().expect("wait")
        })
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start() -> Local {
    start_with(&[], "master")
}

/// Starts the cluster, and waits for this master and the first agent.
fn start_with(flags: &[&str], master: &str) -> Local {
    start_under("022", flags, master)
}

/// Starts it with this umask.
fn start_under(umask: &str, flags: &[&str], master: &str) -> Local {
    let dir = tempfile::TempDir::with_prefix("meseta-test-local-").expect("a directory");
    let passage = Permissions::from_mode(0o711);
    std::fs::set_permissions(dir.path(), passage).expect("a mode");
    let child = Command::new("sh")
        .args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\"")])
        .arg(binary())
        .args([
            "local",
            "--port=0",
            "--agent_port=0",
            "--resources=cpus:2;mem:1024",
        ])
        .args(flags)
        .arg(format!("--work_dir={}", dir.path().display()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("meseta runs");
    let mut local = Local {
        child,
        dir,
        master: String::new(),
    };
    local.master = local.address_of(master);
    let agent = local.dir.path().join("agent-1/endpoint");
    wait::eventually("the agent listens", Duration::from_secs(20), || {
        agent.exists().then_some(())
    });
    local
}

/// The agent's directory was closed to others, so that no task of an ordinary user started.
fn user_tasks_run_under_any_umask() {
    let mut local = start_under("077", &[], "master");
    let run = Command::new(binary())
        .args(["execute", "--user=nobody", "--command=id -un"])
        .args(["--resources=cpus:0.1;mem:32"])
        .arg(format!("--master={}", local.master))
        .output()
        .expect("meseta runs");
    let output = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && output.contains("nobody"), "{run:?}");
    assert!(local.interrupt().success());
}

/// Runs a lasting task, and returns a word of its command line.
fn occupy(local: &Local) -> String {
    // All such words have the same length: none is a prefix of another cluster's.
    let word = format!("31{:010}", local.child.id());
    let mut execute = Command::new(binary())
        .args([
            "execute",
            "--resources=cpus:0.1;mem:32",
            &format!("--master={}", local.master),
        ])
        .arg(format!("--command=sleep {word} & exec sleep {word}"))
        .stderr(Stdio::null())
        .spawn()
        .expect("meseta runs");
    wait::eventually("the task runs", Duration::from_secs(20), || {
        let sleeps = kernel::processes_like(&format!("sleep {word}"));
        let real = sleeps.iter().filter(|pid| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == "sleep")
        });
        (real.count() == 2).then_some(())
    });
    // The verb itself is not under test; its task outlives it until the framework is gone.
    execute.kill().expect("kill");
    execute.wait().expect("wait");
    word
}

/// Returns the remains of this cluster in the kernel.
fn leftovers(local: &Local, word: &str) -> Vec<String> {
    let dir = local.dir.path().display().to_string();
    let mut found: Vec<_> = kernel::processes_like(&dir)
        .iter()
        .map(|p| format!("process {p}"))
        .collect();
    found.extend(
        kernel::processes_like(&format!("sleep {word}"))
            .iter()
            .map(|p| format!("task {p}")),
    );
    found.extend(kernel::mounts_like(&dir));
    let groups = kernel::groups_below("meseta").into_iter().filter(|group| {
        // Another cluster of this machine may have groups there; this cluster's groups name its task's instance.
        std::fs::read_to_string(local.dir.path().join("agent-1/instance"))
            .is_ok_and(|name| group.to_string_lossy().contains(name.trim()))
    });
    found.extend(groups.map(|g| g.display().to_string()));
    found
}

fn only_machine_goes_down_and_up() {
    let mut local = start();
    let verb = |args: &[&str]| -> String {
        let output = Command::new(binary())
            .args(args)
            .arg(format!("--master={}", local.master))
            .output()
            .expect("meseta runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{args:?}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let agents = || -> Vec<Value> {
        let list = serde_json::from_str(&verb(&["agents", "--json"])).expect("JSON");
        let Value::Array(list) = list else {
            panic!("{list}");
        };
        list
    };
    let has_one = || {
        agents()
            .iter()
            .any(|agent| agent["active"] == Value::Bool(true))
    };
    wait::eventually("the agent is there", Duration::from_secs(20), || {
        has_one().then_some(())
    });
    let host = agents()[0]["hostname"].as_str().expect("a name").to_owned();
    verb(&["maintenance", "schedule", &host, "--duration=1hrs"]);
    let shown = verb(&["maintenance"]);
    assert!(
        shown.contains("FROM") && shown.contains("Z  1hrs"),
        "when it begins and how long it lasts: {shown}"
    );
    verb(&["maintenance", "down", &host]);
    wait::eventually("the agent is gone", Duration::from_secs(20), || {
        agents().is_empty().then_some(())
    });
    assert!(
        local.child.try_wait().expect("wait").is_none(),
        "the cluster goes on"
    );
    verb(&["maintenance", "up", &host]);
    wait::eventually("the agent is back", Duration::from_secs(30), || {
        has_one().then_some(())
    });
    local.interrupt();
}

pub(super) fn ctrl_c_leaves_nothing() {
    let mut local = start();
    let word = occupy(&local);
    let mut stderr = BufReader::new(local.child.stderr.take().expect("a pipe"));
    let mut said = String::new();
    // The message comes once everything runs, the scheduler last.
    while !said.contains("meseta execute") && !said.contains("execute --master") {
        let bytes = stderr.read_line(&mut said).expect("text");
        assert!(bytes > 0, "no next command: {said}");
    }
    let status = local.interrupt();
    stderr.read_to_string(&mut said).expect("text");
    assert!(status.success(), "{status}: {said}");
    assert_eq!(leftovers(&local, &word), Vec::<String>::new(), "{said}");
}

fn killed_local_ends_its_daemons() {
    let mut local = start();
    let word = occupy(&local);
    local.child.kill().expect("kill");
    wait::eventually(
        "the daemons and tasks end by themselves",
        Duration::from_secs(20),
        || leftovers(&local, &word).is_empty().then_some(()),
    );
}

pub(super) fn used_port_is_reported() {
    let taken = std::net::TcpListener::bind((loopback(), 0)).expect("a port");
    let address = taken.local_addr().expect("an address");
    let port = address.port();
    let dir = tempfile::tempdir().expect("a directory");
    let output = Command::new(binary())
        .args(["local", &format!("--port={port}"), "--agent_port=0"])
        .arg(format!("--work_dir={}", dir.path().display()))
        .output()
        .expect("meseta runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains(&format!("{address} is in use")) && said.contains("these are free: --port="),
        "{said}"
    );
}

pub(super) fn three_masters_reelect_after_kill() {
    let mut local = start_with(&["--masters=3", "--agents=2"], "master-1");
    let names = ["master-1", "master-2", "master-3"];
    let addresses = names.map(|name| local.address_of(name));
    let role = |index: usize| {
        let answer = http::try_get(&format!("http://{}/leader", addresses[index])).ok();
        let role = answer.and_then(|answer| answer.json()["role"].as_str().map(str::to_owned));
        role.unwrap_or_default()
    };
    let leader = wait::eventually("one leads", Duration::from_secs(20), || {
        (0..names.len()).find(|index| role(*index) == "leading")
    });
    // The scheduler starts last: daemons that end before are not started again.
    local.address_of("scheduler");
    for name in [names[leader], "agent-2"] {
        let dir = local.dir.path().join(name);
        let pids = kernel::processes_like(&format!("--work_dir={}", dir.display()));
        let pid = pids.iter().min().expect("a daemon, and launchers after it");
        kernel::kill(*pid, Signal::SIGKILL);
    }
    // The returning master may win the next election.
    wait::eventually("it is back, and one leads", Duration::from_secs(40), || {
        let mut roles = [0, 1, 2].map(role);
        roles.sort();
        (roles == ["following", "following", "leading"]).then_some(())
    });
    wait::eventually("both agents are back", Duration::from_secs(40), || {
        let leader = (0..names.len()).find(|index| role(*index) == "leading")?;
        let url = format!("http://{}/slaves", addresses[leader]);
        let answer = http::try_get(&url).ok()?;
        (answer.status == 200).then_some(())?;
        let agents = answer.json()["slaves"].clone();
        let is_active = |agent: &Value| agent["active"] == true;
        let active = agents.as_array()?.iter().filter(|one| is_active(one));
        (active.count() == 2).then_some(())
    });
    let status = local.interrupt();
    assert!(status.success(), "{status}");
    assert_eq!(leftovers(&local, "no task"), Vec::<String>::new());
}

fn several_masters_require_etcd() {
    let dir = tempfile::tempdir().expect("a directory");
    let output = Command::new(binary())
        .args(["local", "--masters=2", "--port=0", "--agent_port=0"])
        .arg(format!("--work_dir={}", dir.path().display()))
        .env("PATH", dir.path())
        .output()
        .expect("meseta runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("apt-get install etcd-server"), "{said}");
}

fn demo_shows_racks_and_teams() {
    let mut local = start_with(&["--demo", "--agents=2"], "master");
    let list = |path: &str, list: &str| -> Vec<Value> {
        let answer = http::try_get(&format!("http://{}{path}", local.master)).ok();
        let body = answer.map(|answer| answer.json()).unwrap_or_default();
        body[list].as_array().cloned().unwrap_or_default()
    };
    wait::eventually("the service runs", Duration::from_secs(20), || {
        let tasks = list("/tasks", "tasks");
        let runs = |task: &Value| {
            task["name"] == "website" && task["state"] == "TASK_RUNNING" && task["role"] == "shop"
        };
        tasks.iter().any(runs).then_some(())
    });
    // The service needs only one of them.
    wait::eventually("both racks are there", Duration::from_secs(20), || {
        let mut racks: Vec<_> = list("/slaves", "slaves")
            .iter()
            .filter_map(|agent| agent["attributes"]["rack"].as_str().map(str::to_owned))
            .collect();
        racks.sort();
        (racks == ["r1", "r2"]).then_some(())
    });
    let roles = list("/roles", "roles");
    let weight = |name: &str| {
        let role = roles.iter().find(|role| role["name"] == name);
        role.and_then(|role| role["weight"].as_f64())
    };
    assert_eq!((weight("shop"), weight("science")), (Some(2.0), Some(1.0)));
    // The batch job exists, whether or not this machine is idle enough for oversubscription.
    wait::eventually("the batch job asks", Duration::from_secs(20), || {
        let frameworks = list("/frameworks", "frameworks");
        let is_batch = |one: &Value| one["name"] == "meseta execute: simulation";
        frameworks.iter().any(is_batch).then_some(())
    });
    assert!(local.interrupt().success());
    assert_eq!(leftovers(&local, "no task"), Vec::<String>::new());
}
