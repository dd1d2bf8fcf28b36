//! cgroups/mem: soft limit or protection from the request, hard limit from the limit.
//!
//! Mesos's rules: every limit is at least 32 MB, which a container without a memory resource also gets; the hard limit is the
//! limit if there is one, else the request. Once a task may be running the hard limit only rises, since lowering it could
//! kill. On v2 the group is killed as a whole (`memory.oom.group`), and the request is a protection (`memory.low`). The
//! kernel's `oom_kill` counter shows a kill: `oom` also rises without one.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Isolator, IsolatorOptions, Observed, UsageSource};
use crate::cgroup::{
    Controller, GroupDir, Groups, KnobWrite, UNLIMITED_MIN_BYTES, Version, flat_value, flat_values,
    limit_in_force, limit_of,
};
use crate::demand::{Demand, Limit};
use crate::isolator::ContainerSpec;
use crate::launcher::LaunchIsolation;
use crate::limit_event::LimitEvent;
use crate::usage::{ContainerUsage, MemoryUsage};

const LIMIT_MIN_BYTES: u64 = 32 << 20;

const NONE_V1: &str = "-1";
const NONE_V2: &str = "max";

/// The kernel's highest `oom_score_adj`.
const OOM_SCORE_MAX: u64 = 1000;

#[derive(Debug)]
pub(super) struct Memory {
    options: IsolatorOptions,
}

/// The hard limit of a demand, or the minimum.
fn requested_limit(demand: &Demand) -> Limit {
    match demand.mem_limit {
        Some(Limit::Unlimited) => Limit::Unlimited,
        Some(Limit::At(bytes)) => limit_of(bytes.max(LIMIT_MIN_BYTES)),
        None => limit_of(request_bytes(demand)),
    }
}

fn request_bytes(demand: &Demand) -> u64 {
    demand.mem_bytes.unwrap_or(0).max(LIMIT_MIN_BYTES)
}

fn is_raise(from: Option<Limit>, to: Limit) -> bool {
    match (from, to) {
        (Some(Limit::At(from)), Limit::At(to)) => to > from,
        (Some(Limit::At(_)), Limit::Unlimited) => true,
        (Some(Limit::Unlimited) | None, _) => false,
    }
}

impl Memory {
    pub(super) fn new(options: IsolatorOptions) -> Self {
        Self { options }
    }

    /// The OOM score of a task that may use more than its request, which is a likelier victim the less it requested: `1000 - 1000
    /// * request / total`. All others are as likely as any process.
    fn oom_score_adj(&self, demand: &Demand) -> i32 {
        let request = request_bytes(demand);
        let burstable = match requested_limit(demand) {
            Limit::At(limit) => limit > request,
            Limit::Unlimited => true,
        };
        let total = self.options.total_memory_bytes.filter(|total| *total > 0);
        let (true, Some(total)) = (burstable, total) else {
            return 0;
        };
        let share = OOM_SCORE_MAX.saturating_mul(request) / total;
        i32::try_from(OOM_SCORE_MAX.saturating_sub(share)).unwrap_or(0)
    }

    fn plan_v1(&self, demand: &Demand, observed: &Observed) -> Vec<KnobWrite> {
        let write = |file, value: String| KnobWrite::new(Controller::Memory, file, value);
        let soft = text(Limit::At(request_bytes(demand)), NONE_V1);
        let mut plan = vec![write("memory.soft_limit_in_bytes", soft)];
        let limit = requested_limit(demand);
        if !observed.fresh && !is_raise(observed.memory_limit, limit) {
            return plan;
        }
        let hard = write("memory.limit_in_bytes", text(limit, NONE_V1));
        if !self.options.limit_swap {
            plan.push(hard);
            return plan;
        }
        let file = "memory.memsw.limit_in_bytes";
        let swap = KnobWrite::optional(Controller::Memory, file, text(limit, NONE_V1));
        // The kernel keeps memory+swap at or above memory: the first write of a new group is memory, the first write of a raise
        // is memory+swap.
        plan.extend(if observed.fresh {
            [hard, swap]
        } else {
            [swap, hard]
        });
        plan
    }

