//! The sealed launcher process itself: one thread, one socket, one clone per request.
//!
//! `main` calls [`run`] after the exec of the sealed image. The launcher does nothing but receive a plan and a report socket,
//! clone a supervisor, and forget it. Invariant: it keeps no state, so that its death costs nothing but a restart, and it
//! ends when the agent's end of the socket closes.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use nix::fcntl::OFlag;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockType, getsockopt, recvmsg, sockopt::SockType as TypeOption,
};
use nix::sys::stat::Mode;

use super::plan::{PLAN_BYTES_MAX, TaskPlan};
use super::report::{Outcome, Report};
use super::{INLINE_BYTES_MAX, LAUNCHER_ARGUMENT, PING, READY, lock, supervisor};
use crate::launch_step::LaunchStep;
use crate::sys::{self, Cloned};

/// The number of the socket: standard input, so that exec needs no other inheritable descriptor.
const SOCKET: RawFd = 0;

/// Descriptor on which a supervisor keeps its report socket.
const REPORT: RawFd = 3;

/// Descriptor on which a supervisor keeps the launchers' lock until agents can find it without the lock.
const LOCK: RawFd = 4;

/// Becomes the launcher if this process was executed as the launcher.
pub(super) fn run_if_requested() -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != LAUNCHER_ARGUMENT {
        return None;
    }
    Some(match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn serve() -> io::Result<()> {
    let socket = sys::borrow_number(SOCKET);
    if getsockopt(&socket, TypeOption)? != SockType::SeqPacket {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // Leaves the agent's terminal and signals: Ctrl-C there concerns the agent alone.
    let _ = nix::unistd::setsid();
    // A real-time process cannot join a v1 cpu group, and no task inherits such a right.
    sys::normal_scheduling();
    sys::block_all_signals();
    sys::ignore_children();
    let _ = nix::sys::prctl::set_name(c"meseta-launcher");
    let mut buffer = vec![0; INLINE_BYTES_MAX];
    // The first message passes the launcher's own files: the lock, the supervisors' group, and files for joining groups.
    let Some((length, _)) = receive(socket, &mut buffer)? else {
        return Ok(());
    };
    let told = buffer.get(..length).unwrap_or_default();
    let mut paths = told.split(|byte| *byte == 0).map(OsStr::from_bytes);
    let (Some(lock), Some(group)) = (paths.next(), paths.next()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let joined = paths.try_for_each(join_group);
    let opened = joined.and_then(|()| Ok((open_group(group)?, lock::share(Path::new(lock))?)));
    let errno = opened
        .as_ref()
        .err()
        .and_then(io::Error::raw_os_error)
        .unwrap_or(0);
    let [a, b, c, d] = errno.to_le_bytes();
    sys::write_once(socket, &[READY, a, b, c, d])?;
    let (group, lock) = opened?;
    while let Some((length, fds)) = receive(socket, &mut buffer)? {
        // Nobody waits for the requests of a dead agent, and the next agent would not know of them.
        if is_orphaned(socket) {
            break;
        }
        if buffer[..length] == [PING] {
            let _ = sys::write_once(socket, &[PING]);
            continue;
        }
        let group = group.as_ref().map(AsFd::as_fd);
        handle(&buffer[..length], fds, group, lock.as_fd());
    }
    Ok(())
}

/// Whether the agent's end is closed, although requests may be left in the socket.
fn is_orphaned(socket: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    let found = poll(&mut polled, PollTimeout::ZERO).is_ok();
    let events = polled[0].revents().unwrap_or(PollFlags::empty());
    found && events.contains(PollFlags::POLLHUP)
}

/// Moves this process, and with it every supervisor to come, out of the agent's own groups.
fn join_group(file: &OsStr) -> io::Result<()> {
    let file = CString::new(file.as_bytes()).map_err(io::Error::other)?;
    sys::write_file(&file, b"0")
}

/// The v2 group of the supervisors; `None` without a v2 tree.
fn open_group(dir: &OsStr) -> io::Result<Option<OwnedFd>> {
    if dir.is_empty() {
        return Ok(None);
    }
    let flags = OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    Ok(Some(nix::fcntl::open(dir, flags, Mode::empty())?))
}

/// The next request, or `None` when the agent has closed its end.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<(usize, Vec<OwnedFd>)>> {
    let mut slices = [io::IoSliceMut::new(buffer)];
    let mut space = nix::cmsg_space!([RawFd; 2]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut slices, Some(&mut space), flags) {
            Err(nix::Error::EINTR) => {}
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            fds.extend(numbers.into_iter().map(sys::own_received));
        }
    }
    if message.bytes == 0 && fds.is_empty() {
        return Ok(None);
    }
    Ok(Some((message.bytes, fds)))
}

/// Clones a supervisor for one request: a report socket, and the plan inline or in a second file.
fn handle(inline: &[u8], fds: Vec<OwnedFd>, group: Option<BorrowedFd<'_>>, lock: BorrowedFd<'_>) {
    let mut fds = fds.into_iter();
    let Some(report) = fds.next() else { return };
    let stored = fds.next();
    let Some(namespaces) = TaskPlan::namespaces_of(inline) else {
        return;
    };
    match sys::clone_process(namespaces, group) {
        Ok(Cloned::Child) => become_supervisor(inline, report, stored, lock),
        Ok(Cloned::Parent(_)) => {}
        Err(error) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            refuse(report.as_fd(), errno);
        }
    }
}

