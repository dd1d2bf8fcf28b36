//! The agent's end of the launcher: starting it, restarting it, and waiting for one launch.
//!
//! A thread prepares the first launcher, since an agent must not wait at its start for a copy of its program; users of the
//! launcher wait for it. A request carries a socket of its own, on which the new process answers, so that launches from many
//! threads wait side by side and the launcher itself never waits.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, setsockopt, socketpair, sockopt,
};

use super::plan::{PLAN_BYTES_MAX, TaskPlan};
use super::report::{Outcome, REPORT_BYTES, Report};
use super::{
    INLINE_BYTES_MAX, LAUNCHER_ARGUMENT, LaunchError, LaunchSpec, Launched, LauncherOptions, PING,
    READY, image, lock,
};
use crate::identity::{BootId, ProcessIdentity, wait_pidfd};
use crate::shortage::is_shortage;
use crate::status::SUPERVISOR_FILE;
use crate::sys;

/// The longest time that the launches of an earlier agent may take to end, equal to their launch timeout.
const EARLIER_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest time until a new launcher reports its start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The longest wait for a supervisor whose launch failed; it only has to exit.
const FAILED_SUPERVISOR_WAIT: Duration = Duration::from_secs(5);

/// The agent's handle on its launcher process.
#[derive(Debug)]
pub struct Launcher {
    options: LauncherOptions,
    boot_id: BootId,
    state: Mutex<State>,
}

/// The progress of the launcher; both fields are empty after a failed first start.
#[derive(Debug)]
struct State {
    starting: Option<JoinHandle<Result<Started, LaunchError>>>,
    started: Option<Started>,
}

#[derive(Debug)]
struct Started {
    image: OwnedFd,
    process: Option<Process>,
}

#[derive(Debug)]
struct Process {
    socket: OwnedFd,
    child: Child,
}

/// The longest time that a launcher may take to end on request; after that it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time that a request may wait for room in the launcher's socket. A launcher that reads nothing for so long is
/// replaced.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest silence of a launch before the agent pings the launcher.
const SILENCE: Duration = Duration::from_secs(2);

/// The longest time until the answer to a ping, behind the earlier requests; each costs the launcher one clone. A launcher
/// without an answer is replaced.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of attempts of one launch when launchers, or its supervisors, die during it. After the second death in a row
/// somebody is killing them, or we have a bug.
const ATTEMPTS: u32 = 3;

/// The result of one attempt.
enum Attempt {
    Launched(Launched),
    Unanswered { pid: u32 },
}

/// The result of waiting for a report.
enum Answer {
    Report { report: Report, pid: i32 },
    Closed,
    TimedOut,
}

impl Launcher {
    /// Waits for the end of launches that an earlier agent began, then begins to seal a copy of the running executable and to
    /// start the launcher process from it: [`Launcher::ready`] returns the result.
    pub fn start(options: LauncherOptions) -> Result<Self, LaunchError> {
        let boot_id = BootId::current().map_err(starting("reading the boot id"))?;
        let lock = options.runtime_dir.join(lock::LOCK_FILE);
        let alone = lock::wait_until_free(&lock, EARLIER_TIMEOUT)
            .map_err(starting("looking for an earlier launcher"))?;
        if !alone {
            return Err(LaunchError::Start {
                doing: "waiting for an earlier launcher's end",
                source: io::ErrorKind::TimedOut.into(),
            });
        }
        let first = options.clone();
        let begun = std::thread::Builder::new()
            .name("launcher-start".to_owned())
            .spawn(move || Started::new(&first));
        let state = State {
            starting: Some(begun.map_err(starting("starting a thread"))?),
            started: None,
        };
        Ok(Self {
            options,
            boot_id,
            state: Mutex::new(state),
        })
    }

    /// Waits until the launcher is ready.
    pub fn ready(&self) -> Result<(), LaunchError> {
        self.lock().started(&self.options).map(drop)
    }

    /// The pid of the launcher process, if it runs.
    pub fn pid(&self) -> Option<u32> {
        let mut state = self.lock();
        let process = &state.started(&self.options).ok()?.process;
        process.as_ref().map(|process| process.child.id())
    }

