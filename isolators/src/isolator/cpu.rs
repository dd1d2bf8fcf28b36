//! cgroups/cpu: shares or weight from the request, CFS quota from the limit.
//!
//! Mesos's formulas. v1: `cpu.shares = max(1024 * cpus, 2)`; v2: `cpu.weight = max(100 * cpus, 1)`; both: period 100 ms,
//! quota `max(100 ms * cpus, 1 ms)` for the limit, or for the request where CFS is enabled. A container with revocable CPUs
//! gets a hundredth of that weight. If the operator enables it (and the kernel can, since 5.15), such a container is idle: it
//! runs only when nothing else does.

use super::{Isolator, IsolatorOptions, NodeOptions, Observed, UsageSource};
use crate::cgroup::{
    Controller, GroupDir, Groups, KnobWrite, Version, flat_values, number, read_text,
};
use crate::demand::{Demand, Limit};
use crate::usage::{ContainerUsage, PressureUsage};

pub(crate) const PERIOD_US: u64 = 100_000;
pub(crate) const QUOTA_MIN_US: u64 = 1_000;
/// The kernel's largest quota, `(1 << 44) - 1`.
const QUOTA_MAX_US: u64 = (1 << 44) - 1;

pub(crate) const SHARES_PER_CPU: u64 = 1024;
const SHARES_PER_CPU_REVOCABLE: u64 = 10;
pub(crate) const SHARES_MIN: u64 = 2;
/// The kernel silently clamps shares to this.
pub(crate) const SHARES_MAX: u64 = 262_144;

pub(crate) const WEIGHT_PER_CPU: u64 = 100;
const WEIGHT_PER_CPU_REVOCABLE: u64 = 1;
pub(crate) const WEIGHT_MIN: u64 = 1;
/// The kernel's upper limit on weights.
pub(crate) const WEIGHT_MAX: u64 = 10_000;

/// Ticks per second of `cpuacct.stat`, a constant of the kernel's interface.
const USER_HZ: f64 = 100.0;
const NANOS_PER_SEC: f64 = 1e9;
const MICROS_PER_SEC: f64 = 1e6;

#[derive(Debug)]
pub(super) struct Cpu {
    options: IsolatorOptions,
    /// Whether revocable containers run only when nothing else needs the processor.
    revocable_idle: bool,
    /// Whether this isolator counts processes and threads.
    counts: bool,
}

impl Cpu {
    pub(super) fn new(options: IsolatorOptions) -> Self {
        Self {
            options,
            revocable_idle: false,
            counts: false,
        }
    }

    pub(super) fn with(self, node: &NodeOptions) -> Self {
        Self {
            revocable_idle: node.revocable_cpu_idle,
            counts: node.count_processes,
            ..self
        }
    }

    /// Plans the weight and the idleness of the group. An idle group refuses a weight, so the order of the two writes depends on
    /// its present state; a kernel without `cpu.idle` (before 5.15) has the weight only.
    fn plan_weight(
        &self,
        demand: &Demand,
        file: &'static str,
        version: Version,
        observed: &Observed,
    ) -> Vec<KnobWrite> {
        let idle = self.revocable_idle && demand.cpus_revocable;
        let weight = || KnobWrite::new(Controller::Cpu, file, self.weight(demand, version));
        let switch = |value| KnobWrite::optional(Controller::Cpu, "cpu.idle", value);
        match (observed.cpu_idle, idle) {
            (false, false) => vec![weight()],
            (false, true) => vec![weight(), switch(1)],
            (true, false) => vec![switch(0), weight()],
            (true, true) => Vec::new(),
        }
    }

    fn weight(&self, demand: &Demand, version: Version) -> u64 {
        let low = demand.cpus_revocable && self.options.revocable_cpu_low_priority;
        let (per_cpu, min, max) = match (version, low) {
            (Version::V1, false) => (SHARES_PER_CPU, SHARES_MIN, SHARES_MAX),
            (Version::V1, true) => (SHARES_PER_CPU_REVOCABLE, SHARES_MIN, SHARES_MAX),
            (Version::V2, false) => (WEIGHT_PER_CPU, WEIGHT_MIN, WEIGHT_MAX),
            (Version::V2, true) => (WEIGHT_PER_CPU_REVOCABLE, WEIGHT_MIN, WEIGHT_MAX),
        };
        (per_cpu.saturating_mul(demand.cpus_millis) / 1000).clamp(min, max)
    }

