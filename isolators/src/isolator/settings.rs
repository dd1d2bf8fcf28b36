//! Settings of the isolators, from the flags of the agent.

use super::{CapabilitySet, DeviceRule, PortRange, SeccompProfile};

/// Settings of the isolators, from the agent's flags.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct IsolatorOptions {
    /// Whether a CPU request without a limit is also a ceiling.
    pub enable_cfs: bool,
    /// Whether revocable CPUs get low shares.
    pub revocable_cpu_low_priority: bool,
    /// Whether memory limits include swap.
    pub limit_swap: bool,
    /// The default limit on processes and threads per container.
    pub pids_limit: Option<u64>,
    /// The machine's memory; `None` when unknown.
    pub total_memory_bytes: Option<u64>,
}

/// Settings of the isolators beyond [`IsolatorOptions`], from the agent's flags.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeOptions {
    /// The upper limit for every container, and the set of root's containers unless they request less (`linux/capabilities`).
    /// Default: [`CapabilitySet::standard`].
    pub capabilities: CapabilitySet,
    /// The capabilities at the start of every container of any user, unless its task requests others (`linux/capabilities`).
    /// Default: all of the above for root, none for others.
    pub granted_capabilities: Option<CapabilitySet>,
    /// The filter of containers without their own (`linux/seccomp`); `None`, the default, is [`SeccompProfile::standard`] for the
    /// container's capabilities.
    pub seccomp: Option<SeccompProfile>,
    /// Device nodes besides the usual ones (`cgroups/devices`). Default: none.
    pub devices: Vec<DeviceRule>,
    /// The size of `/dev/shm` unless the task requests another, in bytes (`filesystem/shm`). Default: 64 MiB.
    pub shm_bytes: u64,
    /// Whether containers with revocable CPUs run only when nothing else needs the processor, where the kernel has `cpu.idle`
    /// (`cgroups/cpu`). Default: false.
    pub revocable_cpu_idle: bool,
    /// Whether `cgroups/cpu` counts processes and threads, where `cgroups/pids` does not. Default: false.
    pub count_processes: bool,
    /// Processors of all containers, as `0-3,8` (`cgroups/cpuset`). Default: those of the parent group.
    pub cpuset_cpus: Option<String>,
    /// Memory nodes of all containers (`cgroups/cpuset`). Default: those of the parent group.
    pub cpuset_mems: Option<String>,
    /// Huge pages per container and page size, in bytes (`cgroups/hugetlb`). Default: no limit.
    pub hugetlb_bytes: Option<u64>,
    /// The port ranges whose listeners are checked (`network/ports`). Default: all.
    pub isolated_ports: Option<Vec<PortRange>>,
}

impl Default for NodeOptions {
    fn default() -> Self {
        Self {
            capabilities: CapabilitySet::standard(),
            granted_capabilities: None,
            seccomp: None,
            devices: Vec::new(),
            shm_bytes: 64 << 20,
            revocable_cpu_idle: false,
            count_processes: false,
            cpuset_cpus: None,
            cpuset_mems: None,
            hugetlb_bytes: None,
            isolated_ports: None,
        }
    }
}
