//! Actions of others on a node while tasks run: they move processes, stop supervisors and the launcher, take the agent's
//! memory, break the disk. No task ends because of that, and each update is correct.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use meseta_tests::daemon::{self, free_port};
use meseta_tests::executor;
use meseta_tests::framework::task;
use meseta_tests::small_disk::SmallDisk;
use meseta_tests::{
    Cluster, Framework, Missing, Setup, http, kernel, unless_installed, unless_root, wait,
};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::enforcement::{is_container, standing_offer};

meseta_tests::scenarios! {
    unless_root:
        moved_processes_end_with_task,
        executors_without_sandbox_or_groups_end,
        stopped_supervisor_delays_no_kill,
        stopped_launcher_is_replaced,
        oom_killed_agent_loses_no_task,
        agent_as_first_process_reaps_orphans,
        agent_without_threads_ends_with_reason;
    unless_ext4:
        read_only_disk_ends_no_task;
}

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 32.0)];
const PATIENCE: Duration = Duration::from_secs(60);

fn unless_ext4() -> Missing {
    unless_root().or_else(|| unless_installed("mkfs.ext4"))
}

/// A process with its start time.
#[derive(Copy, Clone, Debug)]
struct Process {
    pid: i32,
    born: u64,
}

impl Process {
    fn from_pid(pid: i32) -> Self {
        Self::find(pid).expect("it lives")
    }

    /// Returns the process, unless it has ended.
    fn find(pid: i32) -> Option<Self> {
        let born = kernel::start_time(pid)?;
        Some(Self { pid, born })
    }

    fn is_alive(self) -> bool {
        kernel::start_time(self.pid) == Some(self.born)
    }

    /// Returns the parent process: for a task's first process, its supervisor.
    fn parent(self) -> Self {
        self.find_parent().expect("it lives, and its parent")
    }

    /// Returns the parent process, unless either has ended.
    fn find_parent(self) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok()?;
        let rest = stat.rsplit(") ").next()?;
        Self::find(rest.split(' ').nth(1)?.parse().ok()?)
    }
}

/// Runs a task, and returns its first process.
fn run(framework: &mut Framework, id: &str, command: &str) -> Process {
    let offer = standing_offer(framework);
    let mut info = task(&offer, id, command, SMALL);
    info["kill_policy"] = json!({"grace_period": {"nanoseconds": 1_000_000_000}});
    framework.launch(&offer, &[info]);
    let status = framework.until_state(id, "TASK_RUNNING");
    let pid = status["container_status"]["executor_pid"].as_i64();
    Process::from_pid(i32::try_from(pid.expect("a pid")).expect("a pid"))
}

fn nothing_is_left(cluster: &Cluster) {
    wait::eventually("nothing is left", PATIENCE, || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let has_processes = !kernel::tasks_below(&cluster.cgroups_root).is_empty();
        (!has_processes && !groups.iter().any(|group| is_container(group))).then_some(())
    });
}

/// Returns the roots of all cgroup trees of this machine.
fn roots() -> Vec<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    let groups = mounts.lines().filter(|line| line.contains(" cgroup"));
    let paths = groups.filter_map(|line| line.split(' ').nth(1));
    paths.map(PathBuf::from).collect()
}

fn moved_processes_end_with_task() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let command = "sleep 6000 & sleep 6001 & wait";
    let first = run(&mut framework, "killed", command);
    let gate = cluster.dir.path().join("gate");
    let made = Command::new("mkfifo").arg(&gate).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo");
    let waits = format!("sleep 6002 & read line < {}; exit 3", gate.display());
    run(&mut framework, "exits", &waits);
    let supervisor = first.parent();
    let mut moved = vec![supervisor];
    // A shell may start a process while the others are moved.
    wait::eventually("all are moved", PATIENCE, || {
        let within = kernel::tasks_below(&cluster.cgroups_root).into_iter();
        let more: Vec<_> = within.filter_map(Process::find).collect();
        for root in roots() {
            for process in more.iter().chain([&supervisor]) {
                let _ = std::fs::write(root.join("cgroup.procs"), process.pid.to_string());
            }
        }
        moved.extend(more);
        let still = kernel::tasks_below(&cluster.cgroups_root);
        still.is_empty().then_some(())
    });
    assert!(moved.len() >= 5, "{moved:?}");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    assert!(first.is_alive() && supervisor.is_alive());
    // The pipe is opened for both directions, as a writer alone would wait for a reader.
    let open = File::options().read(true).write(true).open(&gate);
    let mut open = open.expect("a pipe");
    open.write_all(b"\n").expect("written");
    let status = framework.until_state("exits", "TASK_FAILED");
    assert_eq!(status["message"], "Command exited with status 3");
    framework.kill("killed");
    framework.until_state("killed", "TASK_KILLED");
    wait::eventually("all of them have ended", PATIENCE, || {
        let left: Vec<_> = moved.iter().filter(|one| one.is_alive()).collect();
        left.is_empty().then_some(())
    });
    nothing_is_left(&cluster);
}

