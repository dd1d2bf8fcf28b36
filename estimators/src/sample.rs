//! The view of an estimator or a controller on a node at one moment.
//!
//! The agent fills a sample from its monitor, or a replay from a trace. Invariant: an unreadable value is `None`, never a
//! guessed zero; a counter is cumulative since the container began.

use std::time::Duration;

use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Moment, Resources};

/// A sweep over a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UsageSample {
    /// The time of the sweep, which is the present for estimators and controllers.
    pub at: Moment,
    /// All resources of the agent, reservations and volumes included, without oversubscribed ones.
    pub total: Resources,
    pub host: HostUsage,
    /// The executors that are not terminated, also those whose statistics failed.
    pub containers: Vec<ContainerUsage>,
}

/// The usage of the whole machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostUsage {
    /// The number of processors that are online.
    pub cpus: Option<u32>,
    /// The processor time spent on anything but idling since the machine started, all processors together.
    pub cpu_time: Option<Duration>,
    pub load: Option<LoadAverage>,
    pub memory: Option<HostMemory>,
    /// Stall of the whole machine, which shows little of regular work while revocable work has low weight.
    pub cpu_pressure: Option<Pressure>,
    pub memory_pressure: Option<Pressure>,
    /// Stall of the regular containers alone, where the kernel keeps it by control group.
    pub regular_cpu_pressure: Option<Pressure>,
    pub regular_memory_pressure: Option<Pressure>,
}

/// The numbers of runnable and uninterruptible tasks, averaged over three windows; absolute, not by processor.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct LoadAverage {
    pub one: f64,
    pub five: f64,
    pub fifteen: f64,
}

#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct HostMemory {
    pub total_bytes: u64,
    /// The memory that is available without swapping.
    pub available_bytes: u64,
}

impl HostMemory {
    #[must_use]
    pub const fn used_bytes(self) -> u64 {
        self.total_bytes.saturating_sub(self.available_bytes)
    }
}

/// Pressure stall information: shares of the last ten seconds, in per cent.
#[derive(Copy, Clone, Debug, Default, PartialEq)]
pub struct Pressure {
    pub some_avg10: f64,
    pub full_avg10: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ContainerUsage {
    pub framework: FrameworkId,
    pub executor: ExecutorId,
    pub container: Option<ContainerId>,
    /// The resources of the executor and its tasks together. Any revocable part makes the whole container revocable.
    pub allocated: Resources,
    /// The time of the last reading of the statistics; `None` before the first reading.
    pub at: Option<Moment>,
    /// The user and system time together.
    pub cpu_time: Option<Duration>,
    /// Resident memory that cannot be dropped: anonymous pages, without the page cache.
    pub memory_bytes: Option<u64>,
    /// The limit in processors; `None` if only the allocation is known, infinite if unlimited.
    pub cpus_limit: Option<f64>,
    pub memory_limit_bytes: Option<u64>,
    pub started: Option<Moment>,
    /// Whether the container is frozen.
    pub frozen: bool,
    /// The executor's label `eviction_priority`: the lowest is evicted first.
    pub eviction_priority: i64,
}

impl ContainerUsage {
    /// A container without any readings yet.
    #[must_use]
    pub fn new(framework: FrameworkId, executor: ExecutorId, allocated: Resources) -> Self {
        Self {
            framework,
            executor,
            container: None,
            allocated,
            at: None,
            cpu_time: None,
            memory_bytes: None,
            cpus_limit: None,
            memory_limit_bytes: None,
            started: None,
            frozen: false,
            eviction_priority: 0,
        }
    }

    #[must_use]
    pub fn key(&self) -> ExecutorKey {
        ExecutorKey {
            framework: self.framework.clone(),
            executor: self.executor.clone(),
        }
    }

    /// Whether a controller may correct the container.
    #[must_use]
    pub fn is_revocable(&self) -> bool {
        self.allocated
            .iter()
            .any(meseta_resources::Resource::is_revocable)
    }

    /// Whether the statistics are recent enough to count. They may be slightly younger than the sample, if the sample has the
    /// time of the beginning of the sweep.
    pub(crate) fn is_fresh(&self, now: Moment, stale_after: Duration) -> bool {
        let apart = |at: Moment| now.saturating_since(at).max(at.saturating_since(now));
        self.at.is_some_and(|at| apart(at) <= stale_after)
    }
}

/// The name of an executor on a node; its history outlives a container of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExecutorKey {
    pub framework: FrameworkId,
    pub executor: ExecutorId,
}

impl UsageSample {
    /// The containers that a controller may correct.
    pub(crate) fn revocable(&self) -> impl Iterator<Item = &ContainerUsage> {
        self.containers
            .iter()
            .filter(|container| container.is_revocable())
    }

    /// The running revocable resources, without allocation roles.
    #[must_use]
    pub fn allocated_revocable(&self) -> Resources {
        let mut all = Resources::new();
        for container in &self.containers {
            all += container.allocated.revocable().unallocate();
        }
        all
    }
}
