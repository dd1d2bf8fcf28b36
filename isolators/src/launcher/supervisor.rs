//! The supervisor: one tiny process per container that outlives the agent.
//!
//! A fresh clone of the launcher calls [`run`]; it never execs and never returns. The supervisor records its identity, sets
//! up the container's namespaces, clones the task, and then only waits. It reaps reparented processes, carries out kill
//! requests and no other signal, writes the exit record, and ends, which kills everything else in its pid namespace. It is a
//! member of none of the container's cgroups, so that an OOM kill or a destroy cannot lose the record.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::mount::MsFlags;
use nix::sys::signal::Signal;
use nix::sys::stat::Mode;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;

use super::output_writer::OutputWriter;
use super::plan::TaskPlan;
use super::privileges::{self, Capabilities};
use super::report::{Outcome, Report};
use super::stdio::Stdio;
use super::task::{Prepared, SHELL, become_task};
use crate::identity::{BootId, ProcessIdentity, start_ticks_of_stat};
use crate::launch_step::LaunchStep;
use crate::status::{ExitCause, ExitRecord, STATUS_FILE, SUPERVISOR_FILE};
use crate::sys::{
    self, Cloned, ExecArray, KillPayload, Reaped, SharedPair, SignalEvent, SignalQueue,
};

/// Attempts at writing the exit record, one per [`RECORD_RETRY`]: a full disk may have room again.
const RECORD_ATTEMPTS: u32 = 100;
const RECORD_RETRY: Duration = Duration::from_millis(100);

/// The reserved size of an exit record: more than it needs, and the smallest unit of a disk.
const RECORD_BYTES_MAX: libc::off_t = 4096;

/// The longest wait for stragglers, without a pid namespace whose end would kill them.
const STRAGGLERS_WAIT_MAX: Duration = Duration::from_secs(10);
const STRAGGLERS_RETRY: Duration = Duration::from_millis(20);

/// A set-up step that failed.
struct Failure {
    step: LaunchStep,
    source: io::Error,
}

trait At<T> {
    fn at(self, step: LaunchStep) -> Result<T, Failure>;
}

impl<T, E: Into<io::Error>> At<T> for Result<T, E> {
    fn at(self, step: LaunchStep) -> Result<T, Failure> {
        self.map_err(|error| Failure {
            step,
            source: error.into(),
        })
    }
}

/// Runs a container to its end. `report` is the only open descriptor above 2. `lock` shows the next agent that a launch is
/// under way, until the identity is recorded.
pub(super) fn run(plan: &TaskPlan, report: OwnedFd, lock: Option<OwnedFd>) -> ! {
    let mut who = Report {
        outcome: Outcome::Running,
        supervisor_pid: 0,
        supervisor_start: 0,
    };
    match set_up(plan, &mut who, report.as_fd(), lock) {
        Ok(running) => {
            drop(report);
            running.supervise()
        }
        Err(Failure { step, source }) => {
            let errno = source.raw_os_error().unwrap_or(libc::EIO);
            who.outcome = Outcome::Failed {
                step,
                errno,
                index: 0,
            };
            let _ = sys::write_once(report.as_fd(), &who.encode());
            sys::exit_now(1)
        }
    }
}

