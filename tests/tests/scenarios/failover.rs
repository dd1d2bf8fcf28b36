//! Several masters on etcd: one leads, another takes over, and no acknowledged write is lost.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_tests::daemon::Daemon;
use meseta_tests::framework::{Encoding, framework_info};
use meseta_tests::masters::{Etcd, FAILOVER_LIMIT, Masters};
use meseta_tests::proxy::Proxy;
use meseta_tests::wait::{eventually, holds};
use meseta_tests::{Framework, Missing, http, kernel, unless_installed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

meseta_tests::scenarios! {
    without_etcd:
        killed_leader_is_replaced,
        paused_leader_shows_nothing_and_ends,
        agent_leaves_paused_leader,
        leader_survives_etcd_outage,
        slow_etcd_loses_no_write,
        stopped_leader_is_replaced_at_once,
        followers_send_clients_to_the_leader,
        registry_moves_between_file_and_etcd;
}

pub(super) fn without_etcd() -> Missing {
    unless_installed("etcd")
}

fn weights(url: &str, role: &str, weight: f64) -> http::Answer {
    let body = json!([{"role": role, "weight": weight}]).to_string();
    http::put(&format!("{url}/weights"), &body)
}

/// Returns the weights of the roles, by name.
fn weights_of(url: &str) -> Vec<(String, f64)> {
    let list = http::get(&format!("{url}/weights")).json();
    let weight = |entry: &Value| {
        let role = entry["role"].as_str().unwrap_or_default().to_owned();
        (role, entry["weight"].as_f64().unwrap_or_default())
    };
    let mut all: Vec<_> = list.as_array().into_iter().flatten().map(weight).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// An agent, which is dropped with its groups.
pub(super) struct Node {
    pub(super) daemon: Daemon,
    flags: Vec<String>,
    work_dir: PathBuf,
    cgroups_root: String,
}

impl Node {
    /// Restarts the killed agent.
    pub(super) fn restart(&mut self) {
        self.daemon = Daemon::start("agent", &self.work_dir, &self.flags);
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.daemon.end(Duration::from_secs(20));
        kernel::remove_groups(&self.cgroups_root);
    }
}

/// Starts an agent with this `--master` flag.
pub(super) fn start_agent(masters: &Masters, told: &str) -> Node {
    let dir: &Path = masters.dir.path();
    // The root is for this agent alone: parallel scenarios remove all groups below theirs.
    let name = dir.file_name().expect("a folder").display();
    let cgroups_root = format!("meseta-test-{}-{name}", std::process::id());
    let flags = vec![
        "--port=0".to_owned(),
        format!("--master={told}"),
        format!("--runtime_dir={}", dir.join("run").display()),
        format!("--cgroups_root={cgroups_root}"),
        "--resources=cpus:2;mem:512;disk:100".to_owned(),
        "--shutdown_tasks_on_exit".to_owned(),
    ];
    let work_dir = dir.join("agent");
    Node {
        daemon: Daemon::start("agent", &work_dir, &flags),
        flags,
        work_dir,
        cgroups_root,
    }
}

pub(super) fn subscribe(url: &str, info: &Value) -> Framework {
    Framework::subscribe(&format!("{url}/api/v1/scheduler"), Encoding::Json, info)
}

/// Subscribes the framework again, by its id.
fn subscribe_again(url: &str, framework: &Framework) -> Framework {
    let mut info = framework_info("web");
    info["id"] = json!({"value": framework.id});
    subscribe(url, &info)
}

/// Returns the states of the framework's tasks.
pub(super) fn task_states(url: &str) -> Vec<String> {
    let tasks = http::get(&format!("{url}/tasks")).json();
    let tasks = tasks["tasks"].as_array().cloned().unwrap_or_default();
    let state = |task: &Value| task["state"].as_str().unwrap_or_default().to_owned();
    tasks.iter().map(state).collect()
}

pub(super) fn killed_leader_is_replaced() {
    let mut masters = Masters::start(3, &[]);
    let _agent = start_agent(&masters, &masters.addresses());
    let leader = masters.leader();
    let url = masters.all[leader].url.clone();
    let mut framework = subscribe(&url, &framework_info("web"));
    let offer = framework.offer();
    framework.launch_task(&offer, "t1", "sleep 1000", &[("cpus", 0.1), ("mem", 32.0)]);
    let running = framework.until_state("t1", "TASK_RUNNING");
    framework.acknowledge(&running);
    assert_eq!(weights(&url, "web", 2.5).status, 200);
    let epoch = epoch_of(&url);

    masters.all[leader].kill();
    let next = masters.leader_but(Some(leader));
    let url = masters.all[next].url.clone();
    assert_eq!(weights_of(&url), [("web".to_owned(), 2.5)]);
    assert!(epoch_of(&url) > epoch);
    let mut framework = subscribe_again(&url, &framework);
    eventually("the task is known", FAILOVER_LIMIT, || {
        (task_states(&url) == ["TASK_RUNNING"]).then_some(())
    });
    framework.accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": [
        {"task_id": {"value": "t1"}}
    ]}}));
    // The agent may repeat an update that was acknowledged to the earlier leader.
    let is_answer = |event: &Value| event["update"]["status"]["reason"] == "REASON_RECONCILIATION";
    let told = framework.wait_until("an answer", is_answer)["update"]["status"].clone();
    assert_eq!(told["task_id"]["value"], "t1", "{told}");
    assert_eq!(told["state"], "TASK_RUNNING", "{told}");
    framework.offer();
    // The killed master follows when it is back.
    masters.restart(leader);
    eventually("it follows", FAILOVER_LIMIT, || {
        (masters.role(leader) == "following").then_some(())
    });
}

