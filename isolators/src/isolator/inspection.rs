//! The request and the result of a periodic inspection of a container: disks and listening ports.

use std::fmt;
use std::path::{Path, PathBuf};

use super::listeners::Listeners;
use crate::cgroup::Groups;
use crate::identity::{ContainerName, ProcessIdentity};

/// A folder whose use is measured.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskArea {
    /// The folder: a sandbox, or a persistent volume.
    pub path: PathBuf,
    /// The quota in bytes; `None` only measures.
    pub quota_bytes: Option<u64>,
    /// Subfolders that are measured separately (volumes in a sandbox).
    pub excluded: Vec<PathBuf>,
}

/// Ports from the first to the last, both included.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

impl PortRange {
    pub fn contains(self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}-{}", self.first, self.last)
    }
}

#[derive(Debug)]
pub struct Inspection<'a> {
    pub name: &'a ContainerName,
    /// The container's groups; filled by [`crate::Containers::inspect`].
    pub groups: &'a Groups,
    /// The container's supervisor, if known.
    pub supervisor: Option<&'a ProcessIdentity>,
    pub proc: &'a Path,
    pub disk: &'a [DiskArea],
    /// The inputs of the port check; `None` skips it.
    pub ports: Option<PortInspection<'a>>,
}

/// The inputs of the check of a container's listening ports.
#[derive(Copy, Clone, Debug)]
pub struct PortInspection<'a> {
    /// The ports allocated to the container.
    pub allocated: &'a [PortRange],
    /// The machine's listening sockets, the same for all containers of one pass.
    pub listeners: &'a Listeners,
}

/// The measured usage of one folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskUsage {
    pub path: PathBuf,
    /// Blocks in use, in bytes; hard links count once, and other filesystems do not count.
    pub used_bytes: u64,
    pub entries: u64,
    /// Whether the walk stopped at a limit: the true figure is higher.
    pub truncated: bool,
    pub quota_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Inspected {
    /// The usage of each folder that could be measured.
    pub disk: Vec<DiskUsage>,
    /// TCP ports that the container listens on in the host's network, in order.
    pub listening: Vec<u16>,
    /// The broken limits; the agent decides whether they end the container.
    pub breaches: Vec<Breach>,
}

/// A broken limit, with a message.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Breach {
    /// A folder exceeds its quota (`REASON_CONTAINER_LIMITATION_DISK`).
    Disk {
        /// The folder and its usage.
        usage: DiskUsage,
        /// Text for the status update, in Mesos's words.
        message: String,
    },
    /// The container listens on ports that were not allocated to it (`REASON_CONTAINER_LIMITATION`).
    Ports {
        ports: Vec<PortRange>,
        /// Text for the status update, in Mesos's words.
        message: String,
    },
}
