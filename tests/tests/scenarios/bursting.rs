//! Requests and limits of tasks, as set in the kernel.

use std::path::PathBuf;
use std::time::Duration;

use meseta_tests::framework::task;
use meseta_tests::{Cluster, Missing, Setup, http, kernel, unless_root, wait};
use serde_json::{Value, json};

meseta_tests::scenarios! {
    unless_root:
        limits_stand_beside_requests,
        invalid_limits_are_refused,
        changed_limits_are_restored;
    unless_cgroup_v1:
        limits_of_removed_group_are_reported;
}

/// On cgroup v2 a container has one group, which ends with it.
fn unless_cgroup_v1() -> Missing {
    let is_missing = || kernel::groups_of("cpu") == 0;
    unless_root().or_else(|| is_missing().then(|| "needs cgroup v1".to_owned()))
}

const MB: u64 = 1 << 20;

/// The limits of one container in the kernel.
pub(crate) struct ContainerLimits {
    groups: Vec<PathBuf>,
}

impl ContainerLimits {
    /// Finds the container whose groups have this name.
    pub(crate) fn from_cluster(cluster: &Cluster, name: &str) -> Self {
        wait::eventually("the groups are found", Duration::from_secs(10), || {
            let groups = kernel::groups_below(&cluster.cgroups_root);
            let named = groups.into_iter().filter(|group| group.ends_with(name));
            let groups: Vec<_> = named.collect();
            (!groups.is_empty()).then_some(Self { groups })
        })
    }

    /// Writes to the first of these files that the container's groups have.
    pub(crate) fn write(&self, files: &[&str], value: &str) {
        let paths = self
            .groups
            .iter()
            .flat_map(|group| files.iter().map(|file| group.join(file)));
        let path = paths.into_iter().find(|path| path.exists());
        std::fs::write(path.expect("the file"), value).expect("written");
    }

    /// Moves the processes of the group with this file to its parent, and removes the group. Processes forked meanwhile
    /// move the next time.
    fn remove_group_of(&self, file: &str) {
        let mut groups = self.groups.iter();
        let group = groups.find(|group| group.join(file).exists());
        let group = group.expect("a group with the file");
        let parent = group.parent().expect("a group around it");
        wait::eventually("the group is removed", Duration::from_secs(10), || {
            let processes = std::fs::read_to_string(group.join("cgroup.procs"));
            for process in processes.expect("the processes").lines() {
                let _ = std::fs::write(parent.join("cgroup.procs"), process);
            }
            std::fs::remove_dir(group).ok()
        });
    }

    /// Returns the first of these files that the container's groups have, as a number; `None` is no limit.
    pub(crate) fn number(&self, files: &[&str]) -> Option<u64> {
        let text = self.text(files);
        let number = text
            .split_whitespace()
            .next()
            .expect("a value")
            .parse::<i64>();
        // v1 has -1, or the largest number of whole pages; v2 has "max".
        let number = number.ok().and_then(|number| u64::try_from(number).ok());
        number.filter(|number| *number < 1 << 62)
    }

    fn text(&self, files: &[&str]) -> String {
        let paths = self
            .groups
            .iter()
            .flat_map(|group| files.iter().map(|file| group.join(file)));
        let found = paths
            .into_iter()
            .find_map(|path| std::fs::read_to_string(path).ok());
        found.unwrap_or_else(|| panic!("none of {files:?} in {:?}", self.groups))
    }

    pub(crate) fn cpu_quota_us(&self) -> Option<u64> {
        self.number(&["cpu.cfs_quota_us", "cpu.max"])
    }

    /// Returns the weight, in the units of version 1.
    pub(crate) fn shares(&self) -> u64 {
        let v1 = self.groups.iter().find_map(|group| {
            let text = std::fs::read_to_string(group.join("cpu.shares")).ok()?;
            text.trim().parse().ok()
        });
        v1.unwrap_or_else(|| self.number(&["cpu.weight"]).expect("a weight") * 1024 / 100)
    }

    pub(crate) fn hard_memory(&self) -> Option<u64> {
        self.number(&["memory.limit_in_bytes", "memory.max"])
    }

    pub(crate) fn soft_memory(&self) -> Option<u64> {
        self.number(&["memory.soft_limit_in_bytes", "memory.low"])
    }

    fn oom_score_adj(&self) -> i32 {
        let text = self.text(&["cgroup.procs", "leaf/cgroup.procs"]);
        let pid = text.lines().next().expect("a process");
        let text =
            std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).expect("a process");
        text.trim().parse().expect("a number")
    }
}

