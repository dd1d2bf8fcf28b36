//! The usage of a container, as the kernel counts it.
//!
//! The isolators' `usage` fills the figures. A figure that the kernel does not offer is `None`, never a guessed zero.
//! Counters are cumulative since the container began; times are seconds.

use std::time::Duration;

/// A single reading of one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerUsage {
    /// The time of the reading, since the Unix epoch; given by the caller.
    pub timestamp: Duration,
    pub cpu: CpuUsage,
    /// Memory in use, by kind, and counters of its pressure.
    pub memory: MemoryUsage,
    pub pids: PidsUsage,
    /// Block devices, where `cgroups/blkio` is on.
    pub io: IoUsage,
    /// Stall times, where the unified tree provides them.
    pub pressure: PressureUsage,
}

/// Processor time and CFS throttling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUsage {
    pub user_secs: Option<f64>,
    pub system_secs: Option<f64>,
    /// CFS periods in which the container was runnable (only with a quota).
    pub nr_periods: Option<u64>,
    /// CFS periods in which the container was throttled.
    pub nr_throttled: Option<u64>,
    pub throttled_secs: Option<f64>,
    /// The quota in force, in CPUs; `None` without a quota.
    pub limit_cpus: Option<f64>,
}

/// Memory in bytes, and the kernel's reactions to a lack of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryUsage {
    /// The charged memory in all.
    pub total_bytes: Option<u64>,
    /// The charged memory including swap.
    pub total_memsw_bytes: Option<u64>,
    /// The hard limit in force; `None` when unlimited.
    pub limit_bytes: Option<u64>,
    /// The soft limit (v1) or protection (v2) in force.
    pub soft_limit_bytes: Option<u64>,
    /// Bytes of resident anonymous memory.
    pub rss_bytes: Option<u64>,
    pub cache_bytes: Option<u64>,
    pub mapped_file_bytes: Option<u64>,
    /// Bytes that are swapped out.
    pub swap_bytes: Option<u64>,
    /// Bytes of pages that are pinned.
    pub unevictable_bytes: Option<u64>,
    pub kernel_bytes: Option<u64>,
    /// The part of `kernel_bytes` in buffers of sockets.
    pub kernel_tcp_bytes: Option<u64>,
    /// The highest charge so far.
    pub max_usage_bytes: Option<u64>,
    /// Processes of this container that the kernel killed because memory ran out.
    pub oom_kills: Option<u64>,
    /// The numbers of events of low, medium and critical pressure since the agent watches (v1).
    pub low_pressure: Option<u64>,
    /// Events as in `low_pressure`; each level also counts in those below it.
    pub medium_pressure: Option<u64>,
    pub critical_pressure: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct PidsUsage {
    pub processes: Option<u64>,
    /// Threads (tasks in the kernel's terms).
    pub threads: Option<u64>,
    /// The limit in force; `None` when unlimited.
    pub limit: Option<u64>,
    /// Forks refused because of the limit.
    pub refused: Option<u64>,
}

/// The transfers from and to block devices, past the page cache.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IoUsage {
    pub read_bytes: Option<u64>,
    pub write_bytes: Option<u64>,
    pub reads: Option<u64>,
    pub writes: Option<u64>,
}

/// Total time in which some tasks of the container stalled, waiting for a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PressureUsage {
    /// Total time in which some tasks waited for a processor.
    pub cpu_some_secs: Option<f64>,
    /// Total time in which all tasks waited for a processor, because of a quota or of others.
    pub cpu_full_secs: Option<f64>,
    pub memory_some_secs: Option<f64>,
    pub memory_full_secs: Option<f64>,
    pub io_some_secs: Option<f64>,
    pub io_full_secs: Option<f64>,
}

