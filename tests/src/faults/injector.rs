//! The receiver of the calls of an agent below the filter, and its answers.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, getsockopt, recvmsg, sockopt::PeerCredentials,
};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::calls::{self, Call, Effect, Operand};
use super::ledger::{Fault, Ledger, Site};
use crate::{kernel, wait};

/// The maximum length of the agent's paths.
const PATH_BYTES_MAX: usize = 4096;
const PAGE: usize = 4096;
/// The time limit for a call, after which its agent is killed. All other work of the agent waits meanwhile, with its locks.
const CALL_LIMIT: Duration = Duration::from_secs(1);

/// The folders and files of an agent's life.
#[derive(Clone, Debug)]
pub struct Scene {
    pub work_dir: PathBuf,
    /// The log of the agent, which gets no faults.
    pub log: PathBuf,
    pub cgroups_root: String,
}

/// Decides the calls of every agent that is started with [`Injector::prefix`].
#[derive(Debug)]
pub struct Injector {
    socket: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    ledger: Mutex<Ledger>,
    /// The scene of the agent; without it every call passes uncounted.
    scene: Mutex<Option<Scene>>,
    over: AtomicBool,
    /// The additional milliseconds of each sync.
    sync_delay_ms: AtomicU64,
}

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the delay of a call: only syncs have one.
    fn delay_of(&self, asked: &libc::seccomp_notif) -> Option<Duration> {
        let syncs = [libc::SYS_fsync, libc::SYS_fdatasync];
        let delay = Duration::from_millis(self.sync_delay_ms.load(Ordering::Relaxed));
        let is_sync = syncs.contains(&i64::from(asked.data.nr));
        (is_sync && !delay.is_zero()).then_some(delay)
    }

    fn scene(&self) -> MutexGuard<'_, Option<Scene>> {
        self.scene.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Injector {
    /// Waits for agents at a socket in this folder.
    pub fn start(dir: &Path) -> io::Result<Self> {
        let socket = dir.join("faults.socket");
        let listener = UnixListener::bind(&socket)?;
        let shared = Arc::new(Shared::default());
        let waiting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if waiting.over.load(Ordering::Relaxed) {
                    return;
                }
                let shared = waiting.clone();
                let Ok((listener, agent)) = stream.and_then(|stream| received(&stream)) else {
                    continue;
                };
                std::thread::spawn(move || serve(&listener, agent, &shared));
            }
        });
        Ok(Self { socket, shared })
    }

    /// Returns the prefix of an agent's command line.
    pub fn prefix(&self) -> Vec<String> {
        super::filter::prefix(&self.socket)
    }

    /// Sets the scene: from now on calls are counted.
    pub fn set_scene(&self, scene: Scene) {
        *self.shared.scene() = Some(scene);
    }

    /// Delays each sync of the agent and its children from now on by this time.
    pub fn slow_syncs(&self, by: Duration) {
        let by = u64::try_from(by.as_millis()).unwrap_or(u64::MAX);
        self.shared.sync_delay_ms.store(by, Ordering::Relaxed);
    }

    /// Returns the calls made and the plan for them.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.shared.ledger()
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.socket);
    }
}

/// Receives the listener that a program sent before it executed an agent, with the agent's process.
fn received(stream: &UnixStream) -> io::Result<(OwnedFd, Pid)> {
    let peer = getsockopt(stream, PeerCredentials)?.pid();
    let mut bytes = [0];
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let mut space = nix::cmsg_space!(i32);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let Some(descriptor) = descriptors.first()
        {
            #[expect(unsafe_code, reason = "the kernel gives a number")]
            // SAFETY: the descriptor came with this message and is nobody else's.
            let listener = unsafe { OwnedFd::from_raw_fd(*descriptor) };
            return Ok((listener, Pid::from_raw(peer)));
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

mod ioctls {
    #![expect(unsafe_code, reason = "what nix makes of an ioctl is unsafe to call")]

    nix::ioctl_readwrite!(receive, b'!', 0, libc::seccomp_notif);
    nix::ioctl_readwrite!(answer, b'!', 1, libc::seccomp_notif_resp);

    use std::os::fd::{AsRawFd as _, OwnedFd};

    /// Returns the next call that a process below the filter wants to make.
    pub(super) fn next(listener: &OwnedFd) -> nix::Result<libc::seccomp_notif> {
        // SAFETY: all zeroes are a valid value of the struct, and what the kernel requires; the struct lives until the call
        // has returned.
        unsafe {
            let mut asked: libc::seccomp_notif = std::mem::zeroed();
            receive(listener.as_raw_fd(), &raw mut asked)?;
            Ok(asked)
        }
    }

    /// Lets a call continue, or ends it with an error.
    pub(super) fn reply(listener: &OwnedFd, id: u64, errno: Option<nix::errno::Errno>) {
        let mut reply = libc::seccomp_notif_resp {
            id,
            val: 0,
            error: errno.map_or(0, |errno| -(errno as i32)),
            flags: match errno {
                Some(_) => 0,
                None => u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).unwrap_or(1),
            },
        };
        // SAFETY: the kernel only reads the reply, which lives until the call has returned. The caller may have gone
        // meanwhile.
        let _ = unsafe { answer(listener.as_raw_fd(), &raw mut reply) };
    }
}

/// Decides calls until no process is left below the filter.
fn serve(listener: &OwnedFd, agent: Pid, shared: &Shared) {
    std::thread::scope(|scope| serve_until_gone(scope, listener, agent, shared));
}

fn serve_until_gone<'a>(
    scope: &'a Scope<'a, '_>,
    listener: &'a OwnedFd,
    agent: Pid,
    shared: &'a Shared,
) {
    loop {
        let mut polled = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            Err(_) => return,
            Ok(_) => {}
        }
        let state = polled[0].revents().unwrap_or(PollFlags::empty());
        if !state.contains(PollFlags::POLLIN) {
            return;
        }
        // The caller may have been killed meanwhile.
        let Ok(asked) = ioctls::next(listener) else {
            continue;
        };
        let fault = fault_of(&asked, agent, shared);
        match shared.delay_of(&asked) {
            Some(delay) if fault.is_none() => {
                // No other call waits for this one.
                scope.spawn(move || {
                    std::thread::sleep(delay);
                    ioctls::reply(listener, asked.id, None);
                });
            }
            _ => carry_out(listener, &asked, agent, fault),
        }
    }
}

