//! A launch, resolved to C strings and numbers, and its passage through the launcher's socket.
//!
//! The agent makes a [`TaskPlan`] from a [`LaunchSpec`] (every possible refusal happens there) and encodes it as bytes. The
//! supervisor decodes it, and then has every string that it or the task needs before exec. Fields travel length-prefixed in
//! one fixed order; both ends are always the same executable, so the format has no version.

mod bytes;

use std::ffi::{CString, OsStr};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{
    CapabilitySets, Command, Credentials, Destination, LaunchError, LaunchIsolation, LaunchSpec,
    LaunchStep, LogFile, MountAction, MountStep, NULL, SeccompProgram,
};
use crate::beneath::Owner;
use crate::identity::BootId;
use crate::sys::namespaces;

/// Longest encoded plan. The kernel takes about 2 MiB of arguments and environment.
pub(super) const PLAN_BYTES_MAX: usize = 4 << 20;

/// The longest path of the kernel (`PATH_MAX` without its zero byte).
const PATH_BYTES_MAX: usize = 4095;

/// The cost of a string in an encoded plan beside its own bytes: its length.
const LENGTH_BYTES: usize = 8;

/// The search path for a program without a slash when the task has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The plan of everything between a request and an exec.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct TaskPlan {
    /// Namespace flags of the supervisor's clone.
    pub(super) namespaces: u64,
    pub(super) boot_id: Vec<u8>,
    pub(super) status_dir: CString,
    pub(super) hostname: Option<Vec<u8>>,
    pub(super) stdout: PlannedOutput,
    pub(super) stderr: PlannedOutput,
    /// The `tasks` files of the v1 groups.
    pub(super) v1_tasks: Vec<CString>,
    pub(super) v2_group: Option<CString>,
    /// The text for `oom_score_adj`.
    pub(super) oom_score_adj: Option<Vec<u8>>,
    /// Limits as resource, soft value, hard value.
    pub(super) rlimits: Vec<[u64; 3]>,
    pub(super) no_new_privs: bool,
    pub(super) mounts: Vec<PlannedMount>,
    pub(super) capabilities: Option<CapabilitySets>,
    pub(super) seccomp: Vec<SeccompProgram>,
    pub(super) stdout_log: Option<LogFile>,
    pub(super) stderr_log: Option<LogFile>,
    /// Uid, gid, supplementary groups.
    pub(super) credentials: Option<(u32, u32, Vec<u32>)>,
    pub(super) working_dir: CString,
    /// The candidate paths of the program, in order; empty to execute nothing.
    pub(super) programs: Vec<CString>,
    pub(super) args: Vec<CString>,
    pub(super) env: Vec<CString>,
    /// The pid and start time of a process whose namespaces the task enters, or zeros.
    pub(super) join: [u64; 2],
    pub(super) stdin: Option<CString>,
    pub(super) terminal: bool,
    pub(super) cgroup_namespace: bool,
}

/// A destination with its strings.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct PlannedOutput {
    /// The folder that `path` is relative to, for a file.
    pub(super) beneath: Option<CString>,
    /// The path; empty for no output.
    pub(super) path: CString,
}

impl PlannedOutput {
    fn new(to: &Destination) -> Result<Self, String> {
        Ok(match to {
            Destination::File { beneath, path } => Self {
                beneath: Some(c_path(beneath)?),
                path: c_path(path)?,
            },
            Destination::Endpoint(path) => Self {
                beneath: None,
                path: c_path(path)?,
            },
            Destination::Null => Self::default(),
        })
    }
}

impl fmt::Display for PlannedOutput {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(beneath) = &self.beneath {
            write!(to, "{}/", beneath.to_string_lossy())?;
        }
        match self.path.is_empty() {
            true => to.write_str(NULL),
            false => to.write_str(&self.path.to_string_lossy()),
        }
    }
}

/// A mount step with its strings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PlannedMount {
    pub(super) path: CString,
    /// The folder that `path` is relative to.
    pub(super) beneath: Option<CString>,
    pub(super) action: PlannedAction,
}