    fn plan_v2(&self, demand: &Demand, observed: &Observed) -> Vec<KnobWrite> {
        let write = |file, value: String| KnobWrite::new(Controller::Memory, file, value);
        let mut plan = Vec::new();
        if observed.fresh {
            plan.push(KnobWrite::optional(
                Controller::Memory,
                "memory.oom.group",
                1,
            ));
        }
        let low = text(Limit::At(request_bytes(demand)), NONE_V2);
        plan.push(write("memory.low", low));
        let limit = requested_limit(demand);
        if observed.fresh || is_raise(observed.memory_limit, limit) {
            plan.push(write("memory.max", text(limit, NONE_V2)));
            if self.options.limit_swap {
                let swap = if limit == Limit::Unlimited {
                    "max"
                } else {
                    "0"
                };
                plan.push(KnobWrite::optional(
                    Controller::Memory,
                    "memory.swap.max",
                    swap,
                ));
            }
        }
        plan
    }
}

/// Formats a limit in a version's text, whose word for unlimited is `none`.
fn text(limit: Limit, none: &str) -> String {
    match limit {
        Limit::At(bytes) if bytes < UNLIMITED_MIN_BYTES => bytes.to_string(),
        Limit::At(_) | Limit::Unlimited => none.to_owned(),
    }
}

impl Isolator for Memory {
    fn name(&self) -> &'static str {
        "cgroups/mem"
    }

    fn controllers(&self) -> &'static [Controller] {
        &[Controller::Memory, Controller::Freezer]
    }

    fn observe(&self, groups: &Groups, observed: &mut Observed) {
        let Some(group) = groups.get(Controller::Memory) else {
            return;
        };
        observed.memory_limit = limit_in_force(group).unwrap_or_default();
    }

    fn plan(&self, demand: &Demand, groups: &Groups, observed: &Observed) -> Vec<KnobWrite> {
        match groups.get(Controller::Memory).map(|group| group.version) {
            Some(Version::V1) => self.plan_v1(demand, observed),
            Some(Version::V2) => self.plan_v2(demand, observed),
            None => Vec::new(),
        }
    }

    fn launch(&self, spec: &ContainerSpec, launch: &mut LaunchIsolation) -> Result<(), String> {
        launch.oom_score_adj = Some(self.oom_score_adj(&spec.demand));
        Ok(())
    }

    fn watch(&self, groups: &Groups) -> io::Result<Option<LimitEvent>> {
        let Some(group) = groups.get(Controller::Memory) else {
            return Ok(None);
        };
        match group.version {
            Version::V1 => watch_v1(group).map(Some),
            Version::V2 => watch_v2(group).map(Some),
        }
    }

    fn usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let Some(group) = source.groups.get(Controller::Memory) else {
            return;
        };
        match group.version {
            Version::V1 => usage_v1(source, group, &mut usage.memory),
            Version::V2 => usage_v2(source, group, &mut usage.memory),
        }
    }

    /// v1 counts a kill only in the group of the killed process.
    fn local_usage(&self, source: &UsageSource<'_>, usage: &mut ContainerUsage) {
        let group = source.groups.get(Controller::Memory);
        if let Some(group) = group.filter(|group| group.version == Version::V1) {
            usage.memory.oom_kills = oom_kills_v1(source, group);
        }
    }
}

/// v1: an eventfd that the kernel signals on every out-of-memory condition in the group.
fn watch_v1(group: &GroupDir) -> io::Result<LimitEvent> {
    let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
    let control = File::open(group.dir.join("memory.oom_control"))?;
    let line = format!("{} {}", event.as_fd().as_raw_fd(), control.as_raw_fd());
    // The kernel keeps its own reference to the control file, so ours may be closed.
    std::fs::write(group.dir.join("cgroup.event_control"), line)?;
    Ok(LimitEvent::Count(event.into()))
}

/// v2: the kernel notifies readers of `memory.events` when one of its counters changes.
fn watch_v2(group: &GroupDir) -> io::Result<LimitEvent> {
    let event = LimitEvent::File(File::open(group.dir.join("memory.events"))?);
    // A file that was never read reports an event at once.
    event.take()?;
    Ok(event)
}