/// Does everything up to the task's clone.
fn set_up(
    plan: &TaskPlan,
    who: &mut Report,
    report: BorrowedFd<'_>,
    lock: Option<OwnedFd>,
) -> Result<Running, Failure> {
    let _ = nix::sys::prctl::set_name(c"meseta-init");
    // The container must not read the supervisor's memory and descriptors.
    let _ = nix::sys::prctl::set_dumpable(false);
    // Leaves the launcher's session, whose end must have no effect here.
    let _ = nix::unistd::setsid();
    let own_pid_namespace = plan.namespaces & sys::namespaces::PID != 0;
    if !own_pid_namespace {
        nix::sys::prctl::set_child_subreaper(true).at(LaunchStep::RecordIdentity)?;
    }
    let status_dir = open(&plan.status_dir, OFlag::O_DIRECTORY).at(LaunchStep::RecordIdentity)?;
    // The host's procfs is still mounted here, so these are the agent's numbers.
    let stat = fs::read("/proc/self/stat").at(LaunchStep::RecordIdentity)?;
    who.supervisor_pid = pid_of_stat(&stat).at(LaunchStep::RecordIdentity)?;
    who.supervisor_start = start_ticks_of_stat(&stat).unwrap_or(0);
    record_identity(plan, who, status_dir.as_fd()).at(LaunchStep::RecordIdentity)?;
    reserve_record(status_dir.as_fd()).at(LaunchStep::RecordIdentity)?;
    drop(lock);
    // Opened while all paths mean the same as to the agent.
    let groups = TaskGroups::open(plan)?;
    let (stdio, output) = Stdio::open(plan).at(LaunchStep::OpenStdio)?;
    let own_pids = join_namespaces(plan).at(LaunchStep::JoinNamespaces)?;
    enter_namespaces(plan)?;
    let signals = SignalQueue::new().at(LaunchStep::CloneTask)?;
    let failure = SharedPair::new().at(LaunchStep::CloneTask)?;
    let die_with = (!own_pid_namespace).then(|| nix::unistd::getpid().as_raw());
    let task = clone_task(plan, *who, report, &failure, die_with, &groups, stdio)?;
    if let Some(own) = own_pids {
        // The kernel starts no thread in a process whose children enter another pid namespace.
        let restored = nix::sched::setns(own, nix::sched::CloneFlags::CLONE_NEWPID);
        restored.at(LaunchStep::CloneTask)?;
    }
    Ok(Running {
        task,
        output: OutputWriter::new(output),
        own_pid_namespace,
        joined: plan.join[0] != 0,
        status_dir,
        signals,
        failure,
        deadline: None,
    })
}

fn open(path: &CStr, flags: OFlag) -> nix::Result<OwnedFd> {
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY;
    nix::fcntl::open(path, flags, Mode::from_bits_truncate(0o644))
}

fn pid_of_stat(stat: &[u8]) -> io::Result<i32> {
    let first = stat.split(|byte| *byte == b' ').next().unwrap_or_default();
    let text = str::from_utf8(first).map_err(io::Error::other)?;
    text.parse().map_err(io::Error::other)
}

/// Records our identity for the case that the agent dies before it could save it.
fn record_identity(plan: &TaskPlan, who: &Report, dir: BorrowedFd<'_>) -> io::Result<()> {
    let boot_id = String::from_utf8_lossy(&plan.boot_id);
    let line = format!(
        "{} {} {boot_id}\n",
        who.supervisor_pid, who.supervisor_start
    );
    write_in(dir, SUPERVISOR_FILE, line.as_bytes(), false)
}