/// A mount action with its strings.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum PlannedAction {
    ReadOnlyTree,
    ReadOnlyPath,
    MaskFile,
    /// A cgroup tree: its controllers, or empty for the v2 tree.
    CgroupTree {
        controllers: CString,
    },
    /// A new tmpfs with these options, writable for all users or for none.
    Tmpfs {
        options: CString,
        writable: bool,
    },
    Bind {
        beneath: Option<CString>,
        path: CString,
        /// Whether the source is opened with the rights of the task's user.
        by_user: bool,
        writable: bool,
    },
    Unmount,
}

impl PlannedMount {
    fn new(step: &MountStep) -> Result<Self, String> {
        let confined = |beneath: &Option<PathBuf>| beneath.as_deref().map(c_path).transpose();
        let tmpfs = |options: String, writable| -> Result<PlannedAction, String> {
            let options = c_text(options.as_bytes(), "a mount option")?;
            Ok(PlannedAction::Tmpfs { options, writable })
        };
        let mut beneath = None;
        let action = match &step.action {
            MountAction::Tmpfs { bytes } => tmpfs(format!("mode=1777,size={bytes}"), true)?,
            MountAction::MaskFolder => tmpfs("mode=555,size=4k".to_owned(), false)?,
            MountAction::ReadOnlyTree => PlannedAction::ReadOnlyTree,
            MountAction::ReadOnlyPath => PlannedAction::ReadOnlyPath,
            MountAction::MaskFile => PlannedAction::MaskFile,
            MountAction::CgroupTree { controllers } => PlannedAction::CgroupTree {
                controllers: c_text(
                    controllers.as_deref().unwrap_or_default().as_bytes(),
                    "a controller",
                )?,
            },
            MountAction::Bind {
                source,
                beneath: root,
                writable,
            } => {
                beneath = confined(root)?;
                PlannedAction::Bind {
                    beneath: confined(&source.beneath)?,
                    path: c_path(&source.path)?,
                    by_user: source.by_user,
                    writable: *writable,
                }
            }
            MountAction::Unmount { beneath: root } => {
                beneath = confined(root)?;
                PlannedAction::Unmount
            }
        };
        Ok(Self {
            path: c_path(&step.path)?,
            beneath,
            action,
        })
    }
}

impl TaskPlan {
    /// Resolves a specification; refuses impossible ones.
    pub(super) fn new(spec: &LaunchSpec<'_>, boot_id: &BootId) -> Result<Self, LaunchError> {
        Self::resolve(spec, boot_id).map_err(|reason| LaunchError::Invalid {
            name: spec.name.clone(),
            reason,
        })
    }

    fn resolve(spec: &LaunchSpec<'_>, boot_id: &BootId) -> Result<Self, String> {
        let isolation = &spec.isolation;
        let (programs, args) = resolve_command(spec)?;
        let wanted = [
            (isolation.pid_namespace, namespaces::PID),
            (isolation.mount_namespace, namespaces::MOUNT),
            (isolation.ipc_namespace, namespaces::IPC),
            (isolation.uts_namespace, namespaces::UTS),
            (isolation.network_namespace, namespaces::NETWORK),
        ];
        let plan = Self {
            namespaces: wanted
                .iter()
                .filter(|(on, _)| *on)
                .fold(0, |all, (_, flag)| all | flag),
            boot_id: boot_id.as_str().as_bytes().to_vec(),
            status_dir: c_path(&spec.status_dir)?,
            hostname: isolation
                .hostname
                .as_ref()
                .map(|name| name.as_bytes().to_vec()),
            stdout: PlannedOutput::new(spec.stdout)?,
            stderr: PlannedOutput::new(spec.stderr)?,
            v1_tasks: isolation
                .v1_groups
                .iter()
                .map(|group| c_path(&group.join("tasks")))
                .collect::<Result<_, _>>()?,
            v2_group: isolation.v2_group.as_deref().map(c_path).transpose()?,
            oom_score_adj: isolation
                .oom_score_adj
                .map(|score| score.to_string().into_bytes()),
            rlimits: isolation
                .rlimits
                .iter()
                .map(|limit| [u64::from(limit.resource), limit.soft, limit.hard])
                .collect(),
            no_new_privs: isolation.no_new_privs,
            mounts: resolve_mounts(spec)?,
            capabilities: isolation.capabilities,
            seccomp: isolation.seccomp.clone(),
            stdout_log: isolation.stdout_log.or(isolation.stderr_log),
            stderr_log: isolation.stderr_log.or(isolation.stdout_log),
            credentials: spec
                .credentials
                .filter(|user| !is_already(user))
                .map(|user| (user.uid, user.gid, user.groups.clone())),
            working_dir: c_path(spec.working_dir)?,
            programs,
            args,
            env: resolve_env(spec)?,
            join: resolve_join(isolation)?,
            stdin: isolation.stdin.as_deref().map(c_path).transpose()?,
            terminal: isolation.terminal,
            cgroup_namespace: isolation.cgroup_namespace,
        };
        Ok(plan)
    }