fn refuse(report: BorrowedFd<'_>, errno: i32) {
    let outcome = Outcome::Failed {
        step: LaunchStep::CloneSupervisor,
        errno,
        index: 0,
    };
    let report_text = Report {
        outcome,
        supervisor_pid: 0,
        supervisor_start: 0,
    };
    let _ = sys::write_once(report, &report_text.encode());
}

fn become_supervisor(
    inline: &[u8],
    report: OwnedFd,
    stored: Option<OwnedFd>,
    lock: BorrowedFd<'_>,
) -> ! {
    let plan = match stored {
        None => TaskPlan::decode(inline),
        Some(file) => read_stored(&file)
            .ok()
            .and_then(|bytes| TaskPlan::decode(&bytes)),
    };
    let Some(plan) = plan else {
        refuse(report.as_fd(), libc::EPROTO);
        sys::exit_now(1)
    };
    match arrange_descriptors(report, lock) {
        Ok((report, lock)) => supervisor::run(&plan, report, Some(lock)),
        Err(_) => sys::exit_now(1),
    }
}

fn read_stored(file: &OwnedFd) -> io::Result<Vec<u8>> {
    let size = usize::try_from(nix::sys::stat::fstat(file)?.st_size).map_err(io::Error::other)?;
    if size > PLAN_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; size];
    let read = nix::sys::uio::pread(file, &mut bytes, 0)?;
    if read == size {
        Ok(bytes)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// Arranges the descriptors: `/dev/null` on 0 in place of the agent's socket, so that the agent sees the launcher's end; the
/// log on 1 and 2; the report on 3, the lock on 4; and nothing else.
fn arrange_descriptors(report: OwnedFd, lock: BorrowedFd<'_>) -> io::Result<(OwnedFd, OwnedFd)> {
    let null = nix::fcntl::open(c"/dev/null", OFlag::O_RDWR, Mode::empty())?;
    // Higher than all numbers to be assigned.
    let high = |fd: BorrowedFd<'_>| {
        let above = nix::fcntl::FcntlArg::F_DUPFD_CLOEXEC(LOCK + 1);
        nix::fcntl::fcntl(fd, above).map(sys::own_received)
    };
    let (lock, report_above) = (high(lock)?, high(report.as_fd())?);
    sys::duplicate_cloexec(null.as_fd(), SOCKET)?;
    sys::duplicate_cloexec(report_above.as_fd(), REPORT)?;
    sys::duplicate_cloexec(lock.as_fd(), LOCK)?;
    // The numbers are closed below, or are REPORT itself.
    std::mem::forget((null, report, report_above, lock));
    sys::close_from(5)?;
    Ok((sys::own_received(REPORT), sys::own_received(LOCK)))
}
