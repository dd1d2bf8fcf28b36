//! The three standard streams of a task, opened while their paths mean what they mean to the agent.
//!
//! The supervisor calls [`Stdio::open`] before it enters or makes any namespace: in a running container, a task may have
//! mounted something of its own over the folders on these paths. Invariants: nothing here blocks, and the task's user becomes
//! the owner only of new files and of files made for this very process.

use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{Mode, SFlag, fstat};

use super::output::{Output, folder_of};
use super::plan::{PlannedOutput, TaskPlan};
use crate::beneath::Owner;

/// The input and output streams of a task.
#[derive(Debug)]
pub(super) struct Stdio {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    /// The stream of standard error; `None` if it equals standard output.
    pub(super) stderr: Option<OwnedFd>,
}

impl Stdio {
    /// Opens the streams, and the output that goes to files of bounded size.
    pub(super) fn open(plan: &TaskPlan) -> io::Result<(Self, Output)> {
        let stdin = match &plan.stdin {
            Some(path) if plan.terminal => endpoint(path, OFlag::O_RDWR),
            Some(path) => endpoint(path, OFlag::O_RDONLY),
            None => endpoint(c"/dev/null", OFlag::O_RDONLY),
        }?;
        let mut output = Output::default();
        let mut open = |to: &PlannedOutput, log| match log {
            Some(log) => output.add(plan, to, log),
            None => open_output(to, plan.owner()),
        };
        let stdout = open(&plan.stdout, plan.stdout_log)?;
        let stderr = if plan.stderr == plan.stdout {
            None
        } else {
            Some(open(&plan.stderr, plan.stderr_log)?)
        };
        let stdio = Self {
            stdin,
            stdout,
            stderr,
        };
        Ok((stdio, output))
    }
}

fn open_output(to: &PlannedOutput, owner: Owner) -> io::Result<OwnedFd> {
    let Some(beneath) = &to.beneath else {
        if to.path.is_empty() {
            return endpoint(c"/dev/null", OFlag::O_WRONLY);
        }
        let opened = endpoint(&to.path, OFlag::O_WRONLY)?;
        if let Some((uid, gid)) = owner {
            nix::unistd::fchown(&opened, Some(uid.into()), Some(gid.into()))?;
        }
        return Ok(opened);
    };
    let (folder, name) = folder_of(beneath, &to.path)?;
    let opened = folder.output_file(name, owner, OFlag::O_APPEND)?.file;
    wait_for_it(&opened)?;
    Ok(opened)
}

/// Opens a pipe, a terminal or the null device, which the agent has made or the machine has.
fn endpoint(path: &CStr, flags: OFlag) -> io::Result<OwnedFd> {
    // The open must not wait for the other end, which may be gone.
    let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let opened = nix::fcntl::open(path, flags, Mode::empty())?;
    let kind = SFlag::from_bits_truncate(fstat(&opened)?.st_mode) & SFlag::S_IFMT;
    if kind != SFlag::S_IFIFO && kind != SFlag::S_IFCHR {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    wait_for_it(&opened)?;
    Ok(opened)
}

/// Makes reads and writes blocking, as programs expect of their standard streams.
fn wait_for_it(opened: &OwnedFd) -> nix::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(opened, FcntlArg::F_GETFL)?);
    fcntl(
        opened,
        FcntlArg::F_SETFL(flags.difference(OFlag::O_NONBLOCK)),
    )?;
    Ok(())
}