    /// The owner of the files made for the task.
    pub(super) fn owner(&self) -> Owner {
        let credentials = self.credentials.as_ref();
        credentials.map(|(uid, gid, _)| (*uid, *gid))
    }

    /// The target of a failed step, for its message.
    pub(super) fn detail(&self, step: LaunchStep, index: usize) -> String {
        let text = |text: Option<&CString>| {
            text.map_or_else(String::new, |text| text.to_string_lossy().into_owned())
        };
        match step {
            LaunchStep::RecordIdentity => text(Some(&self.status_dir)),
            LaunchStep::OpenStdio => format!("{}, {}", self.stdout, self.stderr),
            LaunchStep::JoinCgroup if self.v1_tasks.is_empty() => text(self.v2_group.as_ref()),
            LaunchStep::JoinCgroup => text(self.v1_tasks.get(index)),
            LaunchStep::CloneTask => text(self.v2_group.as_ref()),
            LaunchStep::OomScore => {
                let score = self.oom_score_adj.as_deref().unwrap_or_default();
                String::from_utf8_lossy(score).into_owned()
            }
            LaunchStep::Rlimit => {
                let limit = self.rlimits.get(index);
                limit.map_or_else(String::new, |[resource, soft, hard]| {
                    format!("number {resource}, soft {soft}, hard {hard}")
                })
            }
            LaunchStep::Credentials => {
                let user = self.credentials.as_ref();
                user.map_or_else(String::new, |(uid, gid, groups)| {
                    format!("user {uid}, group {gid}, further groups {groups:?}")
                })
            }
            LaunchStep::WorkingDir => text(Some(&self.working_dir)),
            LaunchStep::Exec if self.programs.len() > 1 => text(self.args.first()),
            LaunchStep::Exec => text(self.programs.first()),
            LaunchStep::Hostname => {
                let name = self.hostname.as_deref().unwrap_or_default();
                String::from_utf8_lossy(name).into_owned()
            }
            LaunchStep::Mount => text(self.mounts.get(index).map(|mount| &mount.path)),
            LaunchStep::Capabilities => format!("{:x?}", self.capabilities),
            LaunchStep::Seccomp => format!("filter {index}"),
            LaunchStep::JoinNamespaces => format!("process {}", self.join[0]),
            LaunchStep::Terminal => text(self.stdin.as_ref()),
            LaunchStep::CloneSupervisor
            | LaunchStep::MountPropagation
            | LaunchStep::MountProc
            | LaunchStep::Setsid
            | LaunchStep::NoNewPrivs
            | LaunchStep::Loopback
            | LaunchStep::CgroupNamespace
            | LaunchStep::CloseFds => format!("namespaces {:#x}", self.namespaces),
        }
    }
}

/// Whether we run as that user and could not become another: then there is nothing to change, and the system call would fail.
fn is_already(user: &Credentials) -> bool {
    let uid = nix::unistd::geteuid();
    !uid.is_root() && uid.as_raw() == user.uid && nix::unistd::getegid().as_raw() == user.gid
}

/// The namespaces to enter.
fn resolve_join(isolation: &LaunchIsolation) -> Result<[u64; 2], String> {
    let Some(who) = &isolation.join else {
        return Ok([0, 0]);
    };
    let pid = u64::try_from(who.pid).map_err(|_| "a pid is not negative".to_owned())?;
    Ok([pid, who.start_ticks])
}

