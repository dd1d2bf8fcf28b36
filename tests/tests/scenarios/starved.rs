//! The agent starts again without room on its disk, or with hardly any descriptors: every task continues, and each update
//! is correct once there is room.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use meseta_tests::daemon::free_port;
use meseta_tests::framework::task;
use meseta_tests::small_disk::{Filler, SmallDisk};
use meseta_tests::{
    Cluster, Framework, Missing, Setup, http, kernel, unless_installed, unless_root, wait,
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

use crate::enforcement::is_container;

meseta_tests::scenarios! {
    unless_root:
        start_on_full_disk_loses_nothing,
        end_on_full_disk_keeps_reason,
        full_disk_master_acknowledges_nothing_lost;
    unless_prlimit:
        start_with_few_descriptors_loses_nothing,
        excess_launches_fail_with_reason;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two checks whether clients are still wanted.
const AWHILE_MS: u8 = 100;

fn unless_prlimit() -> Missing {
    unless_root().or_else(|| unless_installed("prlimit"))
}

/// A running task, identified by its process and start time.
#[derive(Debug)]
struct Running {
    id: String,
    pid: i32,
    born: u64,
}

impl Running {
    fn is_alive(&self) -> bool {
        kernel::start_time(self.pid) == Some(self.born)
    }
}

/// Runs tasks with these names and commands.
fn run(framework: &mut Framework, tasks: &[(String, String)]) -> Vec<Running> {
    let offer = framework.offer();
    let infos: Vec<Value> = tasks
        .iter()
        .map(|(id, command)| task(&offer, id, command, SMALL))
        .collect();
    framework.launch(&offer, &infos);
    let running = tasks.iter().map(|(id, _)| {
        let status = framework.until_state(id, "TASK_RUNNING");
        let pid = status["container_status"]["executor_pid"].as_i64();
        let pid = i32::try_from(pid.expect("a pid")).expect("a pid");
        Running {
            id: id.clone(),
            pid,
            born: kernel::start_time(pid).expect("it lives"),
        }
    });
    running.collect()
}

/// Returns a task that exits with this code once permitted.
fn waiting(cluster: &Cluster, number: usize, code: usize) -> (String, String) {
    let go = go(cluster, number);
    let command = format!(
        "until [ -e {} ]; do sleep 0.2; done; exit {code}",
        go.display()
    );
    (format!("t{number}"), command)
}

fn go(cluster: &Cluster, number: usize) -> PathBuf {
    cluster.dir.path().join(format!("go-{number}"))
}

fn may_end(cluster: &Cluster, number: usize) {
    std::fs::write(go(cluster, number), "").expect("written");
}

fn sleeper(number: usize) -> (String, String) {
    (format!("s{number}"), "exec sleep 600".to_owned())
}

fn expect_exit(framework: &mut Framework, id: &str, code: usize) {
    let state = if code == 0 {
        "TASK_FINISHED"
    } else {
        "TASK_FAILED"
    };
    let status = framework.until_state(id, state);
    let message = status["message"].as_str().unwrap_or_default();
    assert_eq!(
        message,
        format!("Command exited with status {code}"),
        "{status:#}"
    );
}

/// Fills the disk of the first agent.
fn full(cluster: &Cluster) -> Filler {
    let mut filler = Filler::new(&cluster.agent_dir(0));
    filler.fill_bytes();
    filler
}

fn start_on_full_disk_loses_nothing() {
    let mut cluster = Cluster::start(Setup {
        agent_disk: Some(SmallDisk::Tmpfs("size=32m")),
        agent_port: Some(free_port()),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let mut tasks: Vec<_> = (0..8)
        .map(|number| waiting(&cluster, number, number % 4))
        .collect();
    tasks.extend((0..2).map(sleeper));
    let running = run(&mut framework, &tasks);
    cluster.agents[0].kill();
    // The last record of one task is incomplete, and the address file must be written again.
    let torn = updates_of(&cluster, "t7");
    let mut log = File::options().append(true).open(torn).expect("a log");
    log.write_all(&[9, 0, 0]).expect("written");
    std::fs::remove_file(cluster.agent_dir(0).join("endpoint")).expect("removed");
    let mut filler = full(&cluster);
    for number in 0..4 {
        may_end(&cluster, number);
    }
    wait::eventually("four tasks have ended", PATIENCE, || {
        running[..4]
            .iter()
            .all(|task| !task.is_alive())
            .then_some(())
    });
    filler.fill_bytes();
    cluster.start_agent_unannounced(0);
    filler.fill_bytes();
    assert!(running[4..].iter().all(Running::is_alive), "{running:#?}");
    wait::eventually("it answers for its tasks", PATIENCE, || {
        let state = http::try_get(&format!("{}/state", cluster.agent().url)).ok()?;
        (state.status == 200).then_some(())
    });
    filler.remove();
    cluster.wait_for_agents(1);
    for (number, task) in running.iter().enumerate().take(4) {
        expect_exit(&mut framework, &task.id, number % 4);
    }
    wait::eventually("where it listens is said", PATIENCE, || {
        let said = std::fs::read_to_string(cluster.agent_dir(0).join("endpoint")).ok()?;
        (said.trim() == cluster.agent().url).then_some(())
    });
    for (number, task) in running.iter().enumerate().take(8).skip(4) {
        assert!(task.is_alive());
        may_end(&cluster, number);
        expect_exit(&mut framework, &task.id, number % 4);
    }
    for sleeper in ["s0", "s1"] {
        framework.kill(sleeper);
        framework.until_state(sleeper, "TASK_KILLED");
    }
}

/// Returns the agent's log of a task's updates.
fn updates_of(cluster: &Cluster, task: &str) -> PathBuf {
    let mut folders = vec![cluster.agent_dir(0).join("meta/slaves")];
    while let Some(folder) = folders.pop() {
        let found = folder.join(format!("tasks/{task}/task.updates"));
        if found.exists() {
            return found;
        }
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let inner = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.extend(inner.map(|entry| entry.path()));
    }
    panic!("nothing is written of {task}")
}

fn end_on_full_disk_keeps_reason() {
    let mut cluster = Cluster::start(Setup {
        agent_disk: Some(SmallDisk::Tmpfs("size=32m")),
        runtime_dir_apart: true,
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let (id, until) = waiting(&cluster, 0, 0);
    let hungry = "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}";
    let command = until.replace("exit 0", hungry);
    run(&mut framework, &[(id.clone(), command)]);
    let filler = full(&cluster);
    may_end(&cluster, 0);
    // The kernel's counters vanish with the groups.
    wait::eventually("the container is gone", PATIENCE, || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let has_ended = cluster.agent().log_text().contains("container ended");
        (has_ended && !groups.iter().any(|group| is_container(group))).then_some(())
    });
    cluster.agents[0].kill();
    filler.remove();
    cluster.restart_agent(0);
    let status = framework.until_state(&id, "TASK_FAILED");
    assert_eq!(
        status["reason"], "REASON_CONTAINER_LIMITATION_MEMORY",
        "{status:#}"
    );
}

/// Silent clients, as many connections as possible.
struct IdleClients {
    over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl IdleClients {
    fn at(port: u16, size: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let told = over.clone();
        let thread = std::thread::spawn(move || {
            let mut clients = Vec::new();
            while !told.load(Ordering::Relaxed) {
                while clients.len() < size
                    && let Ok(client) = TcpStream::connect(("127.0.0.1", port))
                {
                    clients.push(client);
                }
                // Rejected clients connect again.
                clients = kept(clients);
            }
        });
        Self {
            over,
            thread: Some(thread),
        }
    }
}

/// Returns the clients that are not rejected, as soon as some are, or after a while.
fn kept(clients: Vec<TcpStream>) -> Vec<TcpStream> {
    let mut polled: Vec<PollFd> = clients
        .iter()
        .map(|client| PollFd::new(client.as_fd(), PollFlags::POLLIN))
        .collect();
    let _ = poll(&mut polled, PollTimeout::from(AWHILE_MS));
    let has_ended: Vec<bool> = polled.iter().map(|one| one.any().unwrap_or(true)).collect();
    let all = clients.into_iter().zip(has_ended);
    all.filter(|(_, has_ended)| !has_ended)
        .map(|(client, _)| client)
        .collect()
}

impl Drop for IdleClients {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn start_with_few_descriptors_loses_nothing() {
    let port = free_port();
    let mut cluster = Cluster::start(Setup {
        agent_port: Some(port),
        agent_descriptors: Some(256),
        agent_flags: vec!["--resources=cpus:20;mem:8192;disk:4096".to_owned()],
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let mut tasks: Vec<_> = (0..8)
        .map(|number| waiting(&cluster, number, number % 4))
        .collect();
    tasks.extend((0..50).map(sleeper));
    // The launches come a few at a time, because each needs some descriptors while it lasts.
    let mut running = Vec::new();
    for some in tasks.chunks(8) {
        running.extend(run(&mut framework, some));
    }
    cluster.agents[0].kill();
    let crowd = IdleClients::at(port, 216);
    may_end(&cluster, 0);
    may_end(&cluster, 1);
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    // The updates come while the clients are there.
    for number in 0..4 {
        may_end(&cluster, number);
        expect_exit(&mut framework, &format!("t{number}"), number);
    }
    for number in 0..5 {
        let id = format!("s{number}");
        framework.kill(&id);
        framework.until_state(&id, "TASK_KILLED");
    }
    let alive = |task: &&Running| task.is_alive();
    assert_eq!(running.iter().filter(alive).count(), 58 - 9, "{running:#?}");
    drop(crowd);
    for number in 4..8 {
        may_end(&cluster, number);
        expect_exit(&mut framework, &format!("t{number}"), number % 4);
    }
    for number in 5..50 {
        let id = format!("s{number}");
        framework.kill(&id);
        framework.until_state(&id, "TASK_KILLED");
    }
}

/// Returns the status of setting a weight; `None` without an answer.
fn put_weight(cluster: &Cluster, weight: u32) -> Option<u16> {
    let body = format!("[{{\"role\": \"kept\", \"weight\": {weight}.0}}]");
    let url = format!("{}/weights", cluster.master.url);
    let answer = http::put_within(Duration::from_secs(5), &url, &body);
    answer.ok().map(|answer| answer.status)
}

/// Whether the master has ended, or reports that it cannot write.
fn is_out_of_room(cluster: &mut Cluster) -> bool {
    cluster.master.has_ended() || cluster.master.log_text().contains("No space left")
}

fn full_disk_master_acknowledges_nothing_lost() {
    let mut cluster = Cluster::start(Setup {
        master_disk: Some(SmallDisk::Tmpfs("size=24m")),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let running = run(&mut framework, &[sleeper(0)]);
    let mut weight = 2;
    assert_eq!(put_weight(&cluster, weight), Some(200));
    let mut filler = Filler::new(&cluster.master_dir());
    filler.fill_bytes();
    // Writes that fit into the file itself are nevertheless kept.
    let refused = wait::eventually("there is no room", PATIENCE, || {
        match put_weight(&cluster, weight + 1) {
            Some(200) => {
                weight += 1;
                None
            }
            // A master that only stood still gets the request again.
            None => is_out_of_room(&mut cluster).then_some(None),
            other => Some(other),
        }
    });
    eprintln!("with weight {weight} kept, the next one got {refused:?}");
    assert!(refused.is_none_or(|status| status >= 500), "{refused:?}");
    wait::eventually("it ends or goes on", PATIENCE, || {
        is_out_of_room(&mut cluster).then_some(())
    });
    assert!(running[0].is_alive());
    filler.remove();
    cluster.restart_master();
    cluster.wait_for_agents(1);
    let page = cluster.master.page("/weights").text();
    let is_kept = |weight: u32| page.contains(&format!("\"weight\":{weight}.0"));
    assert!(is_kept(weight) || is_kept(weight + 1), "{weight}: {page}");
    assert!(running[0].is_alive());
    assert_eq!(put_weight(&cluster, weight + 2), Some(200));
}

fn excess_launches_fail_with_reason() {
    const LAUNCHES: usize = 60;
    let cluster = Cluster::start(Setup {
        agent_descriptors: Some(100),
        agent_flags: vec!["--resources=cpus:20;mem:8192;disk:4096".to_owned()],
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let infos: Vec<Value> = (0..LAUNCHES)
        .map(|number| {
            let (id, command) = sleeper(number);
            task(&offer, &id, &command, SMALL)
        })
        .collect();
    framework.launch(&offer, &infos);
    let mut running = Vec::new();
    for number in 0..LAUNCHES {
        let (id, _) = sleeper(number);
        let status = loop {
            let status = framework.update(&id);
            framework.acknowledge(&status);
            if status["state"] != "TASK_STARTING" {
                break status;
            }
        };
        let message = status["message"].as_str().unwrap_or_default();
        match status["state"].as_str() {
            Some("TASK_RUNNING") => running.push(id),
            Some("TASK_FAILED") => {
                assert!(message.contains("Too many open files"), "{status:#}");
            }
            _ => panic!("{status:#}"),
        }
    }
    eprintln!("{} of {LAUNCHES} run", running.len());
    assert!(running.len() > 10);
    assert_eq!(
        http::get(&format!("{}/health", cluster.agent().url)).status,
        200
    );
    running.iter().for_each(|id| framework.kill(id));
    for id in &running {
        framework.until_state(id, "TASK_KILLED");
    }
    let offer = framework.offer();
    framework.launch(&offer, &[task(&offer, "after", "true", SMALL)]);
    framework.until_state("after", "TASK_FINISHED");
}
