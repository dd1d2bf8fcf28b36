//! A disk, or a foreign file system, does not answer: kills continue, other tasks are not affected, the agent names the
//! fault, and all continues by itself once there are answers again.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use meseta_tests::daemon::Daemon;
use meseta_tests::dead_mount::{DeadMount, unless_fuse, unless_nfs};
use meseta_tests::framework::task;
use meseta_tests::small_disk::{Frozen, SmallDisk, unless_freezing};
use meseta_tests::{Cluster, Framework, Missing, Setup, http, kernel, unless_root, wait};
use serde_json::{Value, json};

use crate::enforcement::standing_offer;

meseta_tests::scenarios! {
    unless_freezing:
        frozen_disk_delays_no_kill,
        frozen_registry_ends_writes_with_error;
    unless_dead_mount:
        dead_mount_affects_own_users_only = || mount_affects_its_own_users_alone(DeadMount::fuse),
        start_on_dead_mount_obeys_sigterm,
        recovery_on_dead_mount_obeys_sigterm,
        master_start_on_dead_mount_ends;
    unless_nfs:
        dead_nfs_affects_own_users_only = || mount_affects_its_own_users_alone(DeadMount::nfs);
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);
/// The time limit of a report: a disk is reported after half a minute, and checked within ten seconds before that.
const REPORT_MAX: Duration = Duration::from_secs(90);
/// The time limit of a kill: the default grace of three seconds, and two more.
const KILL_MAX: Duration = Duration::from_secs(5);

fn unless_dead_mount() -> Missing {
    unless_root().or_else(unless_fuse)
}

/// Runs a task, and returns its process with the start time.
fn run(framework: &mut Framework, id: &str, command: &str) -> (i32, u64) {
    let offer = standing_offer(framework);
    let status = framework.run_task(&offer, id, command, SMALL);
    let pid = status["container_status"]["executor_pid"].as_i64();
    let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
    (pid, kernel::start_time(pid).expect("it lives"))
}

fn lives((pid, start): (i32, u64)) -> bool {
    kernel::start_time(pid) == Some(start)
}

fn until_gone(what: &str, process: (i32, u64)) {
    wait::eventually(what, KILL_MAX, || (!lives(process)).then_some(()));
}

fn health(cluster: &Cluster) -> u16 {
    http::get(&format!("{}/health", cluster.agent().url)).status
}

fn metric(cluster: &Cluster, name: &str) -> f64 {
    let page = cluster.agent().page("/metrics").text();
    let value = page.lines().find_map(|line| {
        let value = line.strip_prefix(name)?.strip_prefix(' ')?;
        value.parse().ok()
    });
    value.unwrap_or_else(|| panic!("no {name}"))
}

fn until_health(cluster: &Cluster, status: u16) {
    wait::eventually("the agent tells of its disk", REPORT_MAX, || {
        (health(cluster) == status).then_some(())
    });
}

fn active_agents(cluster: &Cluster) -> usize {
    let page = cluster.master.page("/slaves").json();
    page["slaves"].as_array().map_or(0, Vec::len)
}