impl ContainerUsage {
    /// Makes counters absent that are behind an earlier reading: the use between the two is unknown. The next reading is compared
    /// with this one as it was read.
    pub(crate) fn without_setbacks(&self, earlier: &Self) -> Self {
        fn check<T: PartialOrd + Copy>(now: &mut Option<T>, before: Option<T>) {
            if let (Some(value), Some(before)) = (*now, before)
                && value < before
            {
                *now = None;
            }
        }
        let mut checked = self.clone();
        let (cpu, was) = (&mut checked.cpu, &earlier.cpu);
        check(&mut cpu.user_secs, was.user_secs);
        check(&mut cpu.system_secs, was.system_secs);
        check(&mut cpu.nr_periods, was.nr_periods);
        check(&mut cpu.nr_throttled, was.nr_throttled);
        check(&mut cpu.throttled_secs, was.throttled_secs);
        check(&mut checked.memory.oom_kills, earlier.memory.oom_kills);
        check(&mut checked.pids.refused, earlier.pids.refused);
        let (io, was) = (&mut checked.io, &earlier.io);
        check(&mut io.read_bytes, was.read_bytes);
        check(&mut io.write_bytes, was.write_bytes);
        check(&mut io.reads, was.reads);
        check(&mut io.writes, was.writes);
        let (pressure, was) = (&mut checked.pressure, &earlier.pressure);
        check(&mut pressure.cpu_some_secs, was.cpu_some_secs);
        check(&mut pressure.cpu_full_secs, was.cpu_full_secs);
        check(&mut pressure.memory_some_secs, was.memory_some_secs);
        check(&mut pressure.memory_full_secs, was.memory_full_secs);
        check(&mut pressure.io_some_secs, was.io_some_secs);
        check(&mut pressure.io_full_secs, was.io_full_secs);
        checked
    }

    /// Adds the local figures of a container nested in this one, see [`crate::Isolator::local_usage`].
    pub(crate) fn add_local(&mut self, nested: &Self) {
        self.merge_local(nested, sum, sum_secs);
        let (pids, within) = (&mut self.pids, &nested.pids);
        pids.processes = sum(pids.processes, within.processes);
        pids.threads = sum(pids.threads, within.threads);
    }

    /// Takes the local counters of another reading, which include those of nested containers.
    pub(crate) fn take_local(&mut self, other: &Self) {
        self.merge_local(other, |_, other| other, |_, other| other);
    }

    /// Makes the local figures absent, except threads, which not every isolator counts in each group alone.
    pub(crate) fn clear_local(&mut self) {
        self.take_local(&Self::default());
        self.pids.processes = None;
    }

    /// Raises each local counter to the higher value of two readings, either of which may lack some.
    pub(crate) fn raise_local(&mut self, other: &Self) {
        self.merge_local(other, further, further);
    }

    /// Whether a local counter is above zero.
    pub(crate) fn has_local(&self) -> bool {
        let counts = self.local_counts().into_iter();
        counts.flatten().any(|count| count > 0)
    }

    fn merge_local(
        &mut self,
        other: &Self,
        counts: fn(Option<u64>, Option<u64>) -> Option<u64>,
        secs: fn(Option<f64>, Option<f64>) -> Option<f64>,
    ) {
        let own = self.local_counts_mut().into_iter();
        for (own, other) in own.zip(other.local_counts()) {
            *own = counts(*own, other);
        }
        self.cpu.throttled_secs = secs(self.cpu.throttled_secs, other.cpu.throttled_secs);
    }

    /// All local counters except that of time, [`CpuUsage::throttled_secs`]; their order is that of the stored form.
    pub(crate) fn local_counts(&self) -> [Option<u64>; LOCAL_COUNTS] {
        self.clone().local_counts_mut().map(|count| *count)
    }

    /// The local counters, by mutable reference.
    pub(crate) fn local_counts_mut(&mut self) -> [&mut Option<u64>; LOCAL_COUNTS] {
        let (cpu, io) = (&mut self.cpu, &mut self.io);
        [
            &mut io.read_bytes,
            &mut io.write_bytes,
            &mut io.reads,
            &mut io.writes,
            &mut self.pids.refused,
            &mut self.memory.oom_kills,
            &mut cpu.nr_periods,
            &mut cpu.nr_throttled,
        ]
    }
}

