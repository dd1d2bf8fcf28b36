//! The enforcement and counters of the kernel on cgroup v2, read from its own files and from the agent.

use std::fs;
use std::path::Path;

use meseta_tests::{kernel, wait};
use serde_json::json;

use crate::Test;
use crate::node::{
    AGENT, Node, PATIENCE, agent_page, counted, knob, metric, registered, systemctl,
};

pub(crate) const ALL: &[Test] = &[
    ("memory_over_the_limit_ends_the_whole_group", memory),
    ("cpu_max_throttles", cpu),
    ("pids_max_refuses_forks", pids),
    ("block_io_is_counted", io),
    ("a_frozen_container_stays_frozen_over_a_restart", freeze),
    ("a_frozen_container_is_killed", kill),
    ("pressure_is_told", pressure),
    ("statistics_are_the_kernels", statistics),
    ("memory_low_works_down_the_tree", protection),
];

const SMALL: &[(&str, f64)] = &[("cpus", 0.1), ("mem", 64.0)];

/// A child grows and is killed; the waiting shell is killed with it (`memory.oom.group`).
fn memory(node: &mut Node) {
    let command = "until [ -e go ]; do sleep 0.1; done; \
        tail -c 500m /dev/zero | tail >/dev/null & wait; sleep 1000";
    let grower = node.launch("grower", command, SMALL);
    assert_eq!(knob(&grower, "memory.oom.group").trim(), "1");
    assert_eq!(knob(&grower, "memory.max").trim(), (64 << 20).to_string());
    fs::write(format!("/proc/{}/cwd/go", grower.pid), "").expect("written");
    let end = node.framework.until_state("grower", "TASK_FAILED");
    assert_eq!(
        end["reason"], "REASON_CONTAINER_LIMITATION_MEMORY",
        "{end:#}"
    );
    let message = end["message"].as_str().unwrap_or_default();
    assert!(
        message.contains("Memory limit exceeded: Requested: 64MB"),
        "{message}"
    );
    assert_eq!(kernel::start_time(grower.pid), None);
    wait::eventually("the group is gone", PATIENCE, || {
        (!grower.group.exists()).then_some(())
    });
    node.undisturbed();
}

fn cpu(node: &mut Node) {
    let limits = json!({"cpus": {"value": 0.2}});
    let command = "while :; do :; done";
    let busy = node.launch_limited("busy", command, SMALL, limits);
    assert_eq!(knob(&busy, "cpu.max").trim(), "20000 100000");
    wait::eventually("it is throttled", PATIENCE, || {
        (counted(&busy, "cpu.stat", "nr_throttled") > 5).then_some(())
    });
    // It used its maximum: a fifth of the periods in which it wanted to run.
    let periods = counted(&busy, "cpu.stat", "nr_periods");
    let used = counted(&busy, "cpu.stat", "usage_usec");
    assert!(
        used < (periods + 20) * 40_000,
        "{used} us in {periods} periods"
    );
    let name = "meseta_agent_container_cpu_throttled_periods_total";
    wait::eventually("the metric says so", PATIENCE, || {
        metric(&busy, name, "").filter(|count| *count > 5.0)
    });
    node.kill(&busy, "busy");
}

fn pids(node: &mut Node) {
    let limit = knob(&node.lasting[0], "pids.max");
    let limit: u64 = limit.trim().parse().expect("the unit's file sets a limit");
    // A shell that cannot fork ends: the forking shell is not the task's own.
    let command = format!(
        "(for i in $(seq {}); do sleep 1000 & done) 2>/dev/null; exec sleep 1000",
        limit * 2
    );
    let bomb = node.launch("bomb", &command, SMALL);
    wait::eventually("forks are refused", PATIENCE, || {
        (counted(&bomb, "pids.events", "max") > 0).then_some(())
    });
    let current: u64 = knob(&bomb, "pids.current").trim().parse().expect("a count");
    assert!(current <= limit);
    node.kill(&bomb, "bomb");
}

fn io(node: &mut Node) {
    let command = "dd if=/dev/zero of=file bs=64k count=64 oflag=direct 2>/dev/null; sleep 1000";
    let writer = node.launch("writer", command, SMALL);
    let written = |text: &str| -> u64 {
        let words = text.split_ascii_whitespace();
        words
            .filter_map(|word| word.strip_prefix("wbytes=")?.parse::<u64>().ok())
            .sum()
    };
    wait::eventually("the kernel counts it", PATIENCE, || {
        (written(&knob(&writer, "io.stat")) >= 4 << 20).then_some(())
    });
    let name = "meseta_agent_container_io_bytes_total";
    wait::eventually("the metric says so", PATIENCE, || {
        metric(&writer, name, "direction=\"write\"").filter(|bytes| *bytes >= 4_194_304.0)
    });
    node.kill(&writer, "writer");
}

fn frozen(container: &crate::node::Container) -> bool {
    counted(container, "cgroup.events", "frozen") == 1
}

