//! What a periodic look at a container is asked and answers: disks and listening ports.

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
    /// What it may hold, in bytes; `None` only measures.
    pub quota_bytes: Option<u64>,
    /// Folders in it that are measured apart (volumes in a sandbox).
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
    /// Its groups; filled by [`crate::Containers::inspect`].
    pub groups: &'a Groups,
    /// Its supervisor, if known.
    pub supervisor: Option<&'a ProcessIdentity>,
    pub proc: &'a Path,
    pub disk: &'a [DiskArea],
    /// `None`: ports are not checked.
    pub ports: Option<PortInspection<'a>>,
}

/// What it takes to check on which ports a container listens.
#[derive(Copy, Clone, Debug)]
pub struct PortInspection<'a> {
    /// The ports that it was given.
    pub allocated: &'a [PortRange],
    /// The machine's listening sockets, the same for all containers of one pass.
    pub listeners: &'a Listeners,
}

/// What was measured of one folder.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DiskUsage {
    pub path: PathBuf,
    /// Blocks in use, in bytes; hard links counted once, other filesystems not at all.
    pub used_bytes: u64,
    pub entries: u64,
    /// Whether there was more than is walked: the true figure is higher.
    pub truncated: bool,
    pub quota_bytes: Option<u64>,
}

#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Inspected {
    /// One entry per folder that could be measured.
    pub disk: Vec<DiskUsage>,
    /// TCP ports that the container listens on in the host's network, in order.
    pub listening: Vec<u16>,
    /// Limits that are broken; whether that ends the container is the agent's decision.
    pub breaches: Vec<Breach>,
}

/// A limit that is broken, with what to say about it.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Breach {
    /// A folder holds too much (`REASON_CONTAINER_LIMITATION_DISK`).
    Disk {
        /// Which, and how much.
        usage: DiskUsage,
        /// Text for the status update, in Mesos's words.
        message: String,
    },
    /// It listens on ports that it was not given (`REASON_CONTAINER_LIMITATION`).
    Ports {
        ports: Vec<PortRange>,
        /// Text for the status update, in Mesos's words.
        message: String,
    },
}
