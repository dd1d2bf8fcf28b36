//! Both sides of the process that unpacks a layer.
//!
//! [`unpack_in_child`] starts this executable again in the layer's folder, writes the blob to its standard input and reads its
//! report from its standard output. [`run_if_requested`] is the other side. Invariant: a layer is unpacked only if the
//! blob was read to its verified end, the child reported success, and it exited with success.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::report::{Confinement, Report};
use super::{Limits, UnpackError, confinement, unpack};
use crate::descriptor::Algorithm;
use crate::sys;

/// First argument of the child. Not for users: without a folder of the store the process unpacks into an unused one.
const CHILD_ARGUMENT: &str = "--meseta-unpack-layer";
/// Bytes that are copied to the child at once, and the size of its pipe: each change between the processes costs some microseconds.
const PIPE_BYTES: usize = 256 << 10;
/// The longest report. Paths take at most [`Limits::path_bytes`], and three times as much when all bytes are escaped.
const REPORT_BYTES_MAX: u64 = 128 << 20;

/// The child's order, as its second argument.
#[derive(Debug, Deserialize, Serialize)]
struct Order {
    is_sha512: bool,
    limits: Limits,
}

/// The child's answer.
#[derive(Debug, Deserialize, Serialize)]
enum Answer {
    Unpacked {
        report: Report,
        confinement: Confinement,
    },
    /// The layer was refused: the same blob fails again.
    Refused { reason: String },
    /// The file system refused a call.
    Failed { reason: String, errno: Option<i32> },
}

/// Errors of unpacking in a child.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// The message names the limit or the entry.
    #[error("{reason}")]
    Refused { reason: String },
    /// The store's file system refused a call.
    #[error("{reason}")]
    Failed {
        reason: String,
        #[source]
        source: Option<io::Error>,
    },
    /// The source of the blob failed, or the blob has another digest or size than its descriptor.
    #[error("failed to read the blob")]
    Blob(#[source] io::Error),
    #[error("failed to {operation} the unpacking process")]
    Process {
        operation: &'static str,
        #[source]
        source: io::Error,
    },
    /// A kernel that is out of memory killed the process, or a defect ended it.
    #[error(
        "the unpacking process ended with {status} and without a report: it ran out of memory, or the layer is hostile"
    )]
    Died { status: String },
}

/// Unpacks a layer in a child process. An error leaves an unknown part of the layer in the folder.
///
/// `blob` ends with an error unless it has the right digest; see [`crate::descriptor::Verified`].
pub fn unpack_in_child(
    blob: &mut dyn Read,
    folder: &Path,
    algorithm: Algorithm,
    limits: &Limits,
) -> Result<(Report, Confinement), ChildError> {
    let mut child = start(folder, algorithm, limits)?;
    let copied = copy_blob(blob, &mut child);
    if let Err(error @ ChildError::Blob(_)) = copied {
        // A child that saw the end of its input could take the cut blob for a whole one.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    let answer = read_answer(&mut child);
    if answer.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|source| ChildError::Process {
        operation: "wait for",
        source,
    })?;
    match answer? {
        Some(Answer::Unpacked {
            report,
            confinement,
        }) if status.success() => {
            // The child has read the blob to its end, so an error here is a defect.
            copied.map(|()| (report, confinement))
        }
        Some(Answer::Refused { reason }) => Err(ChildError::Refused { reason }),
        Some(Answer::Failed { reason, errno }) => Err(ChildError::Failed {
            reason,
            source: errno.map(io::Error::from_raw_os_error),
        }),
        _ => Err(ChildError::Died {
            status: status.to_string(),
        }),
    }
}

fn start(folder: &Path, algorithm: Algorithm, limits: &Limits) -> Result<Child, ChildError> {
    let order = Order {
        is_sha512: algorithm == Algorithm::Sha512,
        limits: *limits,
    };
    let failed = |source| ChildError::Process {
        operation: "start",
        source,
    };
    let order = serde_json::to_string(&order).map_err(|error| failed(error.into()))?;
    // After an upgrade the path of the executable leads to another one; this link does not.
    let child = Command::new("/proc/self/exe")
        .args([CHILD_ARGUMENT, &order])
        .env_clear()
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    if let Some(pipe) = &child.stdin {
        // Without the right to larger pipes, the default size does as well.
        let _ = rustix::pipe::fcntl_setpipe_size(pipe, PIPE_BYTES);
    }
    Ok(child)
}

/// Writes the blob to the child and closes the pipe. The child stops reading when it refuses the layer; its answer has the
/// reason.
fn copy_blob(blob: &mut dyn Read, child: &mut Child) -> Result<(), ChildError> {
    let Some(mut pipe) = child.stdin.take() else {
        return Ok(());
    };
    let mut buffer = vec![0; PIPE_BYTES];
    loop {
        let count = match blob.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ChildError::Blob(error)),
        };
        pipe.write_all(&buffer[..count])
            .map_err(|source| ChildError::Process {
                operation: "write to",
                source,
            })?;
    }
}

/// Reads the child's answer. Absent if the child died without one.
fn read_answer(child: &mut Child) -> Result<Option<Answer>, ChildError> {
    let failed = |source| ChildError::Process {
        operation: "read from",
        source,
    };
    let Some(pipe) = child.stdout.take() else {
        return Ok(None);
    };
    let mut text = Vec::new();
    pipe.take(REPORT_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(failed)?;
    if text.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&text)
        .map(Some)
        .map_err(|error| failed(error.into()))
}

/// Turns this process into the unpacking child if it was started as one.
///
/// Must be among the first statements of `main`, before any thread exists.
pub fn run_if_requested() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != CHILD_ARGUMENT {
        return None;
    }
    let order = arguments.next().and_then(|text| text.into_string().ok());
    let order = order.and_then(|text| serde_json::from_str(&text).ok());
    let Some(order) = order else {
        return Some(ExitCode::FAILURE);
    };
    let answer = run(&order);
    let written = serde_json::to_writer(io::stdout().lock(), &answer)
        .map_err(io::Error::from)
        .and_then(|()| io::stdout().flush());
    Some(match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn run(order: &Order) -> Answer {
    let (folder, confinement) = match prepare() {
        Ok(prepared) => prepared,
        Err(error) => {
            return Answer::Failed {
                reason: "failed to confine the unpacking process".to_owned(),
                errno: error.raw_os_error(),
            };
        }
    };
    let algorithm = if order.is_sha512 {
        Algorithm::Sha512
    } else {
        Algorithm::Sha256
    };
    match unpack(io::stdin().lock(), folder, algorithm, &order.limits) {
        Ok(report) => Answer::Unpacked {
            report,
            confinement,
        },
        Err(UnpackError::Refused(refusal)) => Answer::Refused {
            reason: refusal.to_string(),
        },
        Err(UnpackError::System {
            operation,
            path,
            source,
        }) => Answer::Failed {
            reason: format!("failed to {operation} {path:?} of a layer"),
            errno: source.raw_os_error(),
        },
    }
}

/// Opens the folder, which is the working directory, and gives up everything else.
fn prepare() -> io::Result<(OwnedFd, Confinement)> {
    /// The descriptors behind the three standard ones.
    const FIRST_OTHER: u32 = 3;
    sys::close_from(FIRST_OTHER)?;
    rustix::process::umask(Mode::empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::openat(rustix::fs::CWD, ".", flags, Mode::empty())?;
    let confinement = confinement::confine(std::os::fd::AsFd::as_fd(&folder))?;
    Ok((folder, confinement))
}