pub(crate) const LOCAL_COUNTS: usize = 8;

/// The sum of two figures; if only one of the two is known, that figure.
fn sum(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.map_or(other, |one| Some(one.saturating_add(other.unwrap_or(0))))
}

fn sum_secs(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.map_or(other, |one| Some(one + other.unwrap_or(0.0)))
}

fn further<T: PartialOrd>(one: Option<T>, other: Option<T>) -> Option<T> {
    if one < other { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decreasing_counter_is_absent_once() {
        let reading = |user_secs, memory| ContainerUsage {
            cpu: CpuUsage {
                user_secs: Some(user_secs),
                ..CpuUsage::default()
            },
            memory: MemoryUsage {
                total_bytes: Some(memory),
                ..MemoryUsage::default()
            },
            ..ContainerUsage::default()
        };
        let back = reading(1.0, 10).without_setbacks(&reading(2.0, 20));
        assert_eq!(back.cpu.user_secs, None);
        assert_eq!(back.memory.total_bytes, Some(10), "a gauge may fall");
        let on = reading(1.5, 10).without_setbacks(&reading(1.0, 10));
        assert_eq!(on.cpu.user_secs, Some(1.5));
    }

    #[test]
    fn every_counter_is_compared() {
        let reading = |count: u64, secs: f64| {
            let (count, secs) = (Some(count), Some(secs));
            ContainerUsage {
                cpu: CpuUsage {
                    user_secs: secs,
                    system_secs: secs,
                    nr_periods: count,
                    nr_throttled: count,
                    throttled_secs: secs,
                    limit_cpus: None,
                },
                memory: MemoryUsage {
                    oom_kills: count,
                    ..MemoryUsage::default()
                },
                pids: PidsUsage {
                    refused: count,
                    ..PidsUsage::default()
                },
                io: IoUsage {
                    read_bytes: count,
                    write_bytes: count,
                    reads: count,
                    writes: count,
                },
                pressure: PressureUsage {
                    cpu_some_secs: secs,
                    cpu_full_secs: secs,
                    memory_some_secs: secs,
                    memory_full_secs: secs,
                    io_some_secs: secs,
                    io_full_secs: secs,
                },
                ..ContainerUsage::default()
            }
        };
        let (before, after) = (reading(8, 2.0), reading(7, 1.0));
        assert_eq!(after.without_setbacks(&before), ContainerUsage::default());
        assert_eq!(before.without_setbacks(&after), before);
    }

    #[test]
    fn only_local_figures_are_added() {
        let reading = |count: u64| {
            let mut reading = ContainerUsage::default();
            for counter in reading.local_counts_mut() {
                *counter = Some(count);
            }
            reading.cpu.throttled_secs = Some(0.5);
            reading.pids.processes = Some(count);
            reading.memory.total_bytes = Some(count);
            reading
        };
        let mut outer = reading(1);
        outer.io.reads = None;
        outer.add_local(&reading(2));
        let mut expected = reading(3);
        expected.io.reads = Some(2);
        expected.cpu.throttled_secs = Some(1.0);
        expected.memory.total_bytes = Some(1);
        assert_eq!(outer, expected);
        // If neither reading has the figure, the sum has none.
        let mut none = ContainerUsage::default();
        none.add_local(&ContainerUsage::default());
        assert_eq!(none, ContainerUsage::default());
        let mut noted = reading(5);
        noted.raise_local(&reading(4));
        assert_eq!(noted.io.reads, Some(5));
        noted.io.reads = None;
        noted.raise_local(&reading(4));
        assert_eq!(noted.io.reads, Some(4));
        assert!(noted.has_local() && !none.has_local());
    }
}