    /// The quota in microseconds per period; `None` without a ceiling.
    fn quota(&self, demand: &Demand) -> Option<u64> {
        let millis = match demand.cpus_limit {
            Some(Limit::Unlimited) => return None,
            Some(Limit::At(_)) if demand.cpus_partly_limited && !self.options.enable_cfs => {
                return None;
            }
            Some(Limit::At(millis)) => millis,
            None if self.options.enable_cfs => demand.cpus_millis,
            None => return None,
        };
        Some((PERIOD_US.saturating_mul(millis) / 1000).clamp(QUOTA_MIN_US, QUOTA_MAX_US))
    }

    /// Counts processes and threads in the group itself, if enabled; the later `cgroups/pids` is more accurate.
    fn count(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let group = source.groups.get(Controller::Cpu);
        let Some(group) = group.filter(|_| self.counts && source.all) else {
            return;
        };
        let dir = group.tasks();
        let threads = match group.version {
            Version::V1 => "tasks",
            Version::V2 => "cgroup.threads",
        };
        let lines = |file| {
            let count = |text: &str| u64::try_from(text.lines().count()).ok();
            source.files.read(&dir, file, count)
        };
        usage.pids.processes = lines("cgroup.procs");
        usage.pids.threads = lines(threads);
    }
}

impl Isolator for Cpu {
    fn name(&self) -> &'static str {
        "cgroups/cpu"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Cpu, Controller::Cpuacct, Controller::Freezer]
    }

    fn observe(&self, groups: &Groups, observed: &mut Observed) {
        let group = groups.get(Controller::Cpu);
        let limit =
            |group: &GroupDir| limit_cpus(group.version, |file| read_text(&group.dir, file));
        observed.cpu_quota = group.and_then(limit).is_some();
        observed.cpu_idle = group.and_then(|group| number(&group.dir, "cpu.idle")) == Some(1);
    }

    fn plan(&self, demand: &Demand, groups: &Groups, observed: &Observed) -> Vec<KnobWrite> {
        let Some(group) = groups.get(Controller::Cpu) else {
            return Vec::new();
        };
        let write = |file, value: String| KnobWrite::new(Controller::Cpu, file, value);
        let below = |quota: u64| observed.cpu_ceiling_us.map_or(quota, |top| quota.min(top));
        let quota = self.quota(demand).map(below);
        match group.version {
            Version::V1 => {
                let mut plan = self.plan_weight(demand, "cpu.shares", group.version, observed);
                if let Some(quota) = quota {
                    plan.push(write("cpu.cfs_period_us", PERIOD_US.to_string()));
                    plan.push(write("cpu.cfs_quota_us", quota.to_string()));
                } else if observed.cpu_quota {
                    plan.push(write("cpu.cfs_quota_us", "-1".to_owned()));
                }
                plan
            }
            Version::V2 => {
                let mut plan = self.plan_weight(demand, "cpu.weight", group.version, observed);
                if let Some(quota) = quota {
                    plan.push(write("cpu.max", format!("{quota} {PERIOD_US}")));
                } else if observed.cpu_quota {
                    plan.push(write("cpu.max", format!("max {PERIOD_US}")));
                }
                plan
            }
        }
    }

    fn usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let groups = source.groups;
        times(source, groups.get(Controller::Cpuacct), usage);
        throttling(source, groups.get(Controller::Cpu), usage);
        self.count(source, usage);
        if source.all {
            usage.cpu.limit_cpus = groups.get(Controller::Cpu).and_then(|group| {
                let text = |file| source.read(group, file, |text| Some(text.to_owned()));
                limit_cpus(group.version, text)
            });
            usage.pressure = groups
                .unified()
                .map_or_else(PressureUsage::default, |group| pressure(source, group));
        }
    }

    /// The throttling figures. The outer groups count time too, but each version counts throttling only at the quota.
    fn local_usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        throttling(source, source.groups.get(Controller::Cpu), usage);
        self.count(source, usage);
    }
}