fn frozen_disk_delays_no_kill() {
    let cluster = Cluster::start(Setup {
        agent_disk: Some(SmallDisk::Ext4 {
            mib: 64,
            inodes: 4096,
        }),
        runtime_dir_apart: true,
        master_flags: vec![
            "--agent_ping_timeout=1secs".to_owned(),
            "--max_agent_ping_timeouts=5".to_owned(),
        ],
        agent_flags: vec![
            "--resources=cpus:4;mem:4096;disk:4096".to_owned(),
            "--disk_timeout=50secs".to_owned(),
        ],
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let steady = run(&mut framework, "steady", "exec sleep 600");
    let printing = "while :; do echo a line of output; sleep 0.02; done";
    let plain = run(&mut framework, "plain", printing);
    let stubborn = run(
        &mut framework,
        "stubborn",
        &format!("trap '' TERM; {printing}"),
    );
    let offer = standing_offer(&mut framework);

    let frozen = Frozen::freeze(&cluster.agent_dir(0));
    // Their supervisors have output to write.
    for process in [plain, stubborn] {
        assert!(lives(process));
    }
    framework.kill("plain");
    until_gone("a task ends at SIGTERM", plain);
    framework.kill("stubborn");
    until_gone("a task that ignores SIGTERM ends after its grace", stubborn);

    until_health(&cluster, 503);
    assert!(metric(&cluster, "meseta_agent_disk_silent_seconds") >= 30.0);
    assert!(metric(&cluster, "meseta_agent_disk_writable") < 0.5);
    let told = "the disk of the work directory does not answer";
    assert!(cluster.agent().log_text().contains(told));
    framework.wait_until("the offer is rescinded", |event| {
        event["type"] == "RESCIND" && event["rescind"]["offer_id"] == offer["id"]
    });
    wait::eventually("the agent is unreachable", PATIENCE, || {
        (active_agents(&cluster) == 0).then_some(())
    });
    assert!(lives(steady), "nothing happens to a task for its disk");

    drop(frozen);
    until_health(&cluster, 200);
    cluster.wait_for_agents(1);
    for id in ["plain", "stubborn"] {
        framework.until_state(id, "TASK_KILLED");
    }
    assert!(lives(steady), "another process, or none");
    let offer = standing_offer(&mut framework);
    framework.launch_task(&offer, "new", "true", SMALL);
    framework.until_state("new", "TASK_FINISHED");
    framework.kill("steady");
    framework.until_state("steady", "TASK_KILLED");
}

/// Changes the weight of a role, and returns the status and the answer.
fn set_weight(master: &Daemon) -> (u16, String) {
    let url = format!("{}/weights", master.url);
    let body = r#"[{"role": "ads", "weight": 2.0}]"#;
    let answer = http::put_within(REPORT_MAX, &url, body).expect("an answer");
    (answer.status, answer.text())
}

fn frozen_registry_ends_writes_with_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let disk = dir.path().join("master");
    SmallDisk::Ext4 {
        mib: 64,
        inodes: 4096,
    }
    .mount_at(&disk);
    let _mounted = Mounted(disk.clone());
    let flags = ["--ip=127.0.0.1".to_owned(), "--port=0".to_owned()];
    let mut master = Daemon::start("master", &disk, &flags);
    assert_eq!(set_weight(&master).0, 200);
    let health = |master: &Daemon| http::get(&format!("{}/health", master.url));

    let frozen = Frozen::freeze(&disk);
    // The change waits for the disk until the disk is known not to answer.
    let (status, said) = set_weight(&master);
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("not known yet"), "{said}");
    let sick = health(&master);
    assert_eq!(sick.status, 503);
    assert!(
        sick.text().contains("disk of the registry"),
        "{}",
        sick.text()
    );
    let (status, said) = set_weight(&master);
    assert_eq!(status, 503, "{said}");
    assert!(said.contains("accepts no changes at the moment"), "{said}");
    for page in ["/state", "/weights", "/metrics", "/leader", "/roles"] {
        master.page(page);
    }

    drop(frozen);
    wait::eventually("the master is well again", REPORT_MAX, || {
        (health(&master).status == 200).then_some(())
    });
    assert_eq!(set_weight(&master).0, 200);
    assert!(
        master
            .log_text()
            .contains("the disk of the registry answers again")
    );
    assert!(master.terminate(PATIENCE).success());
}

/// A file system that the drop unmounts.
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Returns a task that has a path of the machine at `mounted`.
fn with_volume(offer: &Value, id: &str, host_path: &Path) -> Value {
    let mut task = task(offer, id, "exec sleep 600", SMALL);
    task["container"] = json!({"type": "MESOS", "volumes": [{
        "mode": "RO", "container_path": "mounted", "host_path": host_path}]});
    task
}

/// Returns a task that fetches a file of the machine.
fn with_file(offer: &Value, id: &str, file: &Path) -> Value {
    let mut task = task(offer, id, "true", SMALL);
    task["command"]["uris"] = json!([{"value": format!("file://{}", file.display())}]);
    task
}

/// The agent reports what its start waits for, and ends when it is told to.
fn assert_start_waits_and_ends(agent: &mut Daemon, doing: &str) {
    wait::eventually("the log names the disk", REPORT_MAX, || {
        let text = "the start waits for the disk of the work directory";
        let log = agent.log_text();
        let is_report = |line: &str| line.contains(text) && line.contains(doing);
        log.lines().any(is_report).then_some(())
    });
    let status = agent.terminate(PATIENCE);
    assert!(status.success(), "{status}");
}