    /// Ends the launcher process. A later launch would start another.
    pub fn stop(&self) {
        let mut state = self.lock();
        // A launcher that is still starting would not see this end.
        let _ = state.settle();
        let process = state.started.as_mut().and_then(|it| it.process.take());
        drop(state);
        if let Some(process) = process {
            process.end();
        }
    }

    /// Launches one container and waits for its exec. May be called from many threads at once.
    pub fn launch(&self, spec: &LaunchSpec<'_>) -> Result<Launched, LaunchError> {
        let plan = TaskPlan::new(spec, &self.boot_id)?;
        let bytes = plan.encode();
        if bytes.len() > PLAN_BYTES_MAX {
            let reason = format!(
                "command and environment have {} bytes, more than {PLAN_BYTES_MAX}",
                bytes.len()
            );
            return Err(LaunchError::Invalid {
                name: spec.name.clone(),
                reason,
            });
        }
        let deadline = deadline_after(self.options.launch_timeout);
        for _ in 0..ATTEMPTS {
            match self.attempt(spec, &plan, &bytes, deadline)? {
                Attempt::Launched(launched) => return Ok(launched),
                // There is no answer, no process holds the report socket, and no supervisor started: the launcher died before it
                // cloned one. It may still look alive, since its descriptors close in no order, but it answers nothing.
                Attempt::Unanswered { pid } => drop(self.end_if_silent(pid)),
            }
        }
        Err(lost(spec, "the launcher or the supervisor died repeatedly"))
    }

