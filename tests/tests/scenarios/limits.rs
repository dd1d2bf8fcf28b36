//! Limits on the real kernel: memory, CPUs, processes.

use std::path::Path;
use std::time::{Duration, Instant};

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Missing, Setup, http, kernel, unless_root, wait};
use serde_json::json;

meseta_tests::scenarios! {
    unless_root:
        task_over_memory_fails_with_reason;
    unless_cfs:
        cfs_throttles_to_half_a_cpu;
    unless_root:
        fork_bomb_stays_within_limit;
}

fn unless_cfs() -> Missing {
    unless_root()
}

/// Returns a shell command that touches this many MB and holds them.
fn touch_mb(mb: u32) -> String {
    format!("exec head -c {mb}m /dev/zero | tail -c {mb}m >/dev/null; sleep 30")
}

fn task_over_memory_fails_with_reason() {
    let (_cluster, mut framework, offer) = Cluster::with_offer();
    framework.launch_task(
        &offer,
        "hog",
        &touch_mb(200),
        &[("cpus", 0.5), ("mem", 64.0)],
    );
    let status = framework.until_state("hog", "TASK_FAILED");
    assert_eq!(
        status["reason"], "REASON_CONTAINER_LIMITATION_MEMORY",
        "{status:#}"
    );
    let message = status["message"].as_str().expect("a message");
    assert!(
        message.starts_with("Memory limit exceeded: Requested: 64MB"),
        "{message}"
    );
    assert!(message.contains("Maximum Used: 64MB"), "{message}");
    let limitation = &status["limitation"]["resources"][0];
    assert_eq!(limitation["name"], "mem", "{status:#}");
    assert!(
        limitation["scalar"]["value"].as_f64().expect("MB") >= 60.0,
        "{status:#}"
    );
}

/// Returns the sum of one counter over the container's groups, from the kernel's own file.
fn cpu_stat(cluster: &Cluster, name: &str) -> u64 {
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let texts = groups
        .iter()
        .filter_map(|g| std::fs::read_to_string(g.join("cpu.stat")).ok());
    texts
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
        .filter_map(|line| {
            line.strip_prefix(name)?
                .strip_prefix(' ')?
                .parse::<u64>()
                .ok()
        })
        .max()
        .unwrap_or(0)
}

/// Returns the CPU seconds of the task from the agent's measurement.
fn cpu_seconds(cluster: &Cluster) -> f64 {
    let answer = http::get(&format!("{}/monitor/statistics", cluster.agent().url)).json();
    let statistics = &answer[0]["statistics"];
    let part = |name: &str| statistics[name].as_f64().unwrap_or(0.0);
    part("cpus_user_time_secs") + part("cpus_system_time_secs")
}

/// The observations of some five seconds.
#[derive(Debug)]
struct Window {
    used: f64,
    periods: u64,
    throttled: u64,
}

const WINDOWS_MAX: usize = 10;

/// Measures fifty periods by the kernel's count, with the CPU time from the kernel's own file.
fn window(cluster: &Cluster) -> Window {
    let (start, seconds) = (Instant::now(), kernel_cpu_seconds(cluster));
    let (periods, throttled) = (
        cpu_stat(cluster, "nr_periods"),
        cpu_stat(cluster, "nr_throttled"),
    );
    wait::eventually("50 periods have passed", Duration::from_secs(30), || {
        (cpu_stat(cluster, "nr_periods") >= periods + 50).then_some(())
    });
    let used = (kernel_cpu_seconds(cluster) - seconds) / start.elapsed().as_secs_f64();
    Window {
        used,
        periods: cpu_stat(cluster, "nr_periods") - periods,
        throttled: cpu_stat(cluster, "nr_throttled") - throttled,
    }
}

