//! The cost of hostile tasks for the machine around them, through a real agent.
//!
//! `cargo build --release && cargo run --release -p meseta-tests --example containment` as root, on an idle machine. Prints
//! how long the host takes to create a process, alone and beside a fork bomb; the CPU time of a task with half a CPU under
//! CFS; the cost of a task that writes without pause for the agent, its memory and the disk; and how soon resisting tasks
//! are gone.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Framework, Setup, http, kernel, wait};
use serde_json::json;

const SMALL: &[(&str, f64)] = &[("cpus", 0.5), ("mem", 256.0)];
/// Memory enough for all permitted processes: the limit of the processes should stop the bomb.
const BOMB: &[(&str, f64)] = &[("cpus", 0.5), ("mem", 1024.0)];
/// The time over which each figure is measured.
const STRETCH: Duration = Duration::from_secs(10);
const FORKS: usize = 400;
const PATIENCE: Duration = Duration::from_secs(60);

fn main() {
    let mut setup = Setup::default();
    setup.agent_flags.push("--cgroups_enable_cfs".to_owned());
    setup
        .agent_flags
        .push("--cgroups_pids_limit=256".to_owned());
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    forks(&cluster, &mut framework);
    half_a_cpu(&cluster, &mut framework);
    full_speed(&cluster, &mut framework);
    stubborn(&cluster, &mut framework);
}

/// Launches a task, and waits for its start.
fn run(framework: &mut Framework, id: &str, command: &str) {
    let offer = framework.offer();
    framework.run_task(&offer, id, command, SMALL);
}

fn end(framework: &mut Framework, id: &str) {
    framework.kill(id);
    framework.until_state(id, "TASK_KILLED");
}

fn forks(cluster: &Cluster, framework: &mut Framework) {
    report("process made and reaped, alone", fork_times());
    let offer = framework.offer();
    let command = "bomb() { bomb | bomb & }; bomb; exec sleep 600";
    framework.run_task(&offer, "bomb", command, BOMB);
    wait::eventually("the bomb is at its limit", PATIENCE, || {
        let files = kernel::groups_below(&cluster.cgroups_root);
        let texts = files
            .iter()
            .filter_map(|group| std::fs::read_to_string(group.join("pids.events")).ok());
        let refused =
            texts.filter_map(|text| text.trim().strip_prefix("max ")?.parse::<u64>().ok());
        (refused.sum::<u64>() > 0).then_some(())
    });
    report("the same beside a fork bomb", fork_times());
    end(framework, "bomb");
}

fn fork_times() -> Vec<Duration> {
    let one = |_| {
        let began = Instant::now();
        let status = Command::new("/bin/true").status().expect("a process");
        assert!(status.success());
        began.elapsed()
    };
    (0..FORKS).map(one).collect()
}

fn report(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| {
        let found = times.get(times.len() * percent / 100);
        found.map_or(0.0, |time| time.as_secs_f64() * 1000.0)
    };
    println!("{name:32} p50 {:7.2}  p99 {:7.2} ms", at(50), at(99));
}

/// Returns the value in the first of these files that a group of the cluster has with a nonzero content.
fn counted(cluster: &Cluster, files: &[&str], key: &str) -> f64 {
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let inner = groups.iter().filter(|group| {
        let name = group.file_name().unwrap_or_default().to_string_lossy();
        name.len() == 36
    });
    let paths = inner.flat_map(|group| files.iter().map(|file| group.join(file)));
    let found = paths.filter_map(|path| number(&path, key));
    found.fold(0.0, f64::max)
}

/// Returns a number in a file: the whole file, or the number after a key.
fn number(path: &Path, key: &str) -> Option<f64> {
    let text = std::fs::read_to_string(path).ok()?;
    let value = match key {
        "" => text.trim(),
        _ => text.lines().find_map(|line| line.strip_prefix(key))?.trim(),
    };
    value.parse().ok()
}

