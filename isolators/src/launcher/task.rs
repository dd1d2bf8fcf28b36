//! The last steps before exec, in the task's own process.
//!
//! A fresh clone of the supervisor calls [`become_task`]. Invariant: from the clone to the exec only async-signal-safe calls
//! are made; every string and array was prepared before, and a failure is reported by number only.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use seccompiler::BpfProgram;

use super::clean_limits::clean_limits;
use super::plan::{PlannedAction, PlannedMount, TaskPlan};
use super::privileges::Capabilities;
use super::report::{Outcome, Report};
use crate::launch_step::LaunchStep;
use crate::sys::{self, ExecArray, SharedPair};

/// The program that runs a script without an interpreter line, as with `execvp`.
pub(super) const SHELL: &CStr = c"/bin/sh";

/// Exit code of a task that was never executed, as shells use it.
const NOT_EXECUTED: i32 = 127;

/// The task's data, prepared by the supervisor.
#[derive(Debug)]
pub(super) struct Prepared<'a> {
    pub(super) plan: &'a TaskPlan,
    /// The plan's v1 groups, if they had to be opened in advance.
    pub(super) groups: &'a [OwnedFd],
    /// The cgroup namespace to enter.
    pub(super) cgroup_namespace: Option<BorrowedFd<'a>>,
    /// The plan's system call filters, ready to install.
    pub(super) filters: &'a [BpfProgram],
    /// The plan's capabilities, ready for use.
    pub(super) capabilities: Option<&'a Capabilities>,
    pub(super) args: ExecArray<'a>,
    /// The arguments with which [`SHELL`] runs each program of the plan as a script.
    pub(super) script_args: Vec<ExecArray<'a>>,
    pub(super) env: ExecArray<'a>,
    pub(super) stdin: BorrowedFd<'a>,
    pub(super) stdout: BorrowedFd<'a>,
    pub(super) stderr: BorrowedFd<'a>,
    pub(super) report: BorrowedFd<'a>,
    /// A running report, complete but for the details of a failure.
    pub(super) running: Report,
    /// Memory in which the supervisor reads a failure.
    pub(super) failure: &'a SharedPair,
    /// The parent whose death sends SIGKILL to the task: without a pid namespace nothing else would end the task then.
    pub(super) die_with: Option<i32>,
}

/// Uid, gid, supplementary groups.
type User = (u32, u32, Vec<u32>);

struct Failure {
    step: LaunchStep,
    errno: i32,
    index: usize,
}

/// Becomes the task, or reports the failure and exits.
pub(super) fn become_task(prepared: &Prepared<'_>) -> ! {
    let failure = match enter(prepared) {
        Ok(()) => execute(prepared),
        Err(failure) => failure,
    };
    prepared
        .failure
        .store(i32::from(failure.step.code()), failure.errno);
    let outcome = Outcome::Failed {
        step: failure.step,
        errno: failure.errno,
        index: u16::try_from(failure.index).unwrap_or(u16::MAX),
    };
    let report = Report {
        outcome,
        ..prepared.running
    };
    // The agent may be gone; the supervisor reads the failure from the shared page anyway.
    let _ = sys::write_once(prepared.report, &report.encode());
    sys::exit_now(NOT_EXECUTED)
}