fn freeze(node: &mut Node) {
    let task = node.launch("frozen", "while :; do sleep 0.1; done", SMALL);
    fs::write(task.group.join("cgroup.freeze"), "1").expect("frozen");
    wait::eventually("it is frozen", PATIENCE, || frozen(&task).then_some(()));
    systemctl(&["restart", AGENT]);
    registered();
    assert!(frozen(&task));
    assert_eq!(kernel::start_time(task.pid), Some(task.start));
    fs::write(task.group.join("cgroup.freeze"), "0").expect("thawed");
    wait::eventually("it goes on", PATIENCE, || (!frozen(&task)).then_some(()));
    node.kill(&task, "frozen");
}

/// No signal but the group's own kill reaches it.
fn kill(node: &mut Node) {
    let task = node.launch("frozen", "trap '' TERM; while :; do sleep 0.1; done", SMALL);
    fs::write(task.group.join("cgroup.freeze"), "1").expect("frozen");
    wait::eventually("it is frozen", PATIENCE, || frozen(&task).then_some(()));
    node.kill(&task, "frozen");
    assert_eq!(kernel::start_time(task.pid), None);
}

fn pressure(node: &mut Node) {
    let limits = json!({"cpus": {"value": 0.1}});
    let command = "for i in 1 2 3; do (while :; do :; done) & done; wait";
    let stalled = node.launch_limited("stalled", command, SMALL, limits);
    let name = "meseta_agent_container_pressure_seconds_total";
    let told = wait::eventually("stall is counted", PATIENCE, || {
        metric(&stalled, name, "resource=\"cpu\",share=\"some\"").filter(|secs| *secs > 0.5)
    });
    let text = knob(&stalled, "cpu.pressure");
    let total = text
        .lines()
        .next()
        .and_then(|line| line.rsplit_once("total="));
    let kernel: f64 = total
        .and_then(|(_, us)| us.parse().ok())
        .expect("microseconds");
    assert!(told <= kernel / 1e6, "{told} s told, {kernel} us counted");
    let host = agent_page("/metrics").text();
    let expected = "meseta_agent_host_pressure_seconds_total{resource=\"cpu\",share=\"some\"}";
    assert!(host.contains(expected), "{host}");
    node.kill(&stalled, "stalled");
}

/// Each figure lies between two readings of the kernel's own file, one before it and one after.
fn statistics(node: &mut Node) {
    let task = node.launch("counted", "while :; do :; done", SMALL);
    let usage = || counted(&task, "cpu.stat", "usage_usec");
    for _ in 0..3 {
        let before = usage();
        let found = wait::eventually("a newer sample", PATIENCE, || {
            let all = agent_page("/monitor/statistics").json();
            let entry = all
                .as_array()?
                .iter()
                .find(|one| one["executor_id"] == "counted")?;
            let of = |key: &str| entry["statistics"][key].as_f64();
            let used = of("cpus_user_time_secs")? + of("cpus_system_time_secs")?;
            #[expect(clippy::cast_precision_loss, reason = "microseconds of a short test")]
            let newer = used * 1e6 > before as f64;
            newer.then(|| (used, entry["statistics"].clone()))
        });
        let after = usage();
        #[expect(clippy::cast_precision_loss, reason = "microseconds of a short test")]
        let bound = after as f64 / 1e6;
        assert!(found.0 <= bound, "{} s told, {bound} s used", found.0);
        let told = &found.1;
        assert_eq!(told["mem_limit_bytes"], 64 << 20);
        assert_eq!(told["processes"], 1);
        assert_eq!(told["threads"], 1);
        assert!(told["mem_total_bytes"].as_u64() > Some(0));
        assert!(told["mem_rss_bytes"].as_u64().is_some());
        assert!(told["mem_kmem_usage_bytes"].as_u64().is_some());
    }
    node.kill(&task, "counted");
}

/// Each parent group repeats the protection of a container: the kernel gives no group more than its parents have.
fn protection(node: &mut Node) {
    let task = node.launch("protected", "exec sleep 1000", SMALL);
    let around = || -> Vec<u64> {
        let groups = task.group.ancestors().skip(1);
        let groups = groups.take_while(|dir| *dir != Path::new("/sys/fs/cgroup"));
        let low = |dir: &Path| {
            let text = fs::read_to_string(dir.join("memory.low")).expect("a group of memory");
            text.trim().parse().expect("a number")
        };
        groups.map(low).collect()
    };
    assert_eq!(knob(&task, "memory.low").trim(), (64 << 20).to_string());
    // The sum is its own and those of the two lasting ones, for the agent's folder, the scope and the slice.
    wait::eventually("all around it are protected", PATIENCE, || {
        (around() == [3 * (64 << 20); 3]).then_some(())
    });
    node.kill(&task, "protected");
    let slice = Path::new("/sys/fs/cgroup/meseta.slice/memory.low");
    wait::eventually("what is gone is not protected", PATIENCE, || {
        let text = fs::read_to_string(slice).expect("a slice");
        (text.trim() == (2 * (64 << 20)).to_string()).then_some(())
    });
}
