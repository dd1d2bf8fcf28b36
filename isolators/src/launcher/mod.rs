//! The sealed launcher, which starts processes in containers.
//!
//! [`Launcher::start`] copies the running executable into a sealed memfd and starts one single-threaded process from it,
//! connected by a socket pair, both on a thread of its own. Each [`Launcher::launch`] makes that process clone a supervisor,
//! which never execs, and the supervisor clones the task, which does. The launcher ends when the agent's end of the socket
//! closes; supervisors live on.

mod clean_limits;
mod client;
mod image;
mod lock;
mod output;
mod output_writer;
mod plan;
mod privileges;
mod report;
mod server;
mod stdio;
mod supervisor;
mod task;

use std::ffi::{CString, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::identity::{ContainerName, ProcessIdentity};
use crate::launch_step::LaunchStep;

pub use client::Launcher;
pub(crate) use privileges::pack as pack_filter;

/// First argument of the sealed launcher. Not for users: without the agent's socket on standard input the process does
/// nothing.
const LAUNCHER_ARGUMENT: &str = "--meseta-sealed-launcher";

/// First byte of the launcher's first message, before an errno.
const READY: u8 = b'R';

/// A message without descriptors that a working launcher returns.
const PING: u8 = b'P';

/// The longest plan that travels in the request itself; below the default socket buffer of 208 KiB.
const INLINE_BYTES_MAX: usize = 128 << 10;

/// Turns this process into the sealed launcher if it was started as one.
///
/// Must be the first statement of `main`, before any thread exists:
///
/// ```no_run
/// fn main() -> std::process::ExitCode {
///     if let Some(code) = meseta_isolators::launcher::run_if_requested() {
///         return code;
///     }
///     std::process::ExitCode::SUCCESS
/// }
/// ```
pub fn run_if_requested() -> Option<ExitCode> {
    server::run_if_requested()
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Command {
    /// A command that `/bin/sh -c <text>` runs.
    Shell(String),
    /// A program with its arguments, including the zeroth. It is looked up in the task's own `PATH` unless it has a slash.
    Argv {
        program: OsString,
        /// Arguments, the zeroth first.
        args: Vec<OsString>,
    },
    /// No program: the process exits with success once all steps before an exec are done.
    Nothing,
}

/// Numeric identity that a task runs with.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// Errors of looking up the [`Credentials`] of a user.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    #[error("no such user: {0:?}")]
    Unknown(String),
    #[error("failed to look up user {name:?}")]
    Lookup {
        name: String,
        #[source]
        source: io::Error,
    },
}

impl Credentials {
    /// Looks a user name up, with its groups. Numbers are not names.
    pub fn lookup(name: &str) -> Result<Self, CredentialsError> {
        let failed = |errno: nix::Error| CredentialsError::Lookup {
            name: name.to_owned(),
            source: errno.into(),
        };
        let user = nix::unistd::User::from_name(name).map_err(failed)?;
        let user = user.ok_or_else(|| CredentialsError::Unknown(name.to_owned()))?;
        let c_name = CString::new(name).map_err(|_| CredentialsError::Unknown(name.to_owned()))?;
        let groups = nix::unistd::getgrouplist(&c_name, user.gid).map_err(failed)?;
        Ok(Self {
            uid: user.uid.as_raw(),
            gid: user.gid.as_raw(),
            groups: groups.into_iter().map(nix::unistd::Gid::as_raw).collect(),
        })
    }
}

/// The destination of a process's output.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Destination {
    /// A file at a path beneath a folder, opened for appending. Only the caller can move the folder. The entries below may belong
    /// to anybody, so no link is followed, and an existing file must be a plain file of the process's user.
    File {
        beneath: PathBuf,
        path: PathBuf,
    },
    /// A pipe or terminal that the caller made for this process, at a path that only the caller can change. The process's user
    /// becomes its owner.
    Endpoint(PathBuf),
    Null,
}

impl Destination {
    /// The destination of a file with this name in a folder that only the caller can move.
    pub fn file(folder: &Path, name: &str) -> Self {
        Self::File {
            beneath: folder.to_owned(),
            path: name.into(),
        }
    }

    pub fn path(&self) -> PathBuf {
        match self {
            Self::File { beneath, path } => beneath.join(path),
            Self::Endpoint(path) => path.clone(),
            Self::Null => NULL.into(),
        }
    }
}