fn oom_kills_v1(source: &UsageSource<'_>, group: &GroupDir) -> Option<u64> {
    source.read(group, "memory.oom_control", |text| {
        flat_value(text, "oom_kill")
    })
}

fn usage_v1(source: &UsageSource<'_>, group: &GroupDir, memory: &mut MemoryUsage) {
    memory.total_bytes = source.number(group, "memory.usage_in_bytes");
    memory.oom_kills = oom_kills_v1(source, group);
    if !source.all {
        return;
    }
    let finite = |bytes: &u64| *bytes < UNLIMITED_MIN_BYTES;
    memory.total_memsw_bytes = source.number(group, "memory.memsw.usage_in_bytes");
    memory.limit_bytes = source.number(group, "memory.limit_in_bytes").filter(finite);
    memory.soft_limit_bytes = source
        .number(group, "memory.soft_limit_in_bytes")
        .filter(finite);
    memory.kernel_bytes = source.number(group, "memory.kmem.usage_in_bytes");
    memory.kernel_tcp_bytes = source.number(group, "memory.kmem.tcp.usage_in_bytes");
    memory.max_usage_bytes = source.number(group, "memory.max_usage_in_bytes");
    let keys = [
        "total_rss",
        "total_cache",
        "total_mapped_file",
        "total_swap",
        "total_unevictable",
    ];
    let stat = source.read(group, "memory.stat", |text| Some(flat_values(text, keys)));
    [
        memory.rss_bytes,
        memory.cache_bytes,
        memory.mapped_file_bytes,
        memory.swap_bytes,
        memory.unevictable_bytes,
    ] = stat.unwrap_or([None; 5]);
    pressure_v1(source, group, memory);
}

/// Reads the counts of pressure events while the group exists: the end of a group looks like an event of each level.
fn pressure_v1(source: &UsageSource<'_>, group: &GroupDir, memory: &mut MemoryUsage) {
    let events = |level| source.files.pressure_events(&group.dir, level);
    memory.low_pressure = events("low");
    memory.medium_pressure = events("medium");
    memory.critical_pressure = events("critical");
    // Read after the events: the files of a group disappear before the kernel signals its end.
    if source.number(group, "memory.usage_in_bytes").is_none() {
        source.files.forget_events(&group.dir);
        memory.low_pressure = None;
        memory.medium_pressure = None;
        memory.critical_pressure = None;
    }
    // An event between two readings is in the second only; count it in the first too.
    memory.medium_pressure = memory.medium_pressure.max(memory.critical_pressure);
    memory.low_pressure = memory.low_pressure.max(memory.medium_pressure);
}