fn enter(prepared: &Prepared<'_>) -> Result<(), Failure> {
    let plan = prepared.plan;
    join_groups(prepared)?;
    // The processors of the task's cpuset, which it has joined by now.
    sys::reset_scheduling();
    sys::reset_attributes();
    // After the task has joined its groups: those become the roots of its view.
    cgroup_namespace(prepared)
        .map_err(|errno| failed(LaunchStep::CgroupNamespace, errno.into(), 0))?;
    // Fails only for a process that leads a group already, which a new clone does not.
    nix::unistd::setsid().map_err(|errno| failed(LaunchStep::Setsid, errno.into(), 0))?;
    if let Some(score) = &plan.oom_score_adj {
        match sys::write_file(c"/proc/self/oom_score_adj", score) {
            // Lowering needs a right that an agent of a common user does not have; the score stays higher.
            Err(error) if !matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => {
                return Err(failed(LaunchStep::OomScore, error, 0));
            }
            Ok(()) | Err(_) => {}
        }
    }
    // After the groups: their folders may be read-only from here on.
    for (index, mount) in plan.mounts.iter().enumerate() {
        change_mount(mount, plan.credentials.as_ref())
            .map_err(|error| failed(LaunchStep::Mount, error, index))?;
    }
    let stdio = [prepared.stdin, prepared.stdout, prepared.stderr];
    for (number, from) in (0..).zip(stdio) {
        let duplicated = sys::duplicate_stdio(from, number);
        duplicated.map_err(|error| failed(LaunchStep::OpenStdio, error, 0))?;
    }
    if plan.terminal {
        let taken = sys::take_terminal();
        taken.map_err(|error| failed(LaunchStep::Terminal, error, 0))?;
    }
    leave_limits(plan);
    for (index, limit) in plan.rlimits.iter().enumerate() {
        if let Some(limit) = while_launching(*limit) {
            set_rlimit(limit, index)?;
        }
    }
    if let Some(capabilities) = prepared.capabilities {
        let bounded = capabilities.bound();
        bounded.map_err(|error| failed(LaunchStep::Capabilities, error, 0))?;
    }
    if let Some((uid, gid, groups)) = &plan.credentials {
        let changed = sys::set_groups(groups)
            .and_then(|()| sys::set_gid(*gid))
            .and_then(|()| sys::set_uid(*uid));
        changed.map_err(|error| failed(LaunchStep::Credentials, error, 0))?;
    }
    let changed = sys::change_dir(&plan.working_dir);
    changed.map_err(|error| failed(LaunchStep::WorkingDir, error, 0))?;
    if let Some(capabilities) = prepared.capabilities {
        let reduced = capabilities.reduce(nix::unistd::geteuid().is_root());
        reduced.map_err(|error| failed(LaunchStep::Capabilities, error, 0))?;
    }
    if let Some(parent) = prepared.die_with {
        // Set after the change of user, which clears it. The kernel sends no signal if the parent died before.
        let _ = nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL);
        let seen = nix::unistd::getppid().as_raw();
        // A parent outside the pid namespace has no number inside it.
        let is_outside = seen == 0 && plan.join != [0, 0];
        if seen != parent && !is_outside {
            sys::exit_now(NOT_EXECUTED);
        }
    }
    if plan.no_new_privs {
        let set = nix::sys::prctl::set_no_new_privs();
        set.map_err(|errno| failed(LaunchStep::NoNewPrivs, errno.into(), 0))?;
    }
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    sys::reset_signals();
    sys::cloexec_from(3).map_err(|error| failed(LaunchStep::CloseFds, error, 0))?;
    for (index, limit) in plan.rlimits.iter().enumerate() {
        if while_launching(*limit) != Some(*limit) {
            set_rlimit(*limit, index)?;
        }
    }
    // Last, so that a filter has to allow no more than the report, the exec and the exit.
    for (index, filter) in prepared.filters.iter().enumerate() {
        seccompiler::apply_filter(filter)
            .map_err(|_| failed(LaunchStep::Seccomp, io::Error::last_os_error(), index))?;
    }
    Ok(())
}

/// The maximum number of open descriptors of a launch.
const LAUNCH_FILES: u64 = 1_024;

/// The value of a limit before the change of user, which may be needed to raise it. A limit on descriptors that is too low
/// for a launch is applied after the launch has opened its last file.
fn while_launching([resource, soft, hard]: [u64; 3]) -> Option<[u64; 3]> {
    if resource != u64::from(libc::RLIMIT_NOFILE) {
        return Some([resource, soft, hard]);
    }
    (hard >= LAUNCH_FILES).then_some([resource, soft.max(LAUNCH_FILES), hard])
}

/// Replaces the agent's own limits, except those that the task requested. Best effort: nothing depends on it.
fn leave_limits(plan: &TaskPlan) {
    for limit in clean_limits(sys::hard_limit) {
        let is_asked = plan.rlimits.iter().any(|[asked, ..]| *asked == limit[0]);
        if !is_asked {
            let _ = set_rlimit(limit, 0);
        }
    }
}

fn set_rlimit([resource, soft, hard]: [u64; 3], index: usize) -> Result<(), Failure> {
    let resource = u32::try_from(resource).unwrap_or(u32::MAX);
    let limited = sys::set_rlimit(resource, soft, hard);
    limited.map_err(|error| failed(LaunchStep::Rlimit, error, index))
}

fn cgroup_namespace(prepared: &Prepared<'_>) -> nix::Result<()> {
    let flag = nix::sched::CloneFlags::CLONE_NEWCGROUP;
    match prepared.cgroup_namespace {
        Some(theirs) => nix::sched::setns(theirs, flag),
        None if prepared.plan.cgroup_namespace => nix::sched::unshare(flag),
        None => Ok(()),
    }
}