/// The null device, which discards all output.
const NULL: &str = "/dev/null";

/// A resource limit of the task's processes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Rlimit {
    /// The number of the `RLIMIT_*` constant.
    pub resource: u32,
    /// Soft limit; `u64::MAX` is infinity.
    pub soft: u64,
    /// Hard limit; `u64::MAX` is infinity.
    pub hard: u64,
}

/// A single launch: the launcher's part of a container, and the additions of the isolators.
#[derive(Clone, Debug)]
pub struct LaunchSpec<'a> {
    /// The name of the container.
    pub name: &'a ContainerName,
    pub command: &'a Command,
    /// The whole environment; nothing is inherited.
    pub env: &'a [(OsString, OsString)],
    pub working_dir: &'a Path,
    /// The user of the task; `None` keeps the agent's.
    pub credentials: Option<&'a Credentials>,
    /// The destination of standard output.
    pub stdout: &'a Destination,
    /// The destination of standard error.
    pub stderr: &'a Destination,
    /// Folder for the exit status and the supervisor's identity; must exist.
    pub status_dir: PathBuf,
    pub isolation: LaunchIsolation,
}

/// The additions of isolators to a launch.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct LaunchIsolation {
    /// A new pid namespace; the supervisor is its first process.
    pub pid_namespace: bool,
    /// A new mount namespace; together with a new pid namespace it has its own `/proc`.
    pub mount_namespace: bool,
    /// A new cgroup namespace, whose roots are the task's groups.
    pub cgroup_namespace: bool,
    /// New System V and POSIX queue namespace.
    pub ipc_namespace: bool,
    /// A new host name namespace with this name (or the host's).
    pub uts_namespace: bool,
    pub hostname: Option<String>,
    /// The v1 groups into which the task writes itself, as group folders.
    pub v1_groups: Vec<PathBuf>,
    /// The v2 group into which the task is cloned.
    pub v2_group: Option<PathBuf>,
    pub rlimits: Vec<Rlimit>,
    pub no_new_privs: bool,
    /// The value for the task's `oom_score_adj`, if given.
    pub oom_score_adj: Option<i32>,
    /// A new network namespace, with only the loopback interface, which is up.
    pub network_namespace: bool,
    /// Changes to the mount table, in order. They need `mount_namespace`, which makes a new mount namespace, or `join`;
    /// with `join` they change the mounts of the joined namespace.
    pub mounts: Vec<MountStep>,
    /// The remaining capabilities; `None` leaves them as exec does.
    pub capabilities: Option<CapabilitySets>,
    /// System call filters, each installed on top of the one before; they need `no_new_privs`.
    pub seccomp: Vec<SeccompProgram>,
    /// A process whose namespaces the task enters; then no namespace may be new.
    pub join: Option<ProcessIdentity>,
    /// The file of standard input, in place of the null device.
    pub stdin: Option<PathBuf>,
    /// Whether standard input is a terminal that becomes the task's controlling terminal.
    pub terminal: bool,
    /// Bounds of the file of standard output; without them the task writes to the file itself. Both streams or neither.
    pub stdout_log: Option<LogFile>,
    /// The bounded log file of standard error.
    pub stderr_log: Option<LogFile>,
}

/// The kept part of a task's output: a file, and older ones named `<file>.1`, `<file>.2`, ...
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct LogFile {
    /// The size at which a file is renamed, in bytes; at least a page.
    pub bytes: u64,
    /// The number of older files to keep.
    pub files: u32,
}

/// A single change to the mount table of a container's own mount namespace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MountStep {
    /// The path of the change. A missing path is skipped, except by [`MountAction::Bind`].
    pub path: PathBuf,
    pub action: MountAction,
}