fn usage_v2(source: &UsageSource<'_>, group: &GroupDir, memory: &mut MemoryUsage) {
    memory.total_bytes = source.number(group, "memory.current");
    memory.oom_kills = source.read(group, "memory.events", |text| flat_value(text, "oom_kill"));
    if !source.all {
        return;
    }
    memory.swap_bytes = source.number(group, "memory.swap.current");
    memory.total_memsw_bytes = memory
        .total_bytes
        .zip(memory.swap_bytes)
        .map(|(total, swap)| total.saturating_add(swap));
    memory.limit_bytes = source.number(group, "memory.max");
    memory.soft_limit_bytes = source.number(group, "memory.low").filter(|low| *low > 0);
    memory.max_usage_bytes = source.number(group, "memory.peak");
    let keys = [
        "anon",
        "file",
        "file_mapped",
        "unevictable",
        "kernel",
        "sock",
    ];
    let stat = source.read(group, "memory.stat", |text| Some(flat_values(text, keys)));
    [
        memory.rss_bytes,
        memory.cache_bytes,
        memory.mapped_file_bytes,
        memory.unevictable_bytes,
        memory.kernel_bytes,
        memory.kernel_tcp_bytes,
    ] = stat.unwrap_or([None; 6]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const MB: u64 = 1 << 20;

    fn groups(version: Version, dir: &Path) -> Groups {
        super::super::testing::group_at(version, dir, &[Controller::Memory, Controller::Freezer])
    }

    fn plan(demand: &Demand, version: Version, observed: &Observed, limit_swap: bool) -> String {
        let options = IsolatorOptions {
            limit_swap,
            ..IsolatorOptions::default()
        };
        let groups = groups(version, Path::new("/x"));
        let text =
            super::super::testing::plan_text(&Memory::new(options), demand, &groups, observed);
        text.replace("memory.", "")
    }

    fn mem(request: u64, limit: Option<Limit>) -> Demand {
        Demand {
            mem_bytes: Some(request * MB),
            mem_limit: limit,
            ..Demand::default()
        }
    }

    #[test]
    fn watching_v2_takes_no_inotify_instance() {
        let dir = tempfile::tempdir().expect("a folder");
        let group = dir.path().join("memory.events");
        std::fs::write(group, "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\n").expect("written");
        let memory = Memory::new(IsolatorOptions::default());
        let event = memory.watch(&groups(Version::V2, dir.path()));
        let event = event.expect("watched").expect("an event");
        let link = format!("/proc/self/fd/{}", event.as_fd().as_raw_fd());
        let target = std::fs::read_link(link).expect("a link");
        assert!(target.ends_with("memory.events"), "{}", target.display());
    }

    #[test]
    fn first_limits_by_table() {
        let fresh = Observed {
            fresh: true,
            ..Observed::default()
        };
        // The demand, the protected memory in MB, and the hard limit (-1 for unlimited).
        for (demand, low, hard) in [
            (mem(64, None), 64, 64),
            (mem(1, None), 32, 32),
            (mem(0, Some(Limit::At(0))), 32, 32),
            (mem(64, Some(Limit::At(128 * MB))), 64, 128),
            (mem(64, Some(Limit::Unlimited)), 64, -1),
            (mem(64, Some(Limit::At(u64::MAX))), 64, -1),
            (Demand::default(), 32, 32),
        ] {
            let low = low << 20;
            let (v1, v2) = match hard {
                -1 => ("-1".to_owned(), "max".to_owned()),
                mb => ((mb << 20).to_string(), (mb << 20).to_string()),
            };
            let found = [Version::V1, Version::V2].map(|it| plan(&demand, it, &fresh, false));
            let expected = [
                format!("soft_limit_in_bytes={low} limit_in_bytes={v1}"),
                format!("oom.group=1 low={low} max={v2}"),
            ];
            assert_eq!(found, expected, "{demand:?}");
        }
    }

    #[test]
    fn existing_hard_limit_is_only_raised() {
        let now = |limit| Observed {
            memory_limit: Some(limit),
            ..Observed::default()
        };
        let soft = "soft_limit_in_bytes=67108864";
        for (observed, wanted, hard) in [
            (now(Limit::At(128 * MB)), None, ""),
            (now(Limit::At(64 * MB)), None, ""),
            (now(Limit::At(32 * MB)), None, " limit_in_bytes=67108864"),
            (
                now(Limit::At(32 * MB)),
                Some(Limit::Unlimited),
                " limit_in_bytes=-1",
            ),
            (now(Limit::Unlimited), Some(Limit::At(64 * MB)), ""),
            (Observed::default(), None, ""),
        ] {
            let demand = mem(64, wanted);
            let plan = plan(&demand, Version::V1, &observed, false);
            assert_eq!(plan, format!("{soft}{hard}"), "{observed:?} {wanted:?}");
        }
        let raise = plan(&mem(64, None), Version::V2, &now(Limit::At(32 * MB)), false);
        assert_eq!(raise, "low=67108864 max=67108864");
        let keep = plan(&mem(64, None), Version::V2, &now(Limit::Unlimited), false);
        assert_eq!(keep, "low=67108864");
    }

    #[test]
    fn only_burstable_tasks_raise_oom_score() {
        let total_memory_bytes = Some(8192 * MB);
        let options = IsolatorOptions {
            total_memory_bytes,
            ..IsolatorOptions::default()
        };
        for (demand, score) in [
            (mem(64, None), 0),
            (mem(64, Some(Limit::At(64 * MB))), 0),
            (mem(1, Some(Limit::At(20 * MB))), 0),
            (mem(2048, Some(Limit::At(4096 * MB))), 750),
            (mem(2048, Some(Limit::Unlimited)), 750),
            (mem(0, Some(Limit::Unlimited)), 997),
            (mem(100_000, Some(Limit::Unlimited)), 0),
            (Demand::default(), 0),
        ] {
            assert_eq!(
                Memory::new(options).oom_score_adj(&demand),
                score,
                "{demand:?}"
            );
            let unknown = Memory::new(IsolatorOptions::default());
            assert_eq!(unknown.oom_score_adj(&demand), 0);
        }
    }

    #[test]
    fn swap_limit_follows_kernel_order() {
        let fresh = Observed {
            fresh: true,
            ..Observed::default()
        };
        let small = Observed {
            memory_limit: Some(Limit::At(32 * MB)),
            ..Observed::default()
        };
        let demand = mem(64, None);
        let soft = "soft_limit_in_bytes=67108864";
        assert_eq!(
            plan(&demand, Version::V1, &fresh, true),
            format!("{soft} limit_in_bytes=67108864 memsw.limit_in_bytes=67108864")
        );
        assert_eq!(
            plan(&demand, Version::V1, &small, true),
            format!("{soft} memsw.limit_in_bytes=67108864 limit_in_bytes=67108864")
        );
        assert!(plan(&demand, Version::V2, &fresh, true).ends_with("max=67108864 swap.max=0"));
    }

    fn read(version: Version, files: &[(&str, &str)]) -> (MemoryUsage, Observed) {
        let dir = super::super::testing::folder_of(files);
        let groups = groups(version, dir.path());
        let mut observed = Observed::default();
        let isolator = Memory::new(IsolatorOptions::default());
        let usage = super::super::testing::usage_of(&isolator, &groups);
        isolator.observe(&groups, &mut observed);
        (usage.memory, observed)
    }

    #[test]
    fn v1_figures() {
        let (usage, observed) = read(
            Version::V1,
            &[
                (
                    "memory.stat",
                    "cache 1\nrss 2\ntotal_cache 10\ntotal_rss 20\ntotal_mapped_file 5\ntotal_swap 3\ntotal_unevictable 0\n",
                ),
                ("memory.usage_in_bytes", "33\n"),
                ("memory.kmem.tcp.usage_in_bytes", "7\n"),
                ("memory.memsw.usage_in_bytes", "36\n"),
                ("memory.limit_in_bytes", "67108864\n"),
                ("memory.soft_limit_in_bytes", "9223372036854771712\n"),
                ("memory.max_usage_in_bytes", "67108864\n"),
                (
                    "memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
                ),
            ],
        );
        let expected = MemoryUsage {
            total_bytes: Some(33),
            total_memsw_bytes: Some(36),
            limit_bytes: Some(64 * MB),
            soft_limit_bytes: None,
            rss_bytes: Some(20),
            cache_bytes: Some(10),
            mapped_file_bytes: Some(5),
            swap_bytes: Some(3),
            unevictable_bytes: Some(0),
            kernel_bytes: None,
            kernel_tcp_bytes: Some(7),
            max_usage_bytes: Some(64 * MB),
            oom_kills: Some(2),
            ..MemoryUsage::default()
        };
        assert_eq!(usage, expected);
        assert_eq!(observed.memory_limit, Some(Limit::At(64 * MB)));
    }

    #[test]
    fn v2_figures() {
        let (usage, observed) = read(
            Version::V2,
            &[
                (
                    "memory.stat",
                    "anon 20\nfile 10\nkernel 4\nfile_mapped 5\nunevictable 0\n",
                ),
                ("memory.current", "33\n"),
                ("memory.swap.current", "3\n"),
                ("memory.max", "max\n"),
                ("memory.low", "67108864\n"),
                ("memory.peak", "40\n"),
                (
                    "memory.events",
                    "low 0\nhigh 0\nmax 9\noom 3\noom_kill 1\noom_group_kill 1\n",
                ),
            ],
        );
        assert_eq!(usage.oom_kills, Some(1));
        assert_eq!(usage.total_memsw_bytes, Some(36));
        assert_eq!(usage.limit_bytes, None);
        assert_eq!(usage.soft_limit_bytes, Some(64 * MB));
        assert_eq!(usage.max_usage_bytes, Some(40));
        assert_eq!(observed.memory_limit, Some(Limit::Unlimited));
        assert_eq!(read(Version::V2, &[]).0, MemoryUsage::default());
    }
}