    /// The first report of a launch. Pings the launcher while there is no report: a stopped launcher keeps its requests for ever.
    fn first_report(&self, ours: &OwnedFd, pid: u32, deadline: Instant) -> Answer {
        loop {
            match wait_report(ours, deadline.min(Instant::now() + SILENCE)) {
                Answer::TimedOut if Instant::now() < deadline => {
                    if self.end_if_silent(pid) {
                        self.complain_of(pid);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// Ends the launcher with this pid if it does not answer; returns whether it was ended. The sockets of its pending requests
    /// close with it.
    fn end_if_silent(&self, pid: u32) -> bool {
        let mut state = self.lock();
        let process = state.started.as_mut().map(|started| &mut started.process);
        let is_silent = |it: &mut Process| it.child.id() == pid && !it.answers();
        let silent = process.and_then(|it| it.take_if(is_silent));
        silent.is_some_and(|mut silent| {
            silent.reap();
            true
        })
    }

    fn complain_of(&self, pid: u32) {
        if let Ok(mut log) = open_log(&self.options) {
            // A line for operators; a failed write must not prevent a launch.
            let _ = writeln!(log, "launcher {pid} did not answer; replacing it");
        }
    }

    fn attempt(
        &self,
        spec: &LaunchSpec<'_>,
        plan: &TaskPlan,
        bytes: &[u8],
        deadline: Instant,
    ) -> Result<Attempt, LaunchError> {
        let (ours, theirs) = pair().map_err(starting("making a report socket"))?;
        // The kernel stamps each report with its sender's pid, in our numbering.
        setsockopt(&ours, sockopt::PassCred, &true)
            .map_err(io::Error::from)
            .map_err(starting("making a report socket"))?;
        let pid = self.send(bytes, theirs)?;
        let answer = match self.first_report(&ours, pid, deadline) {
            // The supervisor closes its copy of the socket once it has cloned the task, and a process of the container may kill
            // the task before its exec: that is no fault of the launcher.
            Answer::Closed if was_supervised(spec) => {
                return Err(LaunchError::Killed {
                    name: spec.name.clone(),
                });
            }
            Answer::Closed => return Ok(Attempt::Unanswered { pid }),
            answer => answer,
        };
        match answer {
            Answer::Report { report, pid } => match report.outcome {
                Outcome::Running => self.running(spec, plan, &ours, report, pid, deadline),
                Outcome::Failed { .. } => Err(self.failure(spec, plan, report)),
            },
            Answer::Closed | Answer::TimedOut => Err(lost(spec, "no answer in time")),
        }
        .map(Attempt::Launched)
    }

    /// The task is about to exec: next comes either a failure or the end of the socket.
    fn running(
        &self,
        spec: &LaunchSpec<'_>,
        plan: &TaskPlan,
        ours: &OwnedFd,
        report: Report,
        task_pid: i32,
        deadline: Instant,
    ) -> Result<Launched, LaunchError> {
        match wait_report(ours, deadline) {
            Answer::Closed => Ok(Launched {
                supervisor: self.supervisor(report),
                task_pid,
            }),
            Answer::Report { report, .. } => Err(self.failure(spec, plan, report)),
            Answer::TimedOut => Err(lost(spec, "no exec in time")),
        }
    }

    fn supervisor(&self, report: Report) -> ProcessIdentity {
        ProcessIdentity {
            pid: report.supervisor_pid,
            start_ticks: report.supervisor_start,
            boot_id: self.boot_id.clone(),
        }
    }

    fn failure(&self, spec: &LaunchSpec<'_>, plan: &TaskPlan, report: Report) -> LaunchError {
        let Outcome::Failed { step, errno, index } = report.outcome else {
            return lost(spec, "the launcher reported twice");
        };
        if report.supervisor_pid > 0 {
            // The supervisor's groups are about to be removed, and it is not a member of them: only its own end shows that
            // nothing more will be written to the runtime folder.
            self.supervisor(report).wait_end(FAILED_SUPERVISOR_WAIT);
        }
        LaunchError::Step {
            name: spec.name.clone(),
            step,
            detail: plan.detail(step, usize::from(index)),
            source: io::Error::from_raw_os_error(errno),
        }
    }

    /// Sends a request, starting a new launcher if the old one is gone; returns the pid of the launcher that has it.
    fn send(&self, bytes: &[u8], theirs: OwnedFd) -> Result<u32, LaunchError> {
        let stored = if bytes.len() > INLINE_BYTES_MAX {
            Some(store(bytes).map_err(starting("storing a long request"))?)
        } else {
            None
        };
        // A stored plan also begins inline: the launcher needs its first number.
        let inline = if stored.is_some() { &bytes[..8] } else { bytes };
        let mut numbers = vec![theirs.as_raw_fd()];
        numbers.extend(stored.as_ref().map(AsRawFd::as_raw_fd));
        let mut state = self.lock();
        let Started { image, process } = state.started(&self.options)?;
        if let Some(alive) = process.as_mut() {
            if alive.send(inline, &numbers).is_ok() {
                return Ok(alive.child.id());
            }
            // A message that failed to be sent was not delivered: a new launcher may have it.
            alive.reap();
        }
        *process = None;
        let new = process.insert(Process::start(&self.options, image)?);
        new.send(inline, &numbers)
            .map_err(starting("sending a request"))?;
        Ok(new.child.id())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // A panic while the lock is held leaves a usable value: at worst a dead process, which is noticed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Waits for the first start, if it is still under way.
    fn settle(&mut self) -> Result<(), LaunchError> {
        let Some(starting) = self.starting.take() else {
            return Ok(());
        };
        let started = starting.join().unwrap_or_else(|_| {
            Err(LaunchError::Start {
                doing: "preparing the launcher",
                source: io::Error::other("a thread panicked"),
            })
        });
        self.started = Some(started?);
        Ok(())
    }

    /// The running launcher; repeats a start that failed before.
    fn started(&mut self, options: &LauncherOptions) -> Result<&mut Started, LaunchError> {
        self.settle()?;
        match &mut self.started {
            Some(started) => Ok(started),
            none => Ok(none.insert(Started::new(options)?)),
        }
    }
}

impl Started {
    fn new(options: &LauncherOptions) -> Result<Self, LaunchError> {
        let image = image::seal_own_executable().map_err(starting("sealing its executable"))?;
        let process = Some(Process::start(options, &image)?);
        Ok(Self { image, process })
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Process {
    fn start(options: &LauncherOptions, image: &OwnedFd) -> Result<Self, LaunchError> {
        let log = open_log(options).map_err(starting("opening launcher.log"))?;
        let errors = log.try_clone().map_err(starting("opening launcher.log"))?;
        let (socket, theirs) = pair().map_err(starting("making its socket"))?;
        let timeout = nix::sys::time::TimeVal::new(SEND_TIMEOUT.as_secs().cast_signed(), 0);
        setsockopt(&socket, sockopt::SendTimeout, &timeout)
            .map_err(io::Error::from)
            .map_err(starting("making its socket"))?;
        let path = format!("/proc/self/fd/{}", image.as_raw_fd());
        // std uses a vfork-like spawn here: none of our code runs in the child.
        let child = std::process::Command::new(path)
            .arg0("meseta-launcher")
            .arg(LAUNCHER_ARGUMENT)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors))
            .spawn()
            .map_err(starting("executing its sealed image"))?;
        let mut process = Self { socket, child };
        let told = process.send_paths(options);
        match told.and_then(|()| process.wait_ready()) {
            Ok(()) => Ok(process),
            Err(source) => {
                process.reap();
                Err(LaunchError::Start {
                    doing: "waiting until it is ready",
                    source,
                })
            }
        }
    }

    /// Sends the launcher its file paths, because every container's first process inherits the command line.
    fn send_paths(&self, options: &LauncherOptions) -> io::Result<()> {
        let lock = options.runtime_dir.join(lock::LOCK_FILE);
        let group = options.supervisor_group.as_deref();
        let paths = [lock.as_path(), group.unwrap_or(Path::new(""))];
        let tasks = options.supervisor_tasks.iter().map(|path| &**path);
        let paths: Vec<_> = paths.into_iter().chain(tasks).collect();
        let paths: Vec<_> = paths
            .iter()
            .map(|path| path.as_os_str().as_bytes())
            .collect();
        let flags = MsgFlags::MSG_NOSIGNAL;
        let socket = self.socket.as_raw_fd();
        nix::sys::socket::send(socket, &paths.join(&0), flags)?;
        Ok(())
    }

    fn wait_ready(&self) -> io::Result<()> {
        if !sys::is_readable_by(&self.socket, Instant::now() + START_TIMEOUT)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut message = [0; 5];
        let length = nix::unistd::read(&self.socket, &mut message)?;
        match message {
            [READY, 0, 0, 0, 0] if length == message.len() => Ok(()),
            [READY, errno @ ..] if length == message.len() => {
                Err(io::Error::from_raw_os_error(i32::from_le_bytes(errno)))
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Whether the launcher takes a ping and answers in time. Only one thread may ask at a time.
    fn answers(&self) -> bool {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        self.send(&[PING], &[]).is_ok()
            && matches!(sys::is_readable_by(&self.socket, deadline), Ok(true))
            && matches!(nix::unistd::read(&self.socket, &mut [0]), Ok(1))
    }

    fn send(&self, bytes: &[u8], fds: &[RawFd]) -> io::Result<()> {
        let control = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() { &[][..] } else { &control };
        let flags = MsgFlags::MSG_NOSIGNAL;
        let slices = [IoSlice::new(bytes)];
        loop {
            match sendmsg::<()>(self.socket.as_raw_fd(), &slices, control, flags, None) {
                Err(nix::Error::EINTR) => {}
                other => return other.map(drop).map_err(io::Error::from),
            }
        }
    }

    /// Reaps a dead or useless launcher.
    fn reap(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ends the launcher: closing the socket is the order to end. A stopped launcher does not see it.
    fn end(self) {
        let Self { socket, mut child } = self;
        drop(socket);
        let pid = i32::try_from(child.id());
        let pidfd = pid.map_err(io::Error::other).and_then(sys::pidfd_open);
        if !pidfd.is_ok_and(|pidfd| wait_pidfd(&pidfd, END_TIMEOUT).unwrap_or(false)) {
            let _ = child.kill();
        }
        let _ = child.wait();
    }
}

/// The moment after this distance; an absurd distance becomes a year.
fn deadline_after(distance: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 86_400);
    Instant::now() + distance.min(YEAR)
}

/// Opens the launcher's log; the null device if the log is not a file or cannot be made.
fn open_log(options: &LauncherOptions) -> io::Result<File> {
    let log = options.runtime_dir.join("launcher.log");
    match File::options().create(true).append(true).open(log) {
        Err(error) if !is_shortage(&error) => File::options().append(true).open("/dev/null"),
        opened => opened,
    }
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let kind = SockType::SeqPacket;
    Ok(socketpair(
        AddressFamily::Unix,
        kind,
        None,
        SockFlag::SOCK_CLOEXEC,
    )?)
}

fn store(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(c"meseta-plan", MFdFlags::MFD_CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    Ok(file.into())
}

fn wait_report(ours: &OwnedFd, deadline: Instant) -> Answer {
    if !matches!(sys::is_readable_by(ours, deadline), Ok(true)) {
        return Answer::TimedOut;
    }
    let mut bytes = [0; REPORT_BYTES];
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(nix::libc::ucred);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(ours.as_raw_fd(), &mut slices, Some(&mut space), flags);
    let Ok(message) = received else {
        return Answer::Closed;
    };
    let length = message.bytes;
    let pid = message.cmsgs().ok().and_then(|mut messages| {
        messages.find_map(|message| match message {
            ControlMessageOwned::ScmCredentials(sender) => Some(sender.pid()),
            _ => None,
        })
    });
    match (Report::decode(&bytes[..length]), pid) {
        (Some(report), Some(pid)) => Answer::Report { report, pid },
        _ => Answer::Closed,
    }
}

/// Whether this launch has had a supervisor: each writes a note, in a folder made for the launch, before it clones the task.
/// True if the note cannot be read, since a second task must not begin beside the first.
fn was_supervised(spec: &LaunchSpec<'_>) -> bool {
    let noted = spec.status_dir.join(SUPERVISOR_FILE).symlink_metadata();
    !noted.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn starting(doing: &'static str) -> impl FnOnce(io::Error) -> LaunchError {
    move |source| LaunchError::Start { doing, source }
}

fn lost(spec: &LaunchSpec<'_>, doing: &'static str) -> LaunchError {
    LaunchError::Lost {
        name: spec.name.clone(),
        doing,
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    /// A simulated launcher: messages to it arrive at the other end of its socket.
    fn played(runtime_dir: &Path) -> (Launcher, OwnedFd, u32) {
        let (socket, theirs) = pair().expect("sockets");
        let child = std::process::Command::new("sleep").arg("600").spawn();
        let child = child.expect("begun");
        let pid = child.id();
        let image = File::open("/dev/null").expect("opened");
        let started = Started {
            image: image.into(),
            process: Some(Process { socket, child }),
        };
        let launcher = Launcher {
            options: LauncherOptions {
                runtime_dir: runtime_dir.to_owned(),
                launch_timeout: START_TIMEOUT,
                supervisor_tasks: Vec::new(),
                supervisor_group: None,
            },
            boot_id: BootId::current().expect("a boot"),
            state: Mutex::new(State {
                starting: None,
                started: Some(started),
            }),
        };
        (launcher, theirs, pid)
    }

    #[test]
    fn only_silent_launcher_is_replaced() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (launcher, theirs, pid) = played(dir.path());
        let answering = std::thread::spawn(move || {
            let mut asked = [0; 2];
            let deadline = Instant::now() + Duration::from_secs(30);
            let is_asked = sys::is_readable_by(&theirs, deadline).expect("looked at");
            assert!(is_asked, "it is not asked");
            let length = nix::unistd::read(&theirs, &mut asked).expect("asked");
            sys::write_once(theirs.as_fd(), &[PING]).expect("answered");
            (asked[..length].to_vec(), theirs)
        });
        assert!(!launcher.end_if_silent(pid));
        let (asked, theirs) = answering.join().expect("answered");
        assert_eq!((asked, launcher.pid()), (vec![PING], Some(pid)));
        // The launcher has gone.
        drop(theirs);
        assert!(!launcher.end_if_silent(pid + 1), "another is meant");
        assert_eq!(launcher.pid(), Some(pid));
        assert!(launcher.end_if_silent(pid));
        assert_eq!(launcher.pid(), None);
        launcher.complain_of(pid);
        let log = std::fs::read_to_string(dir.path().join("launcher.log")).expect("a log");
        assert_eq!(
            log,
            format!("launcher {pid} did not answer; replacing it\n")
        );
    }

    /// Receives a message of the agent, with its sockets.
    fn take(socket: &OwnedFd) -> (usize, Vec<OwnedFd>) {
        let deadline = Instant::now() + Duration::from_secs(30);
        let is_sent = sys::is_readable_by(socket, deadline).expect("looked at");
        assert!(is_sent, "nothing is sent");
        let mut bytes = vec![0; INLINE_BYTES_MAX];
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let mut space = nix::cmsg_space!([RawFd; 2]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let message = recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags);
        let message = message.expect("received");
        let controls = message.cmsgs().expect("whole");
        let fds = controls.flat_map(|control| match control {
            ControlMessageOwned::ScmRights(numbers) => numbers,
            _ => Vec::new(),
        });
        (message.bytes, fds.map(sys::own_received).collect())
    }

    fn launch_in(launcher: &Launcher, status_dir: &Path) -> LaunchError {
        let output = super::super::Destination::Null;
        let launched = launcher.launch(&LaunchSpec {
            name: &crate::identity::ContainerName::new("c").expect("a name"),
            command: &super::super::Command::Nothing,
            env: &[],
            working_dir: Path::new("/"),
            credentials: None,
            stdout: &output,
            stderr: &output,
            status_dir: status_dir.to_owned(),
            isolation: super::super::LaunchIsolation::default(),
        });
        launched.expect_err("nothing is launched")
    }

    /// Regression: a process of a container may kill a process that enters the container, before its exec. That killed the
    /// launcher as well, and with it the launches of other containers.
    #[test]
    fn killed_task_keeps_launcher_unretried() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (launcher, theirs, pid) = played(dir.path());
        let noted = dir.path().join(SUPERVISOR_FILE);
        let playing = std::thread::spawn(move || {
            let request = take(&theirs);
            std::fs::write(noted, "1 2 boot\n").expect("written");
            drop(request);
            theirs
        });
        let error = launch_in(&launcher, dir.path());
        assert!(matches!(error, LaunchError::Killed { .. }), "{error}");
        let theirs = playing.join().expect("played");
        let more = sys::is_readable_by(&theirs, Instant::now()).expect("looked at");
        assert_eq!((more, launcher.pid()), (false, Some(pid)));
    }

    /// A launch without any report is repeated by the same launcher if that launcher works.
    #[test]
    fn answering_launcher_survives_lost_supervisor() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let (launcher, theirs, pid) = played(dir.path());
        let playing = std::thread::spawn(move || {
            for _ in 0..ATTEMPTS {
                let (_, sockets) = take(&theirs);
                assert_eq!(sockets.len(), 1, "a launch");
                drop(sockets);
                assert_eq!(take(&theirs).0, 1, "a question");
                sys::write_once(theirs.as_fd(), &[PING]).expect("answered");
            }
            theirs
        });
        let error = launch_in(&launcher, dir.path());
        assert!(matches!(error, LaunchError::Lost { .. }), "{error}");
        playing.join().expect("played");
        assert_eq!(launcher.pid(), Some(pid));
    }

    /// Regression, found by damaging files of running tasks: the agent did not start.
    #[test]
    fn folder_at_log_path_allows_launcher() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        std::fs::create_dir(dir.path().join("launcher.log")).expect("made");
        let options = LauncherOptions {
            runtime_dir: dir.path().to_owned(),
            launch_timeout: Duration::ZERO,
            supervisor_tasks: Vec::new(),
            supervisor_group: None,
        };
        let mut log = open_log(&options).expect("opened");
        log.write_all(b"a complaint").expect("written");
    }
}
