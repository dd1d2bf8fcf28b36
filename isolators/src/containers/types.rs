//! The arguments, results and errors of [`super::Containers`].

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::cgroup::{KnobError, LayoutError};
use crate::identity::{ContainerName, ProcessIdentity};
use crate::isolator::{Isolation, IsolationError};
use crate::launcher::LaunchError;
use crate::shortage::is_shortage;
use crate::status::ExitRecord;

/// Options of an agent's containers.
#[derive(Clone, Debug)]
pub struct Options {
    /// The folder with `containers/<name>/{supervisor,status}`; should be on tmpfs (`/run/meseta/agent`).
    pub runtime_dir: PathBuf,
    /// Path of our folder below each hierarchy, for example `meseta`.
    pub cgroups_root: PathBuf,
    /// This agent's folder below the cgroups root; a single path component that is stable over restarts.
    pub instance: ContainerName,
    /// The isolators that are enabled.
    pub isolation: Isolation,
    /// Whether a CPU request without a limit is also a ceiling (`--cgroups_enable_cfs`).
    pub enable_cfs: bool,
    /// Whether revocable CPUs get low shares (`--revocable_cpu_low_priority`).
    pub revocable_cpu_low_priority: bool,
    /// Whether memory limits include swap on v1 (`--cgroups_limit_swap`).
    pub limit_swap: bool,
    /// The default limit on processes and threads per container; `None` sets no limit.
    pub pids_limit: Option<u64>,
    /// The longest time of a launch until exec. Default: 30 s.
    pub launch_timeout: Duration,
}

/// A request to end a container.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct KillRequest {
    /// First signal, to the task's process group; usually SIGTERM.
    pub signal: i32,
    /// Time until SIGKILL to everything in the container; zero kills at once. The supervisor keeps
    /// this time, also while the agent is down. A later request may shorten it, never lengthen.
    pub grace: Duration,
}

/// The outcome of a kill request.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum KillOutcome {
    Delivered,
    /// The supervisor is gone; read the exit record.
    AlreadyGone,
}

/// A limit that the container ran into, with a message.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Limitation {
    /// The kernel killed because memory ran out (`REASON_CONTAINER_LIMITATION_MEMORY`).
    Memory {
        oom_kills: u64,
        /// The hard limit, if it could be read.
        limit_bytes: Option<u64>,
        /// The highest charge, if it could be read.
        max_usage_bytes: Option<u64>,
        /// Text for the status update, in Mesos's words.
        message: String,
    },
}

/// The state of a container found after a restart.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Recovered {
    pub name: ContainerName,
    /// The supervisor, if it is the recorded process and still runs.
    pub supervisor: Option<ProcessIdentity>,
    /// The exit record, if there is a valid one; a damaged record counts as missing.
    pub exit: Option<ExitRecord>,
    /// Whether groups of the container exist.
    pub has_groups: bool,
    /// Whether the container has a folder in the runtime directory.
    pub has_runtime_dir: bool,
}

/// A destroy that did not finish; it may be called again.
#[derive(Debug, thiserror::Error)]
pub enum DestroyError {
    #[error("failed to destroy container {name}: {left}")]
    Left {
        name: ContainerName,
        /// The remaining processes: pids with their states, or folders with the error of their removal.
        left: String,
    },
}

/// Errors of opening the instance.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    #[error("this machine cannot provide the isolation")]
    Isolation(#[source] IsolationError),
    #[error("failed to place the cgroups on this machine")]
    Layout(#[source] LayoutError),
    #[error("failed to prepare the agent's cgroups")]
    Groups(#[source] KnobError),
    #[error("failed to create the runtime folder {path}")]
    RuntimeDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("failed to start the launcher")]
    Launcher(#[source] LaunchError),
}

impl OpenError {
    /// Whether the launcher could not start because descriptors or memory were short, which may change a moment later.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        matches!(self, Self::Launcher(LaunchError::Start { source, .. }) if is_shortage(source))
    }
}

/// Errors of resizing or sampling a container.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ContainerError {
    /// The container has no groups, or no supervisor where groups are not in use.
    #[error("container {0} does not exist")]
    Unknown(ContainerName),
    #[error("failed to resize container {name}")]
    Knob {
        name: ContainerName,
        #[source]
        source: KnobError,
    },
    /// The agent cannot read the limits; they are unknown.
    #[error("failed to read the limits of container {name}")]
    Limits {
        name: ContainerName,
        #[source]
        source: KnobError,
    },
}

impl Recovered {
    pub(super) fn new(name: ContainerName) -> Self {
        Self {
            name,
            supervisor: None,
            exit: None,
            has_groups: false,
            has_runtime_dir: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launcher_descriptor_shortage_can_be_retried() {
        for (errno, expected) in [
            (libc::EMFILE, true),
            (libc::ENOMEM, true),
            (libc::EACCES, false),
        ] {
            let error = OpenError::Launcher(LaunchError::Start {
                doing: "opening launcher.log",
                source: io::Error::from_raw_os_error(errno),
            });
            assert_eq!(error.is_shortage(), expected, "{error:?}");
        }
    }
}
