//! cgroups/pids: a ceiling on processes and threads, so that a fork bomb stays in its container.
//!
//! Mesos only counts here; the ceiling is ours, from the demand or the agent's default. v1, and v2 before Linux 6.11, count a
//! refused fork in the group of the forking process; since then v2 counts it in all outer groups of the limit too.

use super::{Isolator, IsolatorOptions, Observed, UsageSource};
use crate::cgroup::{Controller, GroupDir, Groups, KnobWrite, Version, flat_value};
use crate::demand::{Demand, Limit};
use crate::usage::ContainerUsage;

/// The upper limit on `pids.max`: the kernel's own highest pid count.
const LIMIT_MAX: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct Pids {
    options: IsolatorOptions,
}

impl Pids {
    pub(super) fn new(options: IsolatorOptions) -> Self {
        Self { options }
    }
}

impl Isolator for Pids {
    fn name(&self) -> &'static str {
        "cgroups/pids"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Pids, Controller::Freezer]
    }

    fn plan(&self, demand: &Demand, groups: &Groups, observed: &Observed) -> Vec<KnobWrite> {
        if groups.get(Controller::Pids).is_none() {
            return Vec::new();
        }
        let limit = demand.pids_limit.or(self.options.pids_limit.map(Limit::At));
        let value = match limit {
            Some(Limit::At(limit)) if limit < LIMIT_MAX => limit.to_string(),
            // A new group has no limit already.
            None if observed.fresh => return Vec::new(),
            Some(Limit::At(_) | Limit::Unlimited) | None => "max".to_owned(),
        };
        vec![KnobWrite::new(Controller::Pids, "pids.max", value)]
    }

    fn usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let Some(group) = source.groups.get(Controller::Pids) else {
            return;
        };
        usage.pids.threads = source.number(group, "pids.current");
        usage.pids.refused = refused(source, group);
        if source.all {
            usage.pids.limit = source.number(group, "pids.max");
            usage.pids.processes = processes(source, group);
        }
    }

    fn local_usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let Some(group) = source.groups.get(Controller::Pids) else {
            return;
        };
        // The outer groups count them, whatever `cgroups/cpu` has counted in this group alone.
        usage.pids.threads = None;
        if is_refusal_local(source, group) {
            usage.pids.refused = refused(source, group);
        }
        usage.pids.processes = processes(source, group);
    }
}

fn refused(source: &UsageSource<'_>, group: &GroupDir) -> Option<u64> {
    source.read(group, "pids.events", |text| flat_value(text, "max"))
}

/// Whether the outer groups do not count the refused forks of this group.
fn is_refusal_local(source: &UsageSource<'_>, group: &GroupDir) -> bool {
    let tells_both = |group| source.read(group, "pids.events.local", |_| Some(()));
    group.version == Version::V1 || tells_both(group).is_none()
}

fn processes(source: &UsageSource<'_>, group: &GroupDir) -> Option<u64> {
    source.files.read(&group.tasks(), "cgroup.procs", |text| {
        let is_pid = |line: &str| line.trim_ascii().parse::<u32>().is_ok();
        let count = u64::try_from(text.lines().count()).ok();
        count.filter(|_| text.lines().all(is_pid))
    })
}

#[cfg(test)]
mod tests {
    use super::super::NodeOptions;
    use super::*;
    use std::fs;
    use std::path::Path;

    fn groups(dir: &Path) -> Groups {
        super::super::testing::group_at(Version::V2, dir, &[Controller::Pids, Controller::Freezer])
    }

    #[test]
    fn the_demand_goes_before_the_default() {
        let fresh = Observed {
            fresh: true,
            ..Observed::default()
        };
        let running = Observed::default();
        for (default, demand, observed, expected) in [
            (None, None, &fresh, None),
            (None, None, &running, Some("max")),
            (Some(512), None, &fresh, Some("512")),
            (Some(512), Some(Limit::At(8)), &fresh, Some("8")),
            (Some(512), Some(Limit::Unlimited), &fresh, Some("max")),
            (Some(512), Some(Limit::At(u64::MAX)), &fresh, Some("max")),
            (None, Some(Limit::At(0)), &fresh, Some("0")),
        ] {
            let options = IsolatorOptions {
                pids_limit: default,
                ..IsolatorOptions::default()
            };
            let demand = Demand {
                pids_limit: demand,
                ..Demand::default()
            };
            let plan = Pids::new(options).plan(&demand, &groups(Path::new("/x")), observed);
            let values: Vec<_> = plan.iter().map(|write| write.value.as_str()).collect();
            assert_eq!(values, Vec::from_iter(expected), "{default:?} {demand:?}");
        }
    }

    #[test]
    fn processes_threads_and_refusals_are_counted() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(dir.path().join("leaf")).expect("made");
        fs::write(dir.path().join("leaf/cgroup.procs"), "10\n11\n").expect("written");
        fs::write(dir.path().join("pids.current"), "7\n").expect("written");
        fs::write(dir.path().join("pids.max"), "64\n").expect("written");
        fs::write(dir.path().join("pids.events"), "max 3\n").expect("written");
        let groups = groups(dir.path());
        let isolator = Pids::new(IsolatorOptions::default());
        let usage = super::super::testing::usage_of(&isolator, &groups);
        assert_eq!(usage.pids.processes, Some(2));
        assert_eq!(usage.pids.threads, Some(7));
        assert_eq!(usage.pids.limit, Some(64));
        assert_eq!(usage.pids.refused, Some(3));
    }

    /// Version 2 since Linux 6.11 counts a refusal in the outer groups, so adding it would count it twice.
    #[test]
    fn nested_pid_refusals_are_added_once() {
        for (version, tells_both, expected) in [
            (Version::V1, false, Some(3)),
            (Version::V2, false, Some(3)),
            (Version::V2, true, None),
        ] {
            let dir = super::super::testing::folder_of(&[
                ("pids.events", "max 3\n"),
                ("pids.current", "7\n"),
            ]);
            if tells_both {
                fs::write(dir.path().join("pids.events.local"), "max 3\n").expect("written");
            }
            let groups = super::super::testing::group_at(version, dir.path(), &[Controller::Pids]);
            let isolator = Pids::new(IsolatorOptions::default());
            let usage = super::super::testing::local_usage_of(&[&isolator], &groups);
            assert_eq!(usage.pids.refused, expected, "{version:?} {tells_both}");
            assert_eq!(usage.pids.threads, None, "counted around it already");
        }
    }

    /// Regression: with `--cgroups_cpu_enable_pids_and_tids_count` the threads of nested containers counted twice.
    #[test]
    fn nested_threads_are_counted_once() {
        let dir = super::super::testing::folder_of(&[
            ("pids.current", "7\n"),
            ("cgroup.procs", "10\n11\n"),
            ("tasks", "10\n11\n12\n"),
        ]);
        let controllers = [Controller::Pids, Controller::Cpu];
        let groups = super::super::testing::group_at(Version::V1, dir.path(), &controllers);
        let node = NodeOptions {
            count_processes: true,
            ..NodeOptions::default()
        };
        let options = IsolatorOptions::default();
        let cpu = super::super::cpu::Cpu::new(options).with(&node);
        let pids = Pids::new(options);
        let of = super::super::testing::local_usage_of;
        assert_eq!(of(&[&cpu], &groups).pids.threads, Some(3));
        let both = of(&[&cpu, &pids], &groups).pids;
        assert_eq!((both.processes, both.threads), (Some(2), None));
    }
}
