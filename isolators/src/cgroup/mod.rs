//! cgroup trees: the trees of this host, our groups in them, and their reading and writing.
//!
//! [`Host`] is detected from the mount table (or a fixture's); a [`Layout`] places one instance's groups in it; [`Groups`]
//! are one container's folders. Groups of version 1 are created and written through cgroups-rs in `v1.rs`. Groups of version 2 and
//! hybrid are created in `v2.rs`, and written in `knob.rs`. A scope of systemd is in `scope.rs`; reading is in `knob.rs`, `open_files/`, `memory_limit.rs` and
//! `destroy.rs`.

mod destroy;
mod drift;
mod host;
mod knob;
mod layout;
mod memory_limit;
mod open_files;
mod scope;
mod v1;
mod v2;

pub use destroy::DestroyOptions;
pub(crate) use destroy::{Destroy, Progress, remove_if_empty, subgroups};
pub(crate) use drift::drifts;
pub use drift::{Drift, DriftKind};
pub use host::{
    CgroupTree, DetectError, Host, Mode, Unified, UnusableCause, UnusableTree, V1Hierarchy,
};
pub use knob::{KnobError, KnobWrite};
pub(crate) use knob::{control_text, flat_value, flat_values, list_pids, number, read_text};
pub(crate) use layout::SUPERVISORS;
pub use layout::{GroupDir, Groups, Layout, LayoutError};
pub(crate) use memory_limit::{UNLIMITED_MIN_BYTES, limit_files, limit_in_force, limit_of};
pub use open_files::Files;
pub(crate) use open_files::{Anchors, Budget};
pub(crate) use scope::restore as restore_scope;
pub use scope::{ScopeError, task_scope};

/// Makes one group; an existing group is fine. The parent must exist: making a removed parent again would leave a group that
/// nobody removes.
fn create(dir: &std::path::Path) -> Result<(), KnobError> {
    match std::fs::create_dir(dir) {
        Ok(()) => show(dir),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(KnobError::Create {
            path: dir.to_owned(),
            source,
        }),
    }
}

/// Makes a new group readable to all users regardless of the umask: programs read their limits there.
fn show(dir: &std::path::Path) -> Result<(), KnobError> {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(dir, mode).map_err(|source| KnobError::Create {
        path: dir.to_owned(),
        source,
    })
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Version {
    V1,
    V2,
}

/// A cgroup controller, by a name for both versions.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub enum Controller {
    /// Shares or weight, and CFS quota.
    Cpu,
    /// CPU time accounting (v1; every v2 group counts its time).
    Cpuacct,
    Memory,
    Pids,
    /// Stopping all tasks of a group (v1; every v2 group can do so).
    Freezer,
    /// The allowed processors and memory nodes.
    Cpuset,
    /// Block devices: `blkio` on v1, `io` on v2.
    Blkio,
    /// The allowed device nodes (v1; on v2 a program attached to the group decides).
    Devices,
    Hugetlb,
    /// Counting events per group (v1; on v2 every group supports it).
    PerfEvent,
}

impl Controller {
    /// All controllers in use here.
    pub const ALL: [Self; 10] = [
        Self::Cpu,
        Self::Cpuacct,
        Self::Memory,
        Self::Pids,
        Self::Freezer,
        Self::Cpuset,
        Self::Blkio,
        Self::Devices,
        Self::Hugetlb,
        Self::PerfEvent,
    ];

    /// The kernel's name, as in the mount options of v1.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Memory => "memory",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
            Self::Cpuset => "cpuset",
            Self::Blkio => "blkio",
            Self::Devices => "devices",
            Self::Hugetlb => "hugetlb",
            Self::PerfEvent => "perf_event",
        }
    }

    /// The kernel's name in `cgroup.controllers` of v2.
    pub fn v2_name(self) -> &'static str {
        match self {
            Self::Blkio => "io",
            other => other.name(),
        }
    }

    /// Whether every v2 group has the controller without enabling.
    pub fn is_core_on_v2(self) -> bool {
        matches!(
            self,
            Self::Cpuacct | Self::Freezer | Self::Devices | Self::PerfEvent
        )
    }
}
