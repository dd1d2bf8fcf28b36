//! The specification of a container to launch: its program, resources, and requested isolation.

use std::ffi::OsString;
use std::path::PathBuf;

use super::{CapabilityRequest, SeccompChoice};
use crate::demand::Demand;
use crate::identity::{ContainerName, ProcessIdentity};
use crate::launcher::{Command, Credentials, Destination, LogFile, MountStep, Rlimit};

/// A container to be launched.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    /// The name, new in this instance.
    pub name: ContainerName,
    pub command: Command,
    /// The whole environment; nothing is inherited.
    pub env: Vec<(OsString, OsString)>,
    /// Working directory (the sandbox), which must exist.
    pub working_dir: PathBuf,
    /// The user of the container; `None` keeps the agent's.
    pub credentials: Option<Credentials>,
    /// The destination of standard output.
    pub stdout: Destination,
    /// The destination of standard error.
    pub stderr: Destination,
    /// Host name inside a uts namespace; `None` keeps the host's.
    pub hostname: Option<String>,
    /// Limits per process (`posix/rlimits`).
    pub rlimits: Vec<Rlimit>,
    /// Requests and limits of resources.
    pub demand: Demand,
    /// The isolation that the task requests; a request that the node does not allow fails the launch.
    pub isolation: TaskIsolation,
    /// The running container whose namespaces, mounts and host name this nested one shares, if any.
    pub inside: Option<Inside>,
}

/// The isolation that a task requests beyond its resources. Build it with `..Default::default()`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TaskIsolation {
    /// The system call filter of the task.
    pub seccomp: SeccompChoice,
    pub capabilities: CapabilityRequest,
    /// The size of the container's `/dev/shm` in bytes.
    pub shm_bytes: Option<u64>,
    /// Whether the container shares the processes of the host (`namespaces/pid` leaves it alone). The caller decides whether a
    /// task may request this.
    pub share_pid_namespace: bool,
    /// Whether the container shares System V and POSIX objects and `/dev/shm` with the host. The caller decides whether a task
    /// may request this.
    pub share_ipc_namespace: bool,
    /// The nested container's own limits of processor and memory, within those of the outer container. Without them it has only
    /// the outer limits. Ignored for other containers, which always have their own.
    pub own_limits: bool,
    /// Bounds of the file of standard output; without them it grows without end. Both streams or neither.
    pub stdout_log: Option<LogFile>,
    /// Bounds of the file of standard error.
    pub stderr_log: Option<LogFile>,
    /// Further mounts of the task, applied after everything that the isolators hide; needs `namespaces/mnt`.
    pub mounts: Vec<MountStep>,
}

/// A process that enters a running container, as `exec` does.
#[derive(Clone, Debug)]
pub struct Inside {
    /// The supervisor of the container to enter.
    pub supervisor: ProcessIdentity,
    /// The file of standard input; with `None` the process has no standard input. A pipe's writer must be open already.
    pub stdin: Option<PathBuf>,
    /// Whether standard input is a terminal that becomes the process's controlling terminal.
    pub terminal: bool,
}