pub(super) fn epoch_of(url: &str) -> u64 {
    let page = http::get(&format!("{url}/metrics")).text();
    let line = page
        .lines()
        .find(|line| line.starts_with("meseta_master_registry_epoch "));
    let epoch = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    epoch.expect("the epoch is among the metrics")
}

fn paused_leader_shows_nothing_and_ends() {
    let mut masters = Masters::start(2, &[]);
    let leader = masters.leader();
    let url = masters.all[leader].url.clone();
    let pid = Pid::from_raw(masters.all[leader].pid());
    let mut framework = subscribe(&url, &framework_info("web"));

    kill(pid, Signal::SIGSTOP).expect("it stands still");
    let next = masters.leader_but(Some(leader));
    let next_url = masters.all[next].url.clone();
    assert_eq!(weights(&next_url, "web", 3.0).status, 200);
    // Earlier events are read first.
    while framework
        .within(Duration::from_millis(100), &|_| true)
        .is_ok()
    {}
    kill(pid, Signal::SIGCONT).expect("it goes on");
    eventually("the former leader ends", FAILOVER_LIMIT, || {
        masters.all[leader].has_ended().then_some(())
    });
    let log = masters.all[leader].log_text();
    assert!(log.contains("this master no longer leads"), "{log}");
    // Not even a heartbeat came, although one was due on its stream.
    let shown = framework.within(FAILOVER_LIMIT, &|_| true);
    assert_eq!(shown, Err("the stream has ended"));
    assert_eq!(weights_of(&next_url), [("web".to_owned(), 3.0)]);
}

/// Returns the number of agents connected to the master of this URL.
fn active_agents(url: &str) -> usize {
    let page = http::get(&format!("{url}/slaves")).json();
    let agents = page["slaves"].as_array().cloned().unwrap_or_default();
    agents.iter().filter(|one| one["active"] == true).count()
}

fn agent_leaves_paused_leader() {
    /// Without a question to the masters the agent gives up the connection after 40 s.
    const LIMIT: Duration = Duration::from_secs(33);
    let masters = Masters::start(2, &[]);
    let leader = masters.leader();
    let url = masters.all[leader].url.clone();
    let _agent = start_agent(&masters, &masters.addresses());
    eventually("the agent is registered", FAILOVER_LIMIT, || {
        (active_agents(&url) == 1).then_some(())
    });
    let pid = Pid::from_raw(masters.all[leader].pid());
    kill(pid, Signal::SIGSTOP).expect("it stands still");
    let stopped = std::time::Instant::now();
    let next = masters.leader_but(Some(leader));
    let next = masters.all[next].url.clone();
    let left = LIMIT.saturating_sub(stopped.elapsed());
    eventually("the agent has found the one that leads", left, || {
        (active_agents(&next) == 1).then_some(())
    });
}