/// Returns the CPU seconds of the busiest group, from `cpuacct.usage` (v1) or `cpu.stat` (v2).
fn kernel_cpu_seconds(cluster: &Cluster) -> f64 {
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let nanoseconds = groups
        .iter()
        .filter(|g| {
            g.parent()
                .and_then(|p| p.parent())
                .is_some_and(|p| p.ends_with(&cluster.cgroups_root))
        })
        .filter_map(|g| {
            std::fs::read_to_string(g.join("cpuacct.usage"))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .max();
    let microseconds = cpu_stat(cluster, "usage_usec");
    match nanoseconds {
        Some(ns) => Duration::from_nanos(ns).as_secs_f64(),
        None => Duration::from_micros(microseconds).as_secs_f64(),
    }
}

/// Runs two loops, so that the container wants its share in every period, and examines stretches of fifty periods until one
/// is `at_its_bar`; its usage must never exceed `most`.
fn spin(
    cluster: &Cluster,
    cpus: f64,
    most: f64,
    stretches: usize,
    at_its_bar: impl Fn(&Window) -> bool,
) -> bool {
    let mut framework = cluster.framework();
    let offer = framework.offer();
    framework.run_task(
        &offer,
        "spin",
        "spin() { while :; do :; done; }; spin & spin",
        &[("cpus", cpus), ("mem", 64.0)],
    );
    let limit = Duration::from_secs(30);
    wait::eventually("some periods have passed", limit, || {
        (cpu_stat(cluster, "nr_periods") > 5 && cpu_seconds(cluster) > 0.0).then_some(())
    });
    let found = (0..stretches).any(|_| {
        let seen = window(cluster);
        eprintln!("{cpus} cpu: {seen:?}");
        assert!(seen.used <= most, "above its share: {seen:?}");
        at_its_bar(&seen)
    });
    framework.kill("spin");
    framework.until_state("spin", "TASK_KILLED");
    framework.teardown();
    found
}

fn cfs_throttles_to_half_a_cpu() {
    let mut setup = Setup::default();
    setup.agent_flags.push("--cgroups_enable_cfs".to_owned());
    let cluster = Cluster::start(setup);
    // So little CPU that a busy machine can spare it: throttled in at least nine periods of ten.
    let nine_in_ten = |seen: &Window| seen.throttled * 10 >= seen.periods * 9;
    assert!(
        spin(&cluster, 0.05, 0.08, WINDOWS_MAX, nine_in_ten),
        "never throttled in 90 % of the periods"
    );
    // Half a CPU is never exceeded; whether it is reached depends on the rest of the machine.
    let half = |seen: &Window| seen.used >= 0.47 && nine_in_ten(seen);
    if !spin(&cluster, 0.5, 0.53, 3, half) {
        eprintln!("the machine is too busy to give half a cpu away");
    }
}

fn fork_bomb_stays_within_limit() {
    let mut setup = Setup::default();
    setup.agent_flags.push("--cgroups_pids_limit=64".to_owned());
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let offer = framework.offer();
    // The task's own shell forks once, before the bomb exists, and becomes `sleep`: a shell that cannot fork ends. (A
    // pipeline in the background is two forks, and the bomb may reach the limit between them.)
    let bomb = "(bomb() { bomb | bomb & }; bomb) & exec sleep 600";
    let bomb = task(&offer, "bomb", bomb, &[("cpus", 0.5), ("mem", 1024.0)]);
    let operations = json!([{"type": "LAUNCH", "launch": {"task_infos": [bomb]}}]);
    // The rest of the limit belongs to another group, below.
    framework.accepted(json!({"type": "ACCEPT", "accept": {
        "offer_ids": [offer["id"]], "operations": operations, "filters": {"refuse_seconds": 3600.0}}}));
    framework.until_state("bomb", "TASK_RUNNING");
    let denied = || {
        let groups = kernel::groups_below(&cluster.cgroups_root);
        let events = groups
            .iter()
            .filter_map(|g| std::fs::read_to_string(g.join("pids.events")).ok());
        events
            .filter_map(|t| {
                t.lines()
                    .find_map(|l| l.strip_prefix("max ")?.parse::<u64>().ok())
            })
            .sum::<u64>()
    };
    wait::eventually("the kernel refused a fork", Duration::from_secs(20), || {
        (denied() > 0).then_some(())
    });
    // This is the kernel's own count: a list collected from several hierarchies, read one after the other, names processes
    // that never lived at the same time.
    let number = |group: &Path, file: &str| -> Option<u64> {
        let text = std::fs::read_to_string(group.join(file)).ok()?;
        text.trim().parse().ok()
    };
    let groups = kernel::groups_below(&cluster.cgroups_root);
    let counts: Vec<u64> = groups
        .iter()
        .filter(|group| number(group, "pids.max") == Some(64))
        .filter_map(|group| number(group, "pids.current"))
        .collect();
    assert!(!counts.is_empty(), "no group with the limit in {groups:?}");
    assert!(
        counts.iter().all(|count| *count <= 64),
        "{counts:?} processes"
    );
    // The machine stays usable: another task runs to its end during the bomb.
    let output = cluster.meseta(
        "execute",
        &[
            "--command=echo fine",
            "--resources=cpus:0.1;mem:32",
            "--timeout=1mins",
        ],
    );
    assert_eq!(String::from_utf8_lossy(&output.stdout), "fine\n");
    framework.kill("bomb");
    framework.until_state("bomb", "TASK_KILLED");
    assert_eq!(
        kernel::tasks_below(&cluster.cgroups_root),
        Vec::<i32>::new()
    );
}