/// Applies one change to the container's mount table. A missing path needs no protection.
fn change_mount(mount: &PlannedMount, user: Option<&User>) -> io::Result<()> {
    let path = &mount.path;
    let changed = match &mount.action {
        PlannedAction::ReadOnlyTree => match sys::read_only(path, true) {
            // The folder is not a mount point here, so it becomes one.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => read_only_path(path),
            other => other,
        },
        PlannedAction::ReadOnlyPath => read_only_path(path),
        PlannedAction::CgroupTree { controllers } => match sys::mount_cgroup(path, controllers) {
            // The hierarchy has unknown controllers.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => Ok(()),
            other => other,
        },
        PlannedAction::MaskFile => sys::mount_bind(c"/dev/null", path),
        PlannedAction::Tmpfs { options, writable } => sys::mount_tmpfs(path, options, *writable),
        PlannedAction::Bind {
            beneath,
            path: source,
            by_user,
            writable,
        } => {
            let beneath = beneath.as_deref();
            let source = if *by_user {
                open_by_user(user, beneath, source)?
            } else {
                sys::open_path(beneath, source)?
            };
            return sys::bind_mount_fd(source.as_fd(), target(mount)?.as_fd(), *writable);
        }
        PlannedAction::Unmount => {
            let unmounted = target(mount).and_then(|place| sys::unmount_folder(place.as_fd()));
            return match unmounted {
                // The folder is not a mount point, or is missing.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOENT)) => {
                    Ok(())
                }
                other => other,
            };
        }
    };
    match changed {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(()),
        other => other,
    }
}

/// Opens a place with the file rights of the task's user, and through no link. The mount uses this very descriptor: later
/// changes of the path have no effect.
fn open_by_user(user: Option<&User>, beneath: Option<&CStr>, path: &CStr) -> io::Result<OwnedFd> {
    let open = || match beneath {
        Some(_) => sys::open_path(beneath, path),
        None => sys::open_linkless(path),
    };
    let Some((uid, gid, groups)) = user else {
        return open();
    };
    // The new groups stay: nothing before the change of user depends on our previous groups.
    sys::set_groups(groups)?;
    sys::set_file_user(*uid, *gid)?;
    let opened = open();
    let ours = (nix::unistd::geteuid(), nix::unistd::getegid());
    sys::set_file_user(ours.0.as_raw(), ours.1.as_raw())?;
    opened
}

/// The target of a mount step, found without following links.
fn target(mount: &PlannedMount) -> io::Result<OwnedFd> {
    match &mount.beneath {
        Some(beneath) => sys::open_path(Some(beneath), &mount.path),
        None => sys::open_linkless(&mount.path),
    }
}

fn read_only_path(path: &CStr) -> io::Result<()> {
    sys::mount_bind(path, path).and_then(|()| sys::read_only(path, true))
}

/// Joins the groups. v1: this process has one thread and writes itself into `tasks`. The kernel then needs no lock on all
/// thread groups, which after an idle gap costs an RCU grace period (8-12 ms, seen on 6.18) for a pid in `cgroup.procs`.
fn join_groups(prepared: &Prepared<'_>) -> Result<(), Failure> {
    for (index, group) in prepared.groups.iter().enumerate() {
        sys::write_once(group.as_fd(), b"0")
            .map_err(|error| failed(LaunchStep::JoinCgroup, error, index))?;
    }
    if !prepared.groups.is_empty() {
        return Ok(());
    }
    for (index, tasks) in prepared.plan.v1_tasks.iter().enumerate() {
        sys::write_file(tasks, b"0")
            .map_err(|error| failed(LaunchStep::JoinCgroup, error, index))?;
    }
    Ok(())
}

fn execute(prepared: &Prepared<'_>) -> Failure {
    // The agent learns our pid from the stamp on this report. If the agent is gone, the task runs all the same.
    let _ = sys::write_once(prepared.report, &prepared.running.encode());
    if prepared.plan.programs.is_empty() {
        sys::exit_now(0);
    }
    let mut denied = None;
    let mut last = libc::ENOENT;
    let scripts = prepared.plan.programs.iter().zip(&prepared.script_args);
    for (index, (program, script_args)) in scripts.enumerate() {
        last = sys::execve(program, &prepared.args, &prepared.env);
        if last == libc::ENOEXEC {
            last = sys::execve(SHELL, script_args, &prepared.env);
        }
        match last {
            libc::ENOENT | libc::ENOTDIR => {}
            libc::EACCES => denied = Some((last, index)),
            other => {
                return Failure {
                    step: LaunchStep::Exec,
                    errno: other,
                    index,
                };
            }
        }
    }
    let (errno, index) = denied.unwrap_or((last, 0));
    Failure {
        step: LaunchStep::Exec,
        errno,
        index,
    }
}

fn failed(step: LaunchStep, error: io::Error, index: usize) -> Failure {
    Failure {
        step,
        errno: error.raw_os_error().unwrap_or(libc::EIO),
        index,
    }
}
