//! The seccomp filter below which an agent is executed, and the program that sets it.
//!
//! [`run_if_requested`] is that program: it sets the filter, passes the listener to the receiver at a socket, and executes
//! the rest of its command line.

use std::ffi::CString;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};

use super::calls;

/// The first argument of the program that sets the filter.
const ARGUMENT: &str = "--below-fault-filter";

/// Returns the prefix of a command line that runs it below the filter, with this socket for its calls.
pub fn prefix(socket: &Path) -> Vec<String> {
    let this = std::env::current_exe().expect("this program has a file");
    let socket = socket.display().to_string();
    vec![this.display().to_string(), ARGUMENT.to_owned(), socket]
}

/// Sets the filter and executes the rest, if the command line requests it; returns only otherwise, or on error.
pub fn run_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != ARGUMENT {
        return None;
    }
    let socket = arguments.next()?;
    let command: Vec<CString> = arguments
        .filter_map(|text| CString::new(text.as_bytes()).ok())
        .collect();
    let failed = below_filter(Path::new(&socket), &command);
    eprintln!("the filter for faults was not set: {failed}");
    Some(ExitCode::FAILURE)
}

fn below_filter(socket: &Path, command: &[CString]) -> io::Error {
    let execute = || -> io::Result<()> {
        let stream = UnixStream::connect(socket)?;
        let listener = set()?;
        let descriptors = [listener.as_raw_fd()];
        let message = [ControlMessage::ScmRights(&descriptors)];
        let bytes = [IoSlice::new(b"l")];
        sendmsg::<()>(
            stream.as_raw_fd(),
            &bytes,
            &message,
            MsgFlags::empty(),
            None,
        )?;
        drop((stream, listener));
        let program = command.first().ok_or(io::ErrorKind::InvalidInput)?;
        nix::unistd::execv(program, command)?;
        Ok(())
    };
    execute().err().unwrap_or(io::ErrorKind::Other.into())
}

/// Returns a statement of a filter that jumps this far if it holds.
fn statement(code: u32, jump: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: u16::try_from(code).expect("a code of two bytes"),
        jt: jump,
        jf: 0,
        k: value,
    }
}

/// Builds the filter program, which asks the listener for each call of the table and allows all others.
fn program() -> Vec<libc::sock_filter> {
    let load_number = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let is_equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut program = vec![statement(load_number, 0, 0)];
    let count = calls::all().count();
    for (index, call) in calls::all().enumerate() {
        let number = u32::try_from(call.number).expect("a number of a call");
        let past = u8::try_from(count - index).expect("few calls");
        program.push(statement(is_equal, past, number));
    }
    program.push(statement(answer, 0, libc::SECCOMP_RET_ALLOW));
    program.push(statement(answer, 0, libc::SECCOMP_RET_USER_NOTIF));
    program
}

/// Puts this process below the filter, and returns the descriptor that receives its calls.
#[expect(
    unsafe_code,
    reason = "no crate here gives the listener of a seccomp filter"
)]
fn set() -> io::Result<OwnedFd> {
    let mut filter = program();
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).expect("few statements"),
        filter: filter.as_mut_ptr(),
    };
    let flags =
        libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the program points to as many statements as it declares, which live until the call has returned; the kernel
    // copies them. The returned descriptor is new and ours.
    unsafe {
        let listener = libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const program,
        );
        match i32::try_from(listener) {
            Ok(listener) if listener >= 0 => Ok(OwnedFd::from_raw_fd(listener)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