/// Moves all processes of the containers out of their groups, and removes these groups.
fn lose_groups(cluster: &Cluster) {
    wait::eventually("all groups are removed", PATIENCE, || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let is_within = |group: &&PathBuf| group.ancestors().any(is_container);
        let of_containers: Vec<_> = groups.iter().filter(is_within).collect();
        for pid in kernel::tasks_below(&cluster.cgroups_root) {
            for root in roots() {
                let _ = std::fs::write(root.join("cgroup.procs"), pid.to_string());
            }
        }
        // The deepest come first.
        for group in of_containers.iter().rev() {
            let _ = std::fs::remove_dir(group);
        }
        of_containers.is_empty().then_some(())
    });
}

fn executors_without_sandbox_or_groups_end() {
    let mut cluster = Cluster::start(Setup {
        agent_port: Some(free_port()),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let offer = standing_offer(&mut framework);
    let resources = task(&offer, "x", "", SMALL)["resources"].clone();
    let ids = ["killed", "left"];
    let tasks = ids.map(|id| {
        let info = executor::info(id, &framework.id, &resources);
        let mut task = task(&offer, id, "exec sleep 6000", SMALL);
        executor::assign(&mut task, &info);
        task
    });
    framework.launch(&offer, &tasks);
    let executors = ids.map(|id| {
        let status = framework.until_state(id, "TASK_RUNNING");
        let pid = status["container_status"]["executor_pid"].as_i64();
        Process::from_pid(i32::try_from(pid.expect("a pid")).expect("a pid"))
    });
    let supervisors = executors.map(Process::parent);
    let processes: Vec<_> = kernel::tasks_below(&cluster.cgroups_root)
        .into_iter()
        .filter_map(Process::find)
        .collect();
    assert!(processes.len() >= 4, "{processes:?}");
    let sandboxes = cluster.agent_dir(0).join("slaves");
    std::fs::remove_dir_all(&sandboxes).expect("removed");
    lose_groups(&cluster);
    // The executor is given more while its groups are lost.
    let offer = standing_offer(&mut framework);
    let mut more = task(&offer, "more", "exec sleep 6000", SMALL);
    executor::assign(
        &mut more,
        &executor::info("left", &framework.id, &resources),
    );
    framework.launch(&offer, &[more]);
    framework.until_state("more", "TASK_RUNNING");
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    assert!(executors.iter().all(|one| one.is_alive()), "{executors:?}");
    let lost = "meseta_agent_limits_lost_total 2\n";
    wait::eventually("the loss is reported", PATIENCE, || {
        cluster
            .agent()
            .page("/metrics")
            .text()
            .contains(lost)
            .then_some(())
    });
    framework.kill("killed");
    framework.until_state("killed", "TASK_KILLED");
    framework.teardown();
    let all = processes.iter().chain(&supervisors).chain(&executors);
    let all: Vec<_> = all.copied().collect();
    wait::eventually("all of them have ended", PATIENCE, || {
        all.iter().all(|one| !one.is_alive()).then_some(())
    });
    nothing_is_left(&cluster);
}

/// The children of a process.
fn children_of(pid: i32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    let children = children.split_whitespace();
    children.filter_map(|child| child.parse().ok()).collect()
}

fn agent_as_first_process_reaps_orphans() {
    let prefix = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut cluster = Cluster::start(Setup {
        agent_prefix: prefix.map(str::to_owned).to_vec(),
        ..Setup::default()
    });
    let first = children_of(cluster.agent().pid())[0];
    let [agent] = children_of(first)[..] else {
        panic!("children: {:?}", children_of(first));
    };
    let namespace = format!("--pid=/proc/{first}/ns/pid");
    let made = Command::new("nsenter")
        .args([&namespace, "sh", "-c", "exec >/dev/null; sleep 6000 &"])
        .status();
    assert!(made.is_ok_and(|status| status.success()), "nsenter");
    let orphan = wait::eventually(
        "the orphan is a child of the first process",
        PATIENCE,
        || {
            let mut children = children_of(first).into_iter();
            children.find(|child| *child != agent)
        },
    );
    kernel::kill(orphan, Signal::SIGKILL);
    wait::eventually("the orphan is reaped", PATIENCE, || {
        let is_gone = !Path::new(&format!("/proc/{orphan}")).exists();
        is_gone.then_some(())
    });
    let mut framework = cluster.framework();
    let offer = standing_offer(&mut framework);
    let command = "sleep 0.1 & exit 3";
    framework.launch(&offer, &[task(&offer, "fails", command, SMALL)]);
    let status = framework.until_state("fails", "TASK_FAILED");
    assert_eq!(status["message"], "Command exited with status 3");
    kernel::kill(first, Signal::SIGTERM);
    wait::eventually("the first process ends with the agent", PATIENCE, || {
        cluster.agents[0].has_ended().then_some(())
    });
}

fn stopped_supervisor_delays_no_kill() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let killed = run(&mut framework, "killed", "exec sleep 6000");
    let go = cluster.dir.path().join("go");
    let waits = format!("until [ -e {} ]; do sleep 0.1; done; exit 3", go.display());
    let exits = run(&mut framework, "exits", &waits);
    let supervisors = [killed.parent(), exits.parent()];
    for supervisor in supervisors {
        kernel::kill(supervisor.pid, Signal::SIGSTOP);
    }
    // A returning agent finds the processes stopped.
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    let began = Instant::now();
    framework.kill("killed");
    framework.until_state("killed", "TASK_KILLED");
    assert!(!killed.is_alive(), "told killed, and not gone");
    eprintln!("killed {:?} after the request", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(40));
    std::fs::write(&go, "").expect("written");
    wait::eventually("the task is over", PATIENCE, || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", exits.pid)).ok()?;
        stat.contains(") Z ").then_some(())
    });
    kernel::kill(supervisors[1].pid, Signal::SIGCONT);
    let status = framework.until_state("exits", "TASK_FAILED");
    assert_eq!(status["message"], "Command exited with status 3");
    wait::eventually("the supervisors have ended", PATIENCE, || {
        let is_over = supervisors.iter().all(|one| !one.is_alive());
        is_over.then_some(())
    });
    nothing_is_left(&cluster);
}