/// Without limits the requests are the limits; with limits, the requests are the guarantees.
fn limits_stand_beside_requests() {
    let mut setup = Setup::default();
    setup.agent_flags.push("--cgroups_enable_cfs".to_owned());
    let cluster = Cluster::start(setup);
    let mut framework = cluster.framework();
    let limits = |cpus: Value, mem: Value| json!({"cpus": {"value": cpus}, "mem": {"value": mem}});
    let infinite = || json!("Infinity");
    // The smaller the request relative to the limit, the likelier the kernel's choice as victim.
    for (id, limits, quota_us, memory, scores) in [
        ("none", Value::Null, Some(50_000), Some(64 * MB), 0..1),
        (
            "larger",
            limits(json!(1.5), json!(256.0)),
            Some(150_000),
            Some(256 * MB),
            900..1000,
        ),
        (
            "infinite",
            limits(infinite(), infinite()),
            None,
            None,
            1..1000,
        ),
    ] {
        let offer = framework.offer();
        let mut info = task(&offer, id, "sleep 600", &[("cpus", 0.5), ("mem", 64.0)]);
        if !limits.is_null() {
            info["limits"] = limits;
        }
        framework.launch(&offer, &[info]);
        let status = framework.until_state(id, "TASK_RUNNING");
        let container = status["container_status"]["container_id"]["value"].as_str();
        let found = ContainerLimits::from_cluster(&cluster, container.expect("a container id"));
        assert_eq!(found.shares(), 512, "{id}");
        assert_eq!(found.cpu_quota_us(), quota_us, "{id}");
        assert_eq!(found.hard_memory(), memory, "{id}");
        assert_eq!(found.soft_memory(), Some(64 * MB), "{id}");
        let score = found.oom_score_adj();
        assert!(scores.contains(&score), "{id}: {score}");
        framework.kill(id);
        framework.until_state(id, "TASK_KILLED");
    }
}

fn invalid_limits_are_refused() {
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    for (id, limits) in [
        ("lower", json!({"mem": {"value": 32.0}})),
        ("negative", json!({"cpus": {"value": -1.0}})),
        ("disk", json!({"disk": {"value": 64.0}})),
        ("zero", json!({"cpus": {"value": 0.0}})),
    ] {
        let offer = framework.offer();
        let mut info = task(&offer, id, "true", &[("cpus", 0.5), ("mem", 64.0)]);
        info["limits"] = limits;
        framework.launch(&offer, &[info]);
        let status = framework.until_state(id, "TASK_ERROR");
        let message = status["message"].as_str().expect("a message");
        assert!(message.contains("limit"), "{id}: {message}");
    }
    // A limit above the machine's resources is allowed, because an unreached ceiling does no harm.
    let offer = framework.offer();
    let mut info = task(&offer, "huge", "true", &[("cpus", 0.5), ("mem", 64.0)]);
    info["limits"] = json!({"cpus": {"value": 1e9}, "mem": {"value": 1e11}});
    framework.launch(&offer, &[info]);
    framework.until_state("huge", "TASK_FINISHED");
}

/// The rule covers any other writer to the groups, such as a reloaded service manager.
fn changed_limits_are_restored() {
    const LIMIT: Duration = Duration::from_secs(60);
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let [changed, left] = ["changed", "left"].map(|id| {
        let offer = framework.offer();
        let status = framework.run_task(&offer, id, "sleep 600", &[("cpus", 0.5), ("mem", 64.0)]);
        let container = status["container_status"]["container_id"]["value"].as_str();
        ContainerLimits::from_cluster(&cluster, container.expect("a container id"))
    });
    let as_asked =
        |found: &ContainerLimits| found.shares() == 512 && found.hard_memory() == Some(64 * MB);
    assert!(as_asked(&changed) && as_asked(&left));
    changed.write(&["cpu.shares", "cpu.weight"], "100");
    changed.write(&["memory.limit_in_bytes", "memory.max"], "134217728");
    wait::eventually("the limits are set again", LIMIT, || {
        as_asked(&changed).then_some(())
    });
    assert!(as_asked(&left));
    let restored = "meseta_agent_limits_restored_total 1\n";
    wait::eventually("one container's limits were set again", LIMIT, || {
        let page = http::get(&format!("{}/metrics", cluster.agent().url));
        page.text().contains(restored).then_some(())
    });
}

/// Regression: all limits of the container were silently left to their other writer.
fn limits_of_removed_group_are_reported() {
    const LIMIT: Duration = Duration::from_secs(60);
    let cluster = Cluster::default();
    let mut framework = cluster.framework();
    let offer = framework.offer();
    let status = framework.run_task(&offer, "t", "sleep 600", &[("cpus", 0.5), ("mem", 64.0)]);
    let container = status["container_status"]["container_id"]["value"].as_str();
    let limits = ContainerLimits::from_cluster(&cluster, container.expect("a container id"));
    limits.remove_group_of("cpu.shares");
    limits.write(&["memory.limit_in_bytes"], "134217728");
    wait::eventually("the other limit is set again", LIMIT, || {
        (limits.hard_memory() == Some(64 * MB)).then_some(())
    });
    wait::eventually("what is lost is counted", LIMIT, || {
        let page = http::get(&format!("{}/metrics", cluster.agent().url));
        page.text()
            .contains("meseta_agent_limits_lost_total 1\n")
            .then_some(())
    });
}