/// Resolves the mounts. Refuses changes of the host's own mounts, and a filter that the kernel would refuse.
fn resolve_mounts(spec: &LaunchSpec<'_>) -> Result<Vec<PlannedMount>, String> {
    let isolation = &spec.isolation;
    if !isolation.mounts.is_empty() && !isolation.mount_namespace && isolation.join.is_none() {
        return Err("mounts can be changed in a mount namespace only".to_owned());
    }
    if !isolation.seccomp.is_empty() && !isolation.no_new_privs {
        return Err("a system call filter needs no_new_privs".to_owned());
    }
    let is_outside =
        |step: &MountStep| matches!(&step.action, MountAction::Bind { beneath: None, .. });
    let is_root = spec.credentials.is_none_or(|user| user.uid == 0);
    if !is_root && !isolation.no_new_privs && isolation.mounts.iter().any(is_outside) {
        // The task could choose the files that root's programs read.
        return Err("mounting over the machine's files needs no_new_privs".to_owned());
    }
    isolation.mounts.iter().map(PlannedMount::new).collect()
}

/// The programs to try and their arguments; no program if nothing is executed.
fn resolve_command(spec: &LaunchSpec<'_>) -> Result<(Vec<CString>, Vec<CString>), String> {
    match spec.command {
        Command::Nothing => Ok((Vec::new(), Vec::new())),
        Command::Shell(text) => {
            let args = [OsStr::new("sh"), OsStr::new("-c"), OsStr::new(text)];
            let args = args
                .into_iter()
                .map(|arg| c_text(arg.as_bytes(), "the command"));
            Ok((vec![c"/bin/sh".to_owned()], args.collect::<Result<_, _>>()?))
        }
        Command::Argv { program, args } => {
            if program.is_empty() {
                return Err("no program is given".to_owned());
            }
            let programs = resolve_program(program, spec)?;
            let args = if args.is_empty() {
                std::slice::from_ref(program)
            } else {
                args
            };
            let args = args.iter().map(|arg| c_text(arg.as_bytes(), "an argument"));
            Ok((programs, args.collect::<Result<_, _>>()?))
        }
    }
}

/// The candidate paths of the program, in order. A task chooses the program's name and its `PATH`, whose product must not
/// fill the agent's memory: paths too long for the kernel are skipped, and the sum is bounded as it grows.
fn resolve_program(program: &OsStr, spec: &LaunchSpec<'_>) -> Result<Vec<CString>, String> {
    let program = program.as_bytes();
    if program.len() > PATH_BYTES_MAX {
        return Err(format!(
            "the program's path has {} bytes, more than {PATH_BYTES_MAX}",
            program.len()
        ));
    }
    if program.contains(&b'/') {
        return Ok(vec![c_text(program, "the program")?]);
    }
    let path = spec.env.iter().rev().find(|(name, _)| name == "PATH");
    let path = path.map_or(DEFAULT_PATH, |(_, value)| value.as_bytes());
    let mut folders = path.split(|byte| *byte == b':');
    let mut found = Vec::new();
    let mut found_bytes = 0;
    let mut is_empty = true;
    while let Some(folder) = folders.find(|folder| !folder.is_empty()) {
        is_empty = false;
        let candidate_bytes = folder.len() + 1 + program.len();
        if candidate_bytes > PATH_BYTES_MAX {
            // Shells do the same: the other folders may have the program.
            continue;
        }
        found_bytes += candidate_bytes + LENGTH_BYTES;
        if found_bytes > PLAN_BYTES_MAX {
            return Err(format!(
                "the program in all folders of the task's PATH has more than {PLAN_BYTES_MAX} bytes of paths"
            ));
        }
        found.push(c_text(&[folder, b"/", program].concat(), "the program")?);
    }
    match (found.is_empty(), is_empty) {
        (false, _) => Ok(found),
        (true, true) => Err("the task's PATH is empty".to_owned()),
        (true, false) => Err(format!(
            "the program is longer than {PATH_BYTES_MAX} bytes in each folder of the task's PATH"
        )),
    }
}

fn resolve_env(spec: &LaunchSpec<'_>) -> Result<Vec<CString>, String> {
    let mut env = Vec::with_capacity(spec.env.len());
    for (name, value) in spec.env {
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            return Err(format!(
                "{name:?} is not the name of an environment variable"
            ));
        }
        env.push(c_text(
            &[name.as_bytes(), b"=", value.as_bytes()].concat(),
            "the environment",
        )?);
    }
    Ok(env)
}

fn c_path(path: &Path) -> Result<CString, String> {
    c_text(path.as_os_str().as_bytes(), "a path")
}

fn c_text(bytes: &[u8], what: &str) -> Result<CString, String> {
    CString::new(bytes).map_err(|_| format!("{what} holds a zero byte"))
}

#[cfg(test)]
mod tests;