/// Returns the agent's launcher. Supervisors have the same command line.
fn launcher(cluster: &Cluster) -> Process {
    let agent = cluster.agent().pid();
    // Launchers of other agents may end meanwhile.
    let all = kernel::processes_like("--meseta-sealed-launcher").into_iter();
    let is_ours = |one: &Process| one.find_parent().is_some_and(|parent| parent.pid == agent);
    let mut ours = all.filter_map(Process::find).filter(is_ours);
    ours.next().expect("there is one")
}

fn stopped_launcher_is_replaced() {
    let mut cluster = Cluster::default();
    let mut framework = cluster.framework();
    let steady = run(&mut framework, "steady", "exec sleep 6000");
    let stopped = launcher(&cluster);
    kernel::kill(stopped.pid, Signal::SIGSTOP);
    let began = Instant::now();
    let offer = standing_offer(&mut framework);
    let ids = ["a", "b", "c"];
    let infos = ids.map(|id| task(&offer, id, "exec sleep 6000", SMALL));
    framework.launch(&offer, &infos);
    for id in ids {
        framework.until_state(id, "TASK_RUNNING");
    }
    eprintln!("running {:?} after the request", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(25));
    assert!(!stopped.is_alive());
    let stopped = launcher(&cluster);
    kernel::kill(stopped.pid, Signal::SIGSTOP);
    // It does not notice the end of its agent, and keeps the lock that the next one waits for.
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    wait::eventually("it is ended", PATIENCE, || {
        (!stopped.is_alive()).then_some(())
    });
    assert!(steady.is_alive());
    run(&mut framework, "later", "exec sleep 6000");
    for id in ["steady", "a", "b", "c", "later"] {
        framework.kill(id);
        framework.until_state(id, "TASK_KILLED");
    }
    nothing_is_left(&cluster);
}

/// A group of one controller, removed at the end.
struct Group(PathBuf);

impl Group {
    fn make(controller: &str, name: &str) -> Self {
        let unified = Path::new("/sys/fs/cgroup");
        let v1 = unified.join(controller);
        let root = if v1.is_dir() { &v1 } else { unified };
        let name = format!("meseta-test-{}-{name}", std::process::id());
        let dir = root.join(name);
        std::fs::create_dir(&dir).expect("a group");
        Self(dir)
    }

    /// Returns the prefix of a command line that runs it in the group.
    fn prefix(&self) -> Vec<String> {
        let joins = format!(
            "echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"",
            self.0.display()
        );
        vec!["/bin/sh".to_owned(), "-c".to_owned(), joins]
    }

    /// Sets the group's memory limit, or returns its usage if no limit is given.
    fn limit(&self, bytes: Option<u64>) -> u64 {
        let either = |names: [&str; 2]| {
            let paths = names.map(|name| self.0.join(name));
            paths
                .into_iter()
                .find(|path| path.exists())
                .expect("a file")
        };
        if let Some(bytes) = bytes {
            let file = either(["memory.limit_in_bytes", "memory.max"]);
            std::fs::write(file, bytes.to_string()).expect("a limit");
        }
        let used = either(["memory.usage_in_bytes", "memory.current"]);
        let used = std::fs::read_to_string(used).expect("a number");
        used.trim().parse().expect("a number")
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait::holds(PATIENCE, || std::fs::remove_dir(&self.0).is_ok());
    }
}