fn leader_survives_etcd_outage() {
    let mut masters = Masters::start(1, &[]);
    let url = masters.all[0].url.clone();
    assert_eq!(weights(&url, "web", 2.0).status, 200);
    masters.etcd.kill();
    eventually("it is suspended", FAILOVER_LIMIT, || {
        (masters.role(0) == "suspended").then_some(())
    });
    let refused = weights(&url, "web", 9.0);
    assert_eq!(refused.status, 503, "{}", refused.text());
    assert!(
        refused.text().contains("accepts no changes"),
        "{}",
        refused.text()
    );
    let read = http::get(&format!("{url}/weights"));
    assert_eq!(read.status, 200);
    assert!(read.header("Meseta-Stale").is_some(), "{read:?}");
    masters.etcd.restart();
    eventually("it leads again", FAILOVER_LIMIT, || {
        (masters.role(0) == "leading").then_some(())
    });
    assert_eq!(weights_of(&url), [("web".to_owned(), 2.0)]);
    assert_eq!(weights(&url, "web", 4.0).status, 200);
    assert!(
        http::get(&format!("{url}/weights"))
            .header("Meseta-Stale")
            .is_none()
    );
}

/// Each answer takes a third of a second, and then the connections stall.
fn slow_etcd_loses_no_write() {
    let dir = TempDir::with_prefix("meseta-test-").expect("a directory");
    let etcd = Etcd::start(dir.path());
    let proxy = Proxy::new(etcd.url.trim_start_matches("http://"));
    let flags = [
        "--port=0".to_owned(),
        "--registry=etcd".to_owned(),
        format!("--etcd_endpoints=http://{}", proxy.address),
        "--etcd_lease_ttl=6secs".to_owned(),
    ];
    let start = || Daemon::start("master", &dir.path().join("master"), &flags);
    let leads = |master: &Daemon| {
        eventually("it leads", FAILOVER_LIMIT, || {
            let answer = http::try_get(&format!("{}/leader", master.url)).ok()?;
            (answer.json()["role"] == "leading").then_some(())
        });
    };
    let mut master = start();
    leads(&master);
    proxy.delay(Duration::from_millis(300));
    for weight in 2..6 {
        let answer = weights(&master.url, "web", f64::from(weight));
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    proxy.hold();
    // It reconnects in time, or ends as a leader without its lease.
    let is_kept = eventually("it goes on, or ends", FAILOVER_LIMIT, || {
        let body = json!([{"role": "web", "weight": 9.0}]).to_string();
        let url = format!("{}/weights", master.url);
        match http::put_within(Duration::from_secs(5), &url, &body) {
            Ok(answer) if answer.status == 200 => Some(true),
            _ => master.has_ended().then_some(false),
        }
    });
    eprintln!(
        "it {} when etcd fell silent",
        if is_kept { "went on" } else { "ended" }
    );
    proxy.delay(Duration::ZERO);
    if !is_kept {
        master = start();
    }
    leads(&master);
    // Messages that were delayed all the while come too late to change anything.
    proxy.release();
    let found = weights_of(&master.url);
    let expected: &[f64] = if is_kept { &[9.0] } else { &[5.0, 9.0] };
    assert!(
        expected
            .iter()
            .any(|weight| found == [("web".to_owned(), *weight)]),
        "{found:?}"
    );
    assert_eq!(weights(&master.url, "web", 11.0).status, 200);
    assert_eq!(weights_of(&master.url), [("web".to_owned(), 11.0)]);
}

fn stopped_leader_is_replaced_at_once() {
    let mut masters = Masters::start(2, &["--etcd_lease_ttl=60secs"]);
    let leader = masters.leader();
    let status = masters.all[leader].terminate(Duration::from_secs(20));
    assert!(status.success(), "{status}");
    // The takeover comes long before the end of the lease.
    masters.leader_but(Some(leader));
}

pub(super) fn followers_send_clients_to_the_leader() {
    let masters = Masters::start(2, &["--etcd_lease_ttl=10secs"]);
    let leader = masters.leader();
    let follower = 1 - leader;
    let (leads, follows) = (&masters.all[leader], &masters.all[follower]);
    let moved = http::get(&format!("{}/state?order=asc", follows.url));
    assert_eq!(moved.status, 307);
    let location = format!("//{}/state?order=asc", leads.address());
    assert_eq!(moved.header("Location"), Some(location.as_str()));
    let redirect = http::get(&format!("{}/redirect", follows.url));
    let location = format!("//{}", leads.address());
    assert_eq!(redirect.header("Location"), Some(location.as_str()));
    for path in ["health", "version", "metrics", "flags", "metrics/snapshot"] {
        let answer = http::get(&format!("{}/{path}", follows.url));
        assert_eq!(answer.status, 200, "{path}");
    }
    let elected = |daemon: &Daemon| {
        let page = http::get(&format!("{}/metrics/snapshot", daemon.url)).json();
        page["master/elected"].as_f64()
    };
    assert_eq!((elected(leads), elected(follows)), (Some(1.0), Some(0.0)));
    // The wait is longer than a lease without renewal.
    let has_moved = || masters.role(leader) != "leading" || masters.role(follower) != "following";
    assert!(
        !holds(Duration::from_secs(12), has_moved),
        "the leadership moved"
    );
}

/// Returns the output of `meseta registry`, or its error message.
fn registry(masters: &Masters, flags: &[&str]) -> Result<String, String> {
    let mut command = std::process::Command::new(meseta_tests::daemon::binary());
    command.arg("registry").args(flags);
    command.arg(format!("--etcd_endpoints={}", masters.etcd.url));
    let output = command.output().expect("meseta runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(text(&output.stderr))
    }
}

fn registry_moves_between_file_and_etcd() {
    const ETCD: &str = "--registry=etcd";
    // The lease survives a pause of the machine: the test counts the epochs.
    let mut masters = Masters::start(1, &["--cluster=one", "--etcd_lease_ttl=60secs"]);
    let url = masters.all[0].url.clone();
    assert_eq!(weights(&url, "web", 2.5).status, 200);
    let dir = masters.dir.path().join("embedded");
    let file = masters.dir.path().join("registry.json");
    let (work_dir, file) = (
        format!("--work_dir={}", dir.display()),
        file.display().to_string(),
    );
    let migrate = ["migrate", "--from=etcd", "--to=embedded", &work_dir];

    // The registry is read while the master leads, and no data is written.
    let said = registry(&masters, &["check", ETCD]).expect("it is sound");
    assert!(said.contains("cluster       one\n"), "{said}");
    assert!(said.contains("leader        the master"), "{said}");
    let exported = registry(&masters, &["export", ETCD]).expect("it is exported");
    std::fs::write(&file, &exported).expect("written");
    let why = registry(&masters, &["import", &file, ETCD]).unwrap_err();
    assert!(
        why.contains("stop all masters of this cluster first"),
        "{why}"
    );
    assert_eq!(masters.role(0), "leading");
    masters.all[0].end(Duration::from_secs(20));

    let other = "--etcd_prefix=/other";
    registry(&masters, &["import", &file, ETCD, other]).expect("it is imported");
    let again = registry(&masters, &["export", ETCD, other]).expect("it is exported");
    assert_eq!(again, exported);

    let said = registry(&masters, &migrate).expect("it is moved");
    assert!(said.contains("of epoch 2"), "{said}");
    let said = registry(&masters, &["check", &work_dir]).expect("it is sound");
    assert!(said.contains("weights       1\n"), "{said}");
    let alone = Daemon::start("master", &dir, &["--port=0".to_owned()]);
    assert_eq!(weights_of(&alone.url), [("web".to_owned(), 2.5)]);
    assert_eq!(epoch_of(&alone.url), 3);
    let back = [
        "migrate",
        "--from=embedded",
        "--to=etcd",
        &work_dir,
        "--etcd_prefix=/back",
        "--cluster=two",
    ];
    let why = registry(&masters, &back).unwrap_err();
    assert!(why.contains("in use"), "{why}");
    drop(alone);
    registry(&masters, &back).expect("it is moved back");
    let said = registry(&masters, &["check", ETCD, "--etcd_prefix=/back"]).expect("it is sound");
    assert!(
        said.contains("cluster       two\nleader        none\nepoch         4\n"),
        "{said}"
    );
}