fn half_a_cpu(cluster: &Cluster, framework: &mut Framework) {
    run(
        framework,
        "spin",
        "spin() { while :; do :; done; }; spin & spin",
    );
    let used = || {
        let v1 = counted(cluster, &["cpuacct.usage"], "") / 1e9;
        v1.max(counted(cluster, &["cpu.stat"], "usage_usec ") / 1e6)
    };
    let periods = || {
        let read = |key| counted(cluster, &["cpu.stat"], key);
        (read("nr_periods "), read("nr_throttled "))
    };
    std::thread::sleep(Duration::from_secs(1));
    let (before, (periods_before, throttled_before)) = (used(), periods());
    let began = Instant::now();
    std::thread::sleep(STRETCH);
    let (after, (periods, throttled)) = (used(), periods());
    println!(
        "0.5 cpu under CFS: uses {:.3}, throttled in {:.1} % of {:.0} periods",
        (after - before) / began.elapsed().as_secs_f64(),
        100.0 * (throttled - throttled_before) / (periods - periods_before),
        periods - periods_before,
    );
    end(framework, "spin");
}

/// Returns the CPU seconds and the resident KB of a process.
fn cost(pid: i32) -> (f64, f64) {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let fields = stat.rsplit(')').next().expect("fields").split_whitespace();
    let ticks: f64 = fields
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<f64>().expect("ticks"))
        .sum();
    let resident = kernel::memory_kib(pid, "VmRSS").and_then(|kib| u32::try_from(kib).ok());
    (ticks / 100.0, resident.map_or(0.0, f64::from))
}

fn size_of(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(found) if found.is_dir() => size_of(&entry.path()),
        Ok(found) => found.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

fn full_speed(cluster: &Cluster, framework: &mut Framework) {
    run(framework, "yes", "exec yes");
    let pid = cluster.agent().pid();
    let sandboxes: PathBuf = cluster.agent_dir(0).join("slaves");
    let (used, resident) = cost(pid);
    let began = Instant::now();
    let mut most = 0;
    while began.elapsed() < STRETCH * 2 {
        most = most.max(size_of(&sandboxes));
        std::thread::sleep(Duration::from_millis(100));
    }
    let (used_after, resident_after) = cost(pid);
    println!(
        "writer without pause: agent uses {:.1} % of a CPU, has {:.1} MB ({:+.1}), disk at most {:.1} MB",
        100.0 * (used_after - used) / began.elapsed().as_secs_f64(),
        resident_after / 1024.0,
        (resident_after - resident) / 1024.0,
        f64::from(u32::try_from(most >> 10).unwrap_or(u32::MAX)) / 1024.0,
    );
    end(framework, "yes");
}

fn stubborn(cluster: &Cluster, framework: &mut Framework) {
    let ignore = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    for (id, command) in [
        ("ignores", ignore.to_owned()),
        (
            "forks-twice",
            format!("(setsid sh -c \"{ignore}\" &) ; {ignore}"),
        ),
        (
            "stops-itself",
            "echo ready; kill -STOP $$; sleep 600".to_owned(),
        ),
    ] {
        let offer = framework.offer();
        let mut info = task(&offer, id, &command, SMALL);
        info["kill_policy"] = json!({"grace_period": {"nanoseconds": 1_000_000_000_u64}});
        framework.launch(&offer, &[info]);
        framework.until_state(id, "TASK_RUNNING");
        let path = format!(
            "/frameworks/{}/executors/{id}/runs/latest/stdout",
            framework.id
        );
        let url = format!("{}/files/read?path={path}&offset=0", cluster.agent().url);
        wait::eventually("the task is ready", PATIENCE, || {
            http::get(&url).text().contains("ready").then_some(())
        });
        let began = Instant::now();
        end(framework, id);
        let took = began.elapsed().as_secs_f64();
        let left = kernel::tasks_below(&cluster.cgroups_root).len();
        println!("{id:32} gone {took:.2} s after the kill (grace 1 s), {left} processes left");
    }
}