/// Found by an error of its first clone, on which the runtime panicked.
fn agent_without_threads_ends_with_reason() {
    let group = Group::make("pids", "threads");
    let dir = tempfile::tempdir().expect("a directory");
    for threads in [1, 3] {
        std::fs::write(group.0.join("pids.max"), threads.to_string()).expect("a limit");
        let prefix = group.prefix();
        let mut command = Command::new(&prefix[0]);
        command.args(&prefix[1..]).arg(daemon::binary());
        command.args(["agent", "--master=127.0.0.1:1", "--port=0"]);
        command.arg(format!("--work_dir={}", dir.path().display()));
        let output = command.output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(
            text.contains("failed to start the runtime's threads")
                || text.contains("failed to start the thread of the log"),
            "{text}"
        );
        assert!(!text.contains("panicked"), "{text}");
    }
}

/// The agent has a group of its own: neither supervisors nor tasks are in it.
fn oom_killed_agent_loses_no_task() {
    let group = Group::make("memory", "agent");
    let mut cluster = Cluster::start(Setup {
        agent_port: Some(free_port()),
        agent_prefix: group.prefix(),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let steady = run(&mut framework, "steady", "exec sleep 6000");
    let down = cluster.dir.path().join("down");
    let waits = format!(
        "until [ -e {} ]; do sleep 0.1; done; exit 4",
        down.display()
    );
    let waiting = run(&mut framework, "down", &waits);
    let supervisors = [steady.parent(), waiting.parent()];
    let used = group.limit(None);
    group.limit(Some(used + (1 << 20)));
    let url = format!("{}/api/v1", cluster.agent().url);
    // The agent keeps bodies until they are complete.
    let body = vec![b' '; 4 << 20];
    let clients: Vec<_> = (0..16)
        .map(|_| {
            let (url, body) = (url.clone(), body.clone());
            std::thread::spawn(move || {
                let headers = [("content-type", "application/json")];
                drop(http::try_post(&url, &headers, &body));
            })
        })
        .collect();
    wait::eventually("the kernel kills the agent", PATIENCE, || {
        cluster.agents[0].has_ended().then_some(())
    });
    for client in clients {
        client.join().expect("a client ends");
    }
    assert!(steady.is_alive() && supervisors.iter().all(|one| one.is_alive()));
    std::fs::write(&down, "").expect("written");
    wait::eventually("a task ends meanwhile", PATIENCE, || {
        (!waiting.is_alive()).then_some(())
    });
    group.limit(Some(1 << 30));
    cluster.restart_agent(0);
    cluster.wait_for_agents(1);
    let status = framework.until_state("down", "TASK_FAILED");
    assert_eq!(status["message"], "Command exited with status 4");
    assert!(steady.is_alive());
    framework.kill("steady");
    framework.until_state("steady", "TASK_KILLED");
    nothing_is_left(&cluster);
    drop(cluster);
}

/// Simulates a failing device: the kernel permits no writes until the file system is mounted again.
fn read_only_disk_ends_no_task() {
    let mut cluster = Cluster::start(Setup {
        agent_disk: Some(SmallDisk::Ext4 {
            mib: 64,
            inodes: 4096,
        }),
        runtime_dir_apart: true,
        agent_port: Some(free_port()),
        ..Setup::default()
    });
    let mut framework = cluster.framework();
    let steady = run(&mut framework, "steady", "exec sleep 6000");
    let target = run(&mut framework, "target", "exec sleep 6000");
    let aborted = Command::new("mount")
        .args(["-o", "remount,abort"])
        .arg(cluster.agent_dir(0))
        .status();
    assert!(aborted.is_ok_and(|status| status.success()));
    // A kill is recorded first; a disk without writes must not save a task.
    framework.kill("target");
    let is_over = |cluster: &mut Cluster| !target.is_alive() || cluster.agents[0].has_ended();
    wait::eventually("it is killed, or its agent has given up", PATIENCE, || {
        is_over(&mut cluster).then_some(())
    });
    assert!(steady.is_alive());
    // The next start reports the fault.
    cluster.respawn_agent(0);
    wait::eventually("it says what is wrong", PATIENCE, || {
        let said = cluster.agent().log_text();
        said.contains("Read-only file system").then_some(())
    });
    wait::eventually("and ends", PATIENCE, || {
        cluster.agents[0].has_ended().then_some(())
    });
    assert!(steady.is_alive());
}