/// Reads user and system time.
fn times(source: &UsageSource<'_>, group: Option<&GroupDir>, usage: &mut ContainerUsage) {
    let read = |group: &GroupDir| match group.version {
        Version::V1 => source.read(group, "cpuacct.stat", |text| {
            Some((flat_values(text, ["user", "system"]), USER_HZ))
        }),
        Version::V2 => source.read(group, "cpu.stat", |text| {
            Some((
                flat_values(text, ["user_usec", "system_usec"]),
                MICROS_PER_SEC,
            ))
        }),
    };
    let (counts, per_sec) = group.and_then(read).unwrap_or(([None; 2], 1.0));
    let [user, system] = counts.map(|count| count.map(|count| seconds(count, per_sec)));
    (usage.cpu.user_secs, usage.cpu.system_secs) = (user, system);
}

fn throttling(source: &UsageSource<'_>, group: Option<&GroupDir>, usage: &mut ContainerUsage) {
    let read = |group: &GroupDir| {
        let (time, per_sec) = match group.version {
            Version::V1 => ("throttled_time", NANOS_PER_SEC),
            Version::V2 => ("throttled_usec", MICROS_PER_SEC),
        };
        source.read(group, "cpu.stat", |text| {
            let keys = ["nr_periods", "nr_throttled", time];
            Some((flat_values(text, keys), per_sec))
        })
    };
    let (counts, per_sec) = group.and_then(read).unwrap_or(([None; 3], 1.0));
    let [periods, throttled, time] = counts;
    (usage.cpu.nr_periods, usage.cpu.nr_throttled) = (periods, throttled);
    usage.cpu.throttled_secs = time.map(|time| seconds(time, per_sec));
}

