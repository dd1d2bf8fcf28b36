//! The demand of a container: requests and limits, in the kernel side's own plain units.
//!
//! The agent converts its resources once and fills it in. Every isolator's plan is a pure function of a [`Demand`] and of the
//! kernel's present values. No arithmetic on resources happens here.

/// A limit, or explicitly none (`limits: {mem: Infinity}` in Mesos's terms).
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Limit {
    Unlimited,
    /// A ceiling of this much, in the unit of the field that holds it.
    At(u64),
}

/// Requests and limits of one container.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Demand {
    /// Requested CPUs, in thousandths.
    pub cpus_millis: u64,
    /// CPU ceiling in thousandths, when the task gave one.
    pub cpus_limit: Option<Limit>,
    /// Whether some tasks that share the container gave no CPU ceiling: `cpus_limit` counts their requests, and binds only where
    /// requests do (CFS).
    pub cpus_partly_limited: bool,
    /// Whether any of the container's CPUs are revocable.
    pub cpus_revocable: bool,
    /// Requested memory, in bytes. `None` without a memory resource: `cgroups/mem` then gives the container the minimum.
    pub mem_bytes: Option<u64>,
    /// Memory ceiling in bytes, when the task gave one.
    pub mem_limit: Option<Limit>,
    /// Ceiling on processes and threads; `None` takes the isolator's default.
    pub pids_limit: Option<Limit>,
}