/// Reserves the room for the exit record, while there is some: a full disk at the task's end must not lose the status.
fn reserve_record(dir: BorrowedFd<'_>) -> io::Result<()> {
    let file = open_temporary(dir, STATUS_FILE)?;
    match nix::fcntl::posix_fallocate(&file, 0, RECORD_BYTES_MAX) {
        // File systems that cannot reserve space report a lack of space at the write.
        Err(nix::Error::EOPNOTSUPP | nix::Error::EINVAL | nix::Error::ENOSYS) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn open_temporary(dir: BorrowedFd<'_>, name: &str) -> nix::Result<OwnedFd> {
    // The file keeps its reserved space: it is not truncated before it is written over.
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let mode = Mode::from_bits_truncate(0o600);
    nix::fcntl::openat(dir, temporary(name).as_str(), flags, mode)
}

fn temporary(name: &str) -> String {
    format!("{name}.tmp")
}

/// Writes a small file in a folder atomically: its name shows all of it or nothing.
fn write_in(dir: BorrowedFd<'_>, name: &str, bytes: &[u8], durable: bool) -> io::Result<()> {
    let temporary = temporary(name);
    let file = open_temporary(dir, name)?;
    let written = nix::unistd::write(&file, bytes)?;
    if written != bytes.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    let length = i64::try_from(written).map_err(io::Error::other)?;
    nix::unistd::ftruncate(&file, length)?;
    if durable {
        nix::unistd::fsync(&file)?;
    }
    nix::fcntl::renameat(dir, temporary.as_str(), dir, name)?;
    if durable {
        nix::unistd::fsync(dir)?;
    }
    Ok(())
}

/// The groups for the task to join, opened while their paths are reachable and writable.
struct TaskGroups {
    /// The v1 groups' `tasks`, for a task that enters a running container.
    v1: Vec<OwnedFd>,
    v2: Option<OwnedFd>,
    /// The cgroup namespace of the running container.
    namespace: Option<OwnedFd>,
}

impl TaskGroups {
    fn open(plan: &TaskPlan) -> Result<Self, Failure> {
        let joins = plan.join != [0, 0];
        let files = plan.v1_tasks.iter().filter(|_| joins);
        let v1: nix::Result<_> = files.map(|tasks| open(tasks, OFlag::O_WRONLY)).collect();
        let v2 = plan.v2_group.as_deref();
        let v2 = v2.map(|group| open(group, OFlag::O_DIRECTORY)).transpose();
        Ok(Self {
            v1: v1.at(LaunchStep::JoinCgroup)?,
            v2: v2.at(LaunchStep::JoinCgroup)?,
            namespace: joins
                .then(|| cgroup_namespace_below(plan.join[0]))
                .flatten(),
        })
    }
}

/// The cgroup namespace of the tasks of a supervisor, which itself is in another one and in none of their groups. `None` if
/// all its tasks have just ended.
fn cgroup_namespace_below(supervisor: u64) -> Option<OwnedFd> {
    let supervisor = i32::try_from(supervisor).ok()?;
    let children = || crate::process_tree::children_of(supervisor);
    let open_of = |pid: i32| {
        let path = CString::new(format!("/proc/{pid}/ns/cgroup")).ok()?;
        // The kernel's own link, which the open follows.
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let opened = nix::fcntl::open(path.as_c_str(), flags, Mode::empty()).ok()?;
        // Another process may have had the number by then.
        children()
            .into_iter()
            .any(|child| child == pid)
            .then_some(opened)
    };
    children().into_iter().find_map(open_of)
}

/// Enters the namespaces of a running container, from our child on also its pid namespace. Returns the previous pid
/// namespace.
fn join_namespaces(plan: &TaskPlan) -> io::Result<Option<OwnedFd>> {
    use nix::sched::CloneFlags;
    let [pid, start_ticks] = plan.join;
    if pid == 0 {
        return Ok(None);
    }
    // The kernel's own link, which the open follows.
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
    let own_pids = nix::fcntl::open(c"/proc/self/ns/pid", flags, Mode::empty())?;
    let boot_id = String::from_utf8_lossy(&plan.boot_id);
    let target = ProcessIdentity {
        pid: i32::try_from(pid).map_err(io::Error::other)?,
        start_ticks,
        boot_id: BootId::from_text(&boot_id),
    };
    let Some(pidfd) = target.open()? else {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    };
    let all = CloneFlags::CLONE_NEWNS
        | CloneFlags::CLONE_NEWPID
        | CloneFlags::CLONE_NEWIPC
        | CloneFlags::CLONE_NEWUTS
        | CloneFlags::CLONE_NEWNET;
    nix::sched::setns(pidfd, all)?;
    Ok(Some(own_pids))
}

fn enter_namespaces(plan: &TaskPlan) -> Result<(), Failure> {
    let has = |flag| plan.namespaces & flag != 0;
    let none = None::<&str>;
    if has(sys::namespaces::MOUNT) {
        // Slave, not private: mounts that the host unmounts must not stay busy in here.
        let flags = MsFlags::MS_REC | MsFlags::MS_SLAVE;
        nix::mount::mount(none, "/", none, flags, none).at(LaunchStep::MountPropagation)?;
        if has(sys::namespaces::PID) {
            let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
            nix::mount::mount(Some("proc"), "/proc", Some("proc"), flags, none)
                .at(LaunchStep::MountProc)?;
        }
    }
    if has(sys::namespaces::NETWORK) {
        sys::loopback_up().at(LaunchStep::Loopback)?;
    }
    if let (true, Some(hostname)) = (has(sys::namespaces::UTS), &plan.hostname) {
        let name = std::os::unix::ffi::OsStrExt::from_bytes(hostname.as_slice());
        nix::unistd::sethostname::<&std::ffi::OsStr>(name).at(LaunchStep::Hostname)?;
    }
    Ok(())
}

fn clone_task(
    plan: &TaskPlan,
    who: Report,
    report: BorrowedFd<'_>,
    failure: &SharedPair,
    die_with: Option<i32>,
    groups: &TaskGroups,
    stdio: Stdio,
) -> Result<i32, Failure> {
    let filters: Vec<_> = plan.seccomp.iter().map(privileges::filter).collect();
    let capabilities = plan.capabilities.map(Capabilities::new);
    let prepared = Prepared {
        plan,
        groups: &groups.v1,
        cgroup_namespace: groups.namespace.as_ref().map(AsFd::as_fd),
        filters: &filters,
        capabilities: capabilities.as_ref(),
        args: ExecArray::new(&plan.args),
        script_args: plan
            .programs
            .iter()
            .map(|path| script_args(path, &plan.args))
            .collect(),
        env: ExecArray::new(&plan.env),
        stdin: stdio.stdin.as_fd(),
        stdout: stdio.stdout.as_fd(),
        stderr: stdio.stderr.as_ref().unwrap_or(&stdio.stdout).as_fd(),
        report,
        running: who,
        failure,
        die_with,
    };
    let cloned = sys::clone_process(0, groups.v2.as_ref().map(AsFd::as_fd));
    match cloned.at(LaunchStep::CloneTask)? {
        Cloned::Child => become_task(&prepared),
        Cloned::Parent(pid) => Ok(pid),
    }
}

/// The arguments with which the shell runs a file that the kernel cannot execute.
fn script_args<'a>(path: &'a CStr, args: &'a [CString]) -> ExecArray<'a> {
    let own = args.iter().skip(1).map(CString::as_c_str);
    [SHELL, path].into_iter().chain(own).collect()
}

/// A container whose task has been cloned.
struct Running {
    task: i32,
    output: OutputWriter,
    own_pid_namespace: bool,
    /// Whether the task entered an existing container. Its procfs, which is ours too then, shows other pids than those that we
    /// signal, so we look nothing up in it.
    joined: bool,
    status_dir: OwnedFd,
    signals: SignalQueue,
    failure: SharedPair,
    /// The time of the SIGKILL on the monotonic clock, once a kill request has arrived.
    deadline: Option<Duration>,
}

impl Running {
    fn supervise(mut self) -> ! {
        let mut kill_requested = false;
        let cause = loop {
            if let Some(cause) = self.reap() {
                break cause;
            }
            let timeout = self
                .deadline
                .map(|deadline| deadline.saturating_sub(monotonic()));
            if timeout == Some(Duration::ZERO) {
                self.kill_all();
            }
            // After SIGKILL only the child's end remains to wait for.
            let timeout = timeout.filter(|timeout| !timeout.is_zero());
            match self.next(timeout) {
                Ok(Some(SignalEvent::KillRequest(payload))) => {
                    kill_requested = true;
                    self.begin_kill(payload);
                }
                // Other signals are not passed on: a sender that signals every process of this name does not mean the task.
                Ok(Some(SignalEvent::Child | SignalEvent::Other) | None) | Err(_) => {}
            }
        };
        // The record may wait for a disk. Processes that the task left behind must not live on during that time.
        self.kill_leftovers();
        self.record(ExitRecord {
            cause,
            kill_requested,
            at: unix_time(),
        });
        self.end_stragglers();
        self.output.finish();
        sys::exit_now(0)
    }

    /// The next signal, within the timeout; checks for output during the wait.
    fn next(&mut self, timeout: Option<Duration>) -> io::Result<Option<SignalEvent>> {
        if !self.output.is_open() {
            return self.signals.next(timeout);
        }
        let now = monotonic();
        let (pipes, again) = self.output.waiting(now);
        let pace = again.map(|again| again.saturating_sub(now));
        let timeout = timeout.into_iter().chain(pace).min();
        let mut waited = vec![self.signals.as_fd()];
        waited.extend(pipes);
        sys::wait_readable(&waited, timeout)?;
        self.output.look(monotonic());
        self.signals.next(Some(Duration::ZERO))
    }

    /// Reaps all ended processes; returns the end of the task, if it has ended.
    fn reap(&self) -> Option<ExitCause> {
        let mut ended = None;
        loop {
            match sys::reap_any() {
                Reaped::Exited { pid, code } if pid == self.task => {
                    ended = Some(self.launch_failure().unwrap_or(ExitCause::Exited(code)));
                }
                Reaped::Signaled { pid, signal } if pid == self.task => {
                    ended = Some(ExitCause::Signaled(signal));
                }
                Reaped::Exited { .. } | Reaped::Signaled { .. } => {}
                Reaped::NoChildren | Reaped::Alive => return ended,
            }
        }
    }

    fn launch_failure(&self) -> Option<ExitCause> {
        let (step, errno) = self.failure.load();
        let step = LaunchStep::from_code(u8::try_from(step).ok()?)?;
        Some(ExitCause::LaunchFailed { step, errno })
    }

    fn begin_kill(&mut self, payload: KillPayload) {
        let deadline = monotonic().saturating_add(payload.grace);
        self.deadline = Some(
            self.deadline
                .map_or(deadline, |earlier| earlier.min(deadline)),
        );
        if !payload.grace.is_zero() {
            self.signal_all(i32::from(payload.signal));
            // A stopped process would keep the signal pending until its end.
            self.signal_all(libc::SIGCONT);
        }
    }

    /// Signals the task's whole process group; before it has made its group, only the task.
    fn forward(&self, signal: i32) {
        let Ok(signal) = Signal::try_from(signal) else {
            return;
        };
        let task = Pid::from_raw(self.task);
        if nix::sys::signal::killpg(task, signal).is_err() {
            let _ = nix::sys::signal::kill(task, signal);
        }
    }

    /// Signals every process of the container, including those that left the task's group or session.
    fn signal_all(&self, signal: i32) {
        let Ok(known) = Signal::try_from(signal) else {
            return;
        };
        if self.own_pid_namespace {
            // All processes in the namespace except its first one, which is ours.
            let _ = nix::sys::signal::kill(Pid::from_raw(-1), known);
            return;
        }
        self.forward(signal);
        if self.joined {
            return;
        }
        let us = nix::unistd::getpid().as_raw();
        let proc = std::path::Path::new("/proc");
        let group = Some(Pid::from_raw(self.task));
        for pid in crate::process_tree::descendants_of(proc, us) {
            let pid = Pid::from_raw(pid);
            // Members of the group have received it already.
            if nix::unistd::getpgid(Some(pid)).ok() != group {
                let _ = nix::sys::signal::kill(pid, known);
            }
        }
    }

    fn kill_all(&mut self) {
        // Not on every turn: again after a second, in case a fork slipped through.
        self.deadline = Some(monotonic().saturating_add(Duration::from_secs(1)));
        self.forward(libc::SIGKILL);
        self.kill_leftovers();
    }

    /// Sends SIGKILL to the processes that the task left behind, as far as the supervisor can find them.
    fn kill_leftovers(&self) {
        if self.own_pid_namespace {
            let _ = nix::sys::signal::kill(Pid::from_raw(-1), Signal::SIGKILL);
        } else if self.joined {
            // The destroy finds the rest through the container's groups.
            let _ = nix::sys::signal::killpg(Pid::from_raw(self.task), Signal::SIGKILL);
        } else {
            kill_descendants();
        }
    }

    fn record(&self, record: ExitRecord) {
        let line = record.to_line();
        for _ in 0..RECORD_ATTEMPTS {
            match write_in(self.status_dir.as_fd(), STATUS_FILE, line.as_bytes(), true) {
                Ok(()) => return,
                // The folder was removed: no reader is left.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return,
                Err(_) => {
                    // Children are still reaped in the meantime.
                    let _ = self.signals.next(Some(RECORD_RETRY));
                    self.reap();
                }
            }
        }
    }

    /// Ends the processes that the task left behind. In a pid namespace the kernel does this at our exit; but writers to our
    /// pipes must have ended before the pipes are emptied for the last time.
    fn end_stragglers(&mut self) {
        self.output.look(monotonic());
        if self.own_pid_namespace && !self.output.is_open() {
            return;
        }
        let deadline = monotonic().saturating_add(STRAGGLERS_WAIT_MAX);
        while monotonic() < deadline {
            self.kill_leftovers();
            match sys::reap_any() {
                Reaped::NoChildren => return,
                Reaped::Alive => {
                    let _ = self.signals.next(Some(STRAGGLERS_RETRY));
                }
                Reaped::Exited { .. } | Reaped::Signaled { .. } => {}
            }
        }
    }
}

/// Sends SIGKILL to every direct child. Their own children are reparented to us, a subreaper, and are direct children in the
/// next round.
fn kill_descendants() {
    for pid in crate::process_tree::children_of(nix::unistd::getpid().as_raw()) {
        let _ = nix::sys::signal::kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

pub(super) fn monotonic() -> Duration {
    now(ClockId::CLOCK_MONOTONIC)
}

fn unix_time() -> Duration {
    now(ClockId::CLOCK_REALTIME)
}

fn now(clock: ClockId) -> Duration {
    clock_gettime(clock).map_or(Duration::ZERO, |time: TimeSpec| time.into())
}