/// The quota in force, in CPUs.
fn limit_cpus(version: Version, read: impl Fn(&'static str) -> Option<String>) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<u64>().ok();
    // -1 and max do not parse as numbers: they mean no quota.
    let (quota, period) = match version {
        Version::V1 => {
            let quota = number(&read("cpu.cfs_quota_us")?)?;
            (quota, number(&read("cpu.cfs_period_us")?)?)
        }
        Version::V2 => {
            let text = read("cpu.max")?;
            let (quota, period) = text.trim().split_once(' ')?;
            (number(quota)?, number(period)?)
        }
    };
    (period > 0).then(|| seconds(quota, 1.0) / seconds(period, 1.0))
}

/// Stall times of the unified tree: `some` and `full` of each resource.
fn pressure(source: &UsageSource<'_>, group: &GroupDir) -> PressureUsage {
    let totals = |file| {
        let totals = source.read(group, file, |text| Some(pressure_totals(text)));
        totals.unwrap_or([None; 2])
    };
    let [cpu_some_secs, cpu_full_secs] = totals("cpu.pressure");
    let [memory_some_secs, memory_full_secs] = totals("memory.pressure");
    let [io_some_secs, io_full_secs] = totals("io.pressure");
    PressureUsage {
        cpu_some_secs,
        cpu_full_secs,
        memory_some_secs,
        memory_full_secs,
        io_some_secs,
        io_full_secs,
    }
}

/// Parses lines of `some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000`, in microseconds.
fn pressure_totals(text: &str) -> [Option<f64>; 2] {
    let total = |who: &str| {
        let line = text
            .lines()
            .find(|line| line.split(' ').next() == Some(who))?;
        let value = line.rsplit_once("total=")?.1.trim_ascii().parse().ok()?;
        Some(seconds(value, MICROS_PER_SEC))
    };
    ["some", "full"].map(total)
}

/// A count in units of which `per_sec` make a second. Exact up to 2^53, 285 years of microseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "a figure for people and rates, see above"
)]
fn seconds(count: u64, per_sec: f64) -> f64 {
    count as f64 / per_sec
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn groups(version: Version, dir: &Path) -> Groups {
        super::super::testing::group_at(
            version,
            dir,
            &[Controller::Cpu, Controller::Cpuacct, Controller::Freezer],
        )
    }

    fn plan(options: IsolatorOptions, demand: &Demand, version: Version, quota: bool) -> String {
        let observed = Observed {
            fresh: !quota,
            cpu_quota: quota,
            ..Observed::default()
        };
        let groups = groups(version, Path::new("/x"));
        super::super::testing::plan_text(&Cpu::new(options), demand, &groups, &observed)
    }

    #[test]
    fn process_and_thread_counts_are_optional() {
        for (version, below, threads) in [
            (Version::V1, "", "tasks"),
            (Version::V2, "leaf", "cgroup.threads"),
        ] {
            let dir = tempfile::tempdir().expect("a temporary folder");
            let group = dir.path().join(below);
            fs::create_dir_all(&group).expect("made");
            fs::write(group.join("cgroup.procs"), "10\n11\n").expect("written");
            fs::write(group.join(threads), "10\n11\n12\n").expect("written");
            for counts in [true, false] {
                let node = NodeOptions {
                    count_processes: counts,
                    ..NodeOptions::default()
                };
                let cpu = Cpu::new(IsolatorOptions::default()).with(&node);
                let usage = super::super::testing::usage_of(&cpu, &groups(version, dir.path()));
                let found = (usage.pids.processes, usage.pids.threads);
                let expected = if counts {
                    (Some(2), Some(3))
                } else {
                    (None, None)
                };
                assert_eq!(found, expected, "{version:?}");
            }
        }
    }

    #[test]
    fn the_formulas_by_table() {
        let none = IsolatorOptions::default();
        let cfs = IsolatorOptions {
            enable_cfs: true,
            ..none
        };
        let low = IsolatorOptions {
            revocable_cpu_low_priority: true,
            ..none
        };
        let cpus = |millis| Demand {
            cpus_millis: millis,
            ..Demand::default()
        };
        let limit = |millis, limit| Demand {
            cpus_limit: Some(limit),
            ..cpus(millis)
        };
        let oversubscribed = |millis| Demand {
            cpus_revocable: true,
            ..cpus(millis)
        };
        // The demand and whether there is a quota; shares on v1, weight on v2, and the written quota.
        for (options, demand, quota, shares, weight, written) in [
            (none, cpus(1000), false, 1024, 100, None),
            (none, cpus(2500), false, 2560, 250, None),
            (none, cpus(1), false, 2, 1, None),
            (none, cpus(0), false, 2, 1, None),
            (none, cpus(1_000_000), false, 262144, 10000, None),
            (none, cpus(u64::MAX), false, 262144, 10000, None),
            (low, oversubscribed(1000), false, 10, 1, None),
            (low, oversubscribed(100), false, 2, 1, None),
            (low, oversubscribed(8000), false, 80, 8, None),
            (none, oversubscribed(1000), false, 1024, 100, None),
            (cfs, cpus(500), false, 512, 50, Some(50000)),
            (cfs, cpus(1), false, 2, 1, Some(1000)),
            (
                none,
                limit(100, Limit::At(500)),
                false,
                102,
                10,
                Some(50000),
            ),
            (cfs, limit(100, Limit::Unlimited), false, 102, 10, None),
            (cfs, limit(100, Limit::Unlimited), true, 102, 10, Some(-1)),
            (none, cpus(100), true, 102, 10, Some(-1)),
        ] {
            let (v1, v2) = match written {
                None => (String::new(), String::new()),
                Some(-1) => (
                    " cpu.cfs_quota_us=-1".to_owned(),
                    " cpu.max=max 100000".to_owned(),
                ),
                Some(quota) => (
                    format!(" cpu.cfs_period_us=100000 cpu.cfs_quota_us={quota}"),
                    format!(" cpu.max={quota} 100000"),
                ),
            };
            let found = [Version::V1, Version::V2].map(|it| plan(options, &demand, it, quota));
            let expected = [
                format!("cpu.shares={shares}{v1}"),
                format!("cpu.weight={weight}{v2}"),
            ];
            assert_eq!(found, expected, "{demand:?}");
        }
    }

    fn read(version: Version, files: &[(&str, &str)]) -> ContainerUsage {
        let dir = super::super::testing::folder_of(files);
        let isolator = Cpu::new(IsolatorOptions::default());
        super::super::testing::usage_of(&isolator, &groups(version, dir.path()))
    }

    #[test]
    fn v1_and_v2_usage_agree() {
        let v1 = read(
            Version::V1,
            &[
                ("cpuacct.stat", "user 150\nsystem 25\n"),
                (
                    "cpu.stat",
                    "nr_periods 30\nnr_throttled 29\nthrottled_time 2500000000\n",
                ),
                ("cpu.cfs_quota_us", "50000\n"),
                ("cpu.cfs_period_us", "100000\n"),
            ],
        );
        let v2 = read(
            Version::V2,
            &[
                (
                    "cpu.stat",
                    "usage_usec 1750000\nuser_usec 1500000\nsystem_usec 250000\nnr_periods 30\n\
                     nr_throttled 29\nthrottled_usec 2500000\n",
                ),
                ("cpu.max", "50000 100000\n"),
            ],
        );
        assert_eq!(v1.cpu, v2.cpu);
        assert_eq!(v1.cpu.user_secs, Some(1.5));
        assert_eq!(v1.cpu.throttled_secs, Some(2.5));
        assert_eq!(v1.cpu.limit_cpus, Some(0.5));
    }

    #[test]
    fn missing_cpu_figures_are_none() {
        assert_eq!(read(Version::V1, &[]), ContainerUsage::default());
        let unlimited = read(
            Version::V2,
            &[("cpu.max", "max 100000\n"), ("cpu.stat", "user_usec 1\n")],
        );
        assert_eq!(unlimited.cpu.limit_cpus, None);
        assert_eq!(unlimited.cpu.nr_periods, None);
        assert_eq!(unlimited.cpu.user_secs, Some(0.000_001));
    }

    #[test]
    fn pressure_comes_from_unified_tree() {
        let usage = read(
            Version::V2,
            &[
                (
                    "memory.pressure",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=1500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n",
                ),
                (
                    "cpu.pressure",
                    "some avg10=1.00 avg60=0.00 avg300=0.00 total=2000000\n",
                ),
            ],
        );
        assert_eq!(usage.pressure.memory_full_secs, Some(0.5));
        assert_eq!(usage.pressure.memory_some_secs, Some(1.5));
        assert_eq!(usage.pressure.cpu_some_secs, Some(2.0));
        assert_eq!(usage.pressure.io_full_secs, None);
    }

    #[test]
    fn an_idle_group_takes_no_weight() {
        for (version, weight) in [(Version::V1, "cpu.shares"), (Version::V2, "cpu.weight")] {
            let groups = groups(version, Path::new("/nowhere"));
            let options = IsolatorOptions {
                revocable_cpu_low_priority: true,
                ..IsolatorOptions::default()
            };
            let plan = |wanted, was, revocable| {
                let demand = Demand {
                    cpus_millis: 1000,
                    cpus_revocable: revocable,
                    ..Demand::default()
                };
                let observed = Observed {
                    cpu_idle: was,
                    ..Observed::default()
                };
                let isolator = Cpu::new(options).with(&NodeOptions {
                    revocable_cpu_idle: wanted,
                    ..NodeOptions::default()
                });
                let plan = isolator.plan(&demand, &groups, &observed);
                let words = plan
                    .into_iter()
                    .map(|write| (write.file, write.value, write.optional));
                words.collect::<Vec<_>>()
            };
            let (low, usual) = match version {
                Version::V1 => ("10", "1024"),
                Version::V2 => ("1", "100"),
            };
            let write = |value: &str| (weight, value.to_owned(), false);
            let switch = |value: &str| ("cpu.idle", value.to_owned(), true);
            assert_eq!(plan(false, false, true), [write(low)]);
            assert_eq!(plan(true, false, true), [write(low), switch("1")]);
            assert_eq!(plan(true, true, true), []);
            assert_eq!(plan(true, true, false), [switch("0"), write(usual)]);
            // The operator changed the options between two runs of the agent.
            assert_eq!(plan(false, true, true), [switch("0"), write(low)]);
        }
    }
}
