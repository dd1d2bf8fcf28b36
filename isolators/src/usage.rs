//! What a container has used, as the kernel counts it.
//!
//! Filled by the isolators' `usage`. A figure the kernel does not offer here is `None`, never a
//! guessed zero. Counters are cumulative since the container began; times are seconds.

use std::time::Duration;

/// One reading of one container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerUsage {
    /// When it was read, since the Unix epoch; given by the caller.
    pub timestamp: Duration,
    /// Processor time and throttling.
    pub cpu: CpuUsage,
    /// Memory, in bytes.
    pub memory: MemoryUsage,
    /// Processes and threads.
    pub pids: PidsUsage,
    /// Block devices, where `cgroups/blkio` is on.
    pub io: IoUsage,
    /// Stall times, where the unified tree gives them.
    pub pressure: PressureUsage,
}

/// Processor time and CFS throttling.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuUsage {
    /// Time in user mode.
    pub user_secs: Option<f64>,
    /// Time in the kernel.
    pub system_secs: Option<f64>,
    /// CFS periods in which the container was runnable (only with a quota).
    pub nr_periods: Option<u64>,
    /// CFS periods in which it was throttled.
    pub nr_throttled: Option<u64>,
    /// Total time it was throttled.
    pub throttled_secs: Option<f64>,
    /// The quota in force, in CPUs; `None` without one.
    pub limit_cpus: Option<f64>,
}

/// Memory in bytes, and what the kernel did about too much of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryUsage {
    /// All that is charged.
    pub total_bytes: Option<u64>,
    /// All that is charged including swap.
    pub total_memsw_bytes: Option<u64>,
    /// The hard limit in force; `None` when unlimited.
    pub limit_bytes: Option<u64>,
    /// The soft limit (v1) or protection (v2) in force.
    pub soft_limit_bytes: Option<u64>,
    /// Anonymous memory.
    pub rss_bytes: Option<u64>,
    /// Page cache.
    pub cache_bytes: Option<u64>,
    /// Mapped files.
    pub mapped_file_bytes: Option<u64>,
    /// Swapped out.
    pub swap_bytes: Option<u64>,
    /// Pinned.
    pub unevictable_bytes: Option<u64>,
    /// Kernel memory.
    pub kernel_bytes: Option<u64>,
    /// The most that was ever charged.
    pub max_usage_bytes: Option<u64>,
    /// Processes killed by the kernel for want of memory in this container.
    pub oom_kills: Option<u64>,
}

/// Processes and threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PidsUsage {
    /// Processes.
    pub processes: Option<u64>,
    /// Threads (tasks in the kernel's terms).
    pub threads: Option<u64>,
    /// The limit in force; `None` when unlimited.
    pub limit: Option<u64>,
    /// Forks refused because of the limit.
    pub refused: Option<u64>,
}

/// What went to and from block devices, past the page cache.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct IoUsage {
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// Read operations.
    pub reads: Option<u64>,
    /// Write operations.
    pub writes: Option<u64>,
}

/// Total time in which some tasks of the container stood still for want of a resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PressureUsage {
    /// Waiting for a processor.
    pub cpu_some_secs: Option<f64>,
    /// Waiting for memory.
    pub memory_some_secs: Option<f64>,
    /// All of them waiting for memory.
    pub memory_full_secs: Option<f64>,
    /// Waiting for a disk.
    pub io_some_secs: Option<f64>,
    /// All of them waiting for a disk.
    pub io_full_secs: Option<f64>,
}