fn carry_out(listener: &OwnedFd, asked: &libc::seccomp_notif, agent: Pid, fault: Option<Fault>) {
    match fault {
        None => ioctls::reply(listener, asked.id, None),
        Some(Fault::Error { errno, .. }) => ioctls::reply(listener, asked.id, Some(errno)),
        Some(Fault::KillBefore) => kernel::kill(agent.as_raw(), Signal::SIGKILL),
        Some(Fault::KillAfter) => {
            let thread = thread_of(asked);
            // The thread stops when it leaves the call, before any further action.
            let is_seized = ptrace::seize(thread, ptrace::Options::empty()).is_ok()
                && ptrace::interrupt(thread).is_ok();
            ioctls::reply(listener, asked.id, None);
            let is_over = || {
                let flags = WaitPidFlag::__WALL | WaitPidFlag::WNOHANG;
                waitpid(thread, Some(flags)) != Ok(WaitStatus::StillAlive)
            };
            if is_seized {
                wait::holds(CALL_LIMIT, is_over);
            }
            kernel::kill(agent.as_raw(), Signal::SIGKILL);
            // The parent of the process waits for the first thread.
            if is_seized && thread != agent {
                wait::holds(CALL_LIMIT, is_over);
            }
        }
    }
}

fn thread_of(asked: &libc::seccomp_notif) -> Pid {
    Pid::from_raw(i32::try_from(asked.pid).unwrap_or_default())
}

/// Returns the fault of a call; calls of other processes than the agent have none.
fn fault_of(asked: &libc::seccomp_notif, agent: Pid, shared: &Shared) -> Option<Fault> {
    let scene = shared.scene().clone()?;
    let thread = thread_of(asked);
    let own = PathBuf::from(format!("/proc/{agent}/task/{thread}"));
    if !own.exists() {
        return None;
    }
    let call = calls::all().find(|call| call.number == i64::from(asked.data.nr))?;
    let site = site_of(call, &asked.data.args, thread, &own, &scene)?;
    shared.ledger().pass(site)
}

/// Returns the site of a call, if the call is of interest.
fn site_of(
    call: &Call,
    arguments: &[u64; 6],
    thread: Pid,
    own: &Path,
    scene: &Scene,
) -> Option<Site> {
    let site = |effect, file| {
        Some(Site {
            call: call.name,
            effect,
            file,
        })
    };
    let path = match call.operand {
        Operand::Signal(at) => return site(call.effect, format!("signal {}", arguments[at])),
        Operand::Nothing => {
            let name = std::fs::read_to_string(own.join("comm")).ok()?;
            return site(call.effect, format!("by {}", name.trim()));
        }
        Operand::Descriptor(at) => open_file(own, arguments[at])?,
        Operand::Path(at) => {
            let folder = std::fs::read_link(own.join("cwd")).ok();
            calls::joined(folder, &path_at(thread, arguments[at])?)
        }
        Operand::Below(folder, at) => {
            let folder = open_file(own, arguments[folder])
                .or_else(|| std::fs::read_link(own.join("cwd")).ok());
            calls::joined(folder, &path_at(thread, arguments[at])?)
        }
    };
    if !calls::is_of_interest(&path, &scene.log) {
        return None;
    }
    let flags = match call.name {
        "open" => arguments[1],
        "openat" => arguments[2],
        "openat2" => number_at(thread, arguments[2])?,
        _ => 0,
    };
    let effect = match calls::makes(flags) {
        true => Effect::Changes,
        false => call.effect,
    };
    let kind = calls::kind_of(&path, &scene.work_dir, &scene.cgroups_root);
    site(effect, kind)
}

/// Returns the file of an agent's descriptor; `None` for that of the working directory.
fn open_file(own: &Path, descriptor: u64) -> Option<PathBuf> {
    // The kernel uses the lower half of the number only.
    let number = descriptor & u64::from(u32::MAX);
    std::fs::read_link(own.join(format!("fd/{number}"))).ok()
}

fn path_at(thread: Pid, address: u64) -> Option<PathBuf> {
    let mut bytes = Vec::new();
    let mut at = usize::try_from(address).ok()?;
    while bytes.len() < PATH_BYTES_MAX {
        // The memory behind the end of a page may be unmapped.
        let mut piece = vec![0; PAGE - at % PAGE];
        let length = read_at(thread, at, &mut piece)?;
        let piece = &piece[..length];
        if let Some(end) = piece.iter().position(|byte| *byte == 0) {
            bytes.extend_from_slice(&piece[..end]);
            return Some(PathBuf::from(std::ffi::OsStr::from_bytes(&bytes)));
        }
        bytes.extend_from_slice(piece);
        at += length;
    }
    None
}

fn number_at(thread: Pid, address: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let length = read_at(thread, usize::try_from(address).ok()?, &mut bytes)?;
    (length == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}

fn read_at(thread: Pid, base: usize, into: &mut [u8]) -> Option<usize> {
    let remote = [RemoteIoVec {
        base,
        len: into.len(),
    }];
    let length = process_vm_readv(thread, &mut [IoSliceMut::new(into)], &remote).ok()?;
    (length > 0).then_some(length)
}