fn start_on_dead_mount_obeys_sigterm() {
    let dir = tempfile::tempdir().expect("a directory");
    let work_dir = dir.path().join("agent");
    let _dead = DeadMount::fuse(&work_dir);
    let runtime_dir = dir.path().join("run");
    let flags = [
        "--port=0".to_owned(),
        "--ip=127.0.0.1".to_owned(),
        "--master=127.0.0.1:1".to_owned(),
        format!("--runtime_dir={}", runtime_dir.display()),
    ];
    let mut agent = Daemon::spawn_at("", &[], "agent", &work_dir, &flags);
    assert_start_waits_and_ends(&mut agent, "lock the work directory");
}

/// The agent neither reported that its start hung after the records were read, nor ended on SIGTERM.
fn recovery_on_dead_mount_obeys_sigterm() {
    let mut cluster = Cluster::default();
    let runtime_dir = cluster.agent_dir(0).join("run");
    let folders = std::fs::read_dir(&runtime_dir).expect("a directory");
    let mut folders = folders
        .flatten()
        .map(|entry| entry.path().join("containers"));
    let containers = folders.find(|folder| folder.is_dir()).expect("a directory");
    cluster.agents[0].kill();
    let _dead = DeadMount::fuse(&containers.join("left"));
    cluster.respawn_agent(0);
    assert_start_waits_and_ends(&mut cluster.agents[0], "recover containers");
}

fn master_start_on_dead_mount_ends() {
    let flags = ["--ip=127.0.0.1", "--port=0"];
    start_on_dead_mount_ends("master", &flags);
}

fn start_on_dead_mount_ends(daemon: &str, flags: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let work_dir = dir.path().join("work");
    let _dead = DeadMount::fuse(&work_dir);
    let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    let mut daemon = Daemon::spawn_at("", &[], daemon, &work_dir, &flags);
    wait::eventually("the log names the disk", REPORT_MAX, || {
        let text = "the start waits for the disk of the work directory";
        daemon.log_text().contains(text).then_some(())
    });
    let status = daemon.terminate(PATIENCE);
    assert!(status.success(), "{status}");
}

fn mount_affects_its_own_users_alone(mount: fn(&Path) -> DeadMount) {
    let mut cluster = Cluster::start(Setup {
        agent_flags: vec![
            "--resources=cpus:8;mem:8192;disk:4096".to_owned(),
            "--fetcher_stall_timeout=12secs".to_owned(),
        ],
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let steady = run(&mut framework, "steady", "exec sleep 600");
    let dir = cluster.dir.path().join("dead");
    let dead = mount(&dir);
    let (root, below) = (dir.clone(), dir.join("below"));

    let launch = |framework: &mut Framework, make: &dyn Fn(&Value) -> Value| {
        let offer = standing_offer(framework);
        framework.launch(&offer, &[make(&offer)]);
    };
    launch(&mut framework, &|offer| {
        with_file(offer, "unwanted", &below)
    });
    framework.kill("unwanted");
    framework.until_state("unwanted", "TASK_KILLED");
    launch(&mut framework, &|offer| with_file(offer, "fetch", &below));
    launch(&mut framework, &|offer| {
        with_volume(offer, "volume", &below)
    });
    for page in ["/metrics", "/metrics/snapshot", "/state", "/containers"] {
        cluster.agent().page(page);
    }
    let ordinary = run(&mut framework, "ordinary", "exec sleep 600");
    for (id, reason) in [
        ("fetch", "--fetcher_stall_timeout"),
        ("volume", "does not answer"),
    ] {
        let status = framework.until_state(id, "TASK_FAILED");
        let message = status["message"].as_str().unwrap_or_default();
        assert!(message.contains(reason), "{message}");
    }
    // A file system mounted as a whole needs no answer before a program looks into it.
    launch(&mut framework, &|offer| {
        let mut task = with_volume(offer, "user", &root);
        task["command"]["value"] = json!("ls mounted; exec sleep 600");
        task
    });
    framework.until_state("user", "TASK_RUNNING");
    for page in ["/metrics", "/metrics/snapshot", "/state", "/containers"] {
        cluster.agent().page(page);
    }
    framework.kill("user");
    framework.until_state("user", "TASK_KILLED");
    assert!(lives(steady) && lives(ordinary), "others are not touched");
    // Threads of the agent still wait for the file system.
    cluster.agents[0].terminate(PATIENCE);
    drop(dead);
}