/// The action of a [`MountStep`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum MountAction {
    /// Makes this mount and all mounts below it read-only.
    ReadOnlyTree,
    /// Makes this folder or file read-only, whether or not it is a mount of its own.
    ReadOnlyPath,
    /// Replaces a cgroup tree by a read-only view of it from the container's own cgroup namespace. A tree that the kernel cannot
    /// show this way is left out.
    CgroupTree {
        /// The controllers of a v1 hierarchy, separated by commas; `None` for the v2 tree.
        controllers: Option<String>,
    },
    /// Covers a file with `/dev/null`.
    MaskFile,
    /// Covers a folder with an empty, read-only one.
    MaskFolder,
    /// Mounts a new tmpfs of at most so many bytes, writable for all users.
    Tmpfs { bytes: u64 },
    /// Shows another path here, with the mounts below it. A file covers a file, and a folder covers a folder; both must exist.
    /// Anything else fails the launch.
    Bind {
        source: MountSource,
        /// The folder that `path` is relative to, as in [`MountSource`]. Without it, no part of `path` may be a link.
        beneath: Option<PathBuf>,
        /// Whether the mount is writable here.
        writable: bool,
    },
    /// Removes the mount on this folder; a folder without a mount is fine.
    Unmount {
        /// The folder of the path, as for [`MountAction::Bind`].
        beneath: Option<PathBuf>,
    },
}

/// A file or folder that others may move during the lookup.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct MountSource {
    /// The folder that `path` is relative to; the lookup below it follows no link.
    pub beneath: Option<PathBuf>,
    pub path: PathBuf,
    /// Whether the lookup uses the file rights of the container's user. Then no part of `path` may be a link.
    pub by_user: bool,
}

/// Capabilities as bit sets, bit n for capability number n.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct CapabilitySets {
    /// The upper limit for every program of the container.
    pub bounding: u64,
    /// The set at the start of the task: permitted, effective and, for users other than root, ambient.
    pub effective: u64,
}

/// A compiled system call filter: one number per instruction, as the kernel's `sock_filter` lies in
/// memory on a little-endian machine.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SeccompProgram(pub Vec<u64>);

#[derive(Clone, Debug)]
pub struct LauncherOptions {
    /// The agent's runtime folder, which also holds the launcher's own log, `launcher.log`.
    pub runtime_dir: PathBuf,
    /// The longest time of a launch until exec, after which it fails. Default: 30 s.
    pub launch_timeout: Duration,
    /// The v1 `tasks` files into which the launcher writes itself at its start, so that it and the supervisors are out of the
    /// agent's own groups.
    pub supervisor_tasks: Vec<PathBuf>,
    /// The v2 group into which each supervisor is cloned. The launcher stays in the agent's group: a move would cost an RCU grace
    /// period at its start (8 ms), and it ends with the agent anyway.
    pub supervisor_group: Option<PathBuf>,
}

/// A task that has been executed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Launched {
    /// The container's supervisor; its end is the container's end.
    pub supervisor: ProcessIdentity,
    /// The task's main process, in the agent's numbering.
    pub task_pid: i32,
}

/// Errors of a launch. After any of these no process of the launch is left, unless the variant documents it.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    #[error("launch of {name} failed when {}: {detail}{}", step.doing(), step.lacking(source))]
    Step {
        name: ContainerName,
        step: LaunchStep,
        /// The target of the step: a path, or a limit's number.
        detail: String,
        #[source]
        source: io::Error,
    },
    #[error("failed to start the launcher: {doing}")]
    Start {
        doing: &'static str,
        #[source]
        source: io::Error,
    },
    /// The launcher died or fell silent; the caller must destroy the container, and may launch it again.
    #[error("the launcher was lost while launching {name}: {doing}")]
    Lost {
        name: ContainerName,
        doing: &'static str,
    },
    /// Another process of the container killed the task's process, or the kernel killed it because memory ran out.
    #[error("launch of {name} failed: its process was killed before it executed anything")]
    Killed { name: ContainerName },
    #[error("failed to prepare the cgroups of {name}")]
    Groups {
        name: ContainerName,
        #[source]
        source: crate::cgroup::KnobError,
    },
    /// The container's folder in the runtime directory could not be made; it may exist already.
    #[error("failed to create {path} for {name}")]
    RuntimeDir {
        name: ContainerName,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("launch of {name} refused: {reason}")]
    Invalid { name: ContainerName, reason: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_resolved_by_name_only() {
        let root = Credentials::lookup("root").expect("every machine has one");
        assert_eq!((root.uid, root.gid), (0, 0));
        for name in ["0", "", "no such user", "a\0b"] {
            let unknown = Credentials::lookup(name);
            assert!(
                matches!(unknown, Err(CredentialsError::Unknown(_))),
                "{name:?} {unknown:?}"
            );
        }
    }
}
