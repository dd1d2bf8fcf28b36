//! A task's output: a pipe, emptied into files of bounded size that are renamed when they are full.
//!
//! The thread of `output_writer.rs` drives [`Output`], also while no agent runs. The kernel moves the bytes; none pass
//! through this process. Moving them may sleep for as long as the disk does not answer. Invariant: a stream never holds more
//! than its limit in each of its files: a writer that is faster than [`PACE_BYTES`] waits in its pipe, and bytes that cannot
//! be written are dropped without waiting.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, splice};
use nix::unistd::UnlinkatFlags;

use super::LogFile;
use super::plan::{PlannedOutput, TaskPlan};
use crate::beneath::{Folder, OUTPUT_MODE, Owner};

/// The limit on the output of one container per [`PACE`]: 64 MB a second cost a few hundredths of a processor, which no
/// container is charged for.
const PACE_BYTES: u64 = 6_400_000;
pub(super) const PACE: Duration = Duration::from_millis(100);

/// The number of bytes of one move: a pipe's capacity.
const CHUNK_BYTES: usize = 64 << 10;

/// The smallest file: a page.
const FILE_BYTES_MIN: u64 = 4096;

/// A single output stream of a task.
#[derive(Debug)]
struct Stream {
    /// The read end of the supervisor; `None` once every writer is gone.
    pipe: Option<OwnedFd>,
    dir: Folder,
    name: CString,
    limit: LogFile,
    owner: Owner,
    /// The open file; `None` when no file could be opened, which loses the output.
    file: Option<OwnedFd>,
    written: u64,
}

/// A task's output and error output.
#[derive(Debug, Default)]
pub(super) struct Output {
    streams: Vec<Stream>,
    /// The number of bytes that may still move before `pause_until`, on the caller's clock.
    left: u64,
    pause_until: Duration,
}

impl Output {
    /// Adds a pipe whose read end is carried into a file; returns the task's write end.
    pub(super) fn add(
        &mut self,
        plan: &TaskPlan,
        to: &PlannedOutput,
        limit: LogFile,
    ) -> io::Result<OwnedFd> {
        // Other destinations cannot be renamed when they are full.
        let beneath = to.beneath.as_ref().ok_or(io::ErrorKind::InvalidInput)?;
        let (dir, name) = folder_of(beneath, &to.path)?;
        let name = CString::new(name.as_bytes()).map_err(io::Error::other)?;
        let owner = plan.owner();
        let (ours, theirs) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let flags = nix::fcntl::fcntl(&ours, FcntlArg::F_GETFL)?;
        let flags = OFlag::from_bits_retain(flags) | OFlag::O_NONBLOCK;
        nix::fcntl::fcntl(&ours, FcntlArg::F_SETFL(flags))?;
        if let Some((uid, gid)) = owner {
            // The task may open /dev/stdout again.
            nix::unistd::fchown(&theirs, Some(uid.into()), Some(gid.into()))?;
        }
        let mut stream = Stream {
            pipe: Some(ours),
            dir,
            name,
            limit: LogFile {
                bytes: limit.bytes.max(FILE_BYTES_MIN),
                ..limit
            },
            owner,
            file: None,
            written: 0,
        };
        // Output continues in the file of an earlier run.
        let name = OsStr::from_bytes(stream.name.as_bytes());
        let opened = stream.dir.output_file(name, owner, OFlag::empty())?;
        stream.written = opened.bytes;
        stream.file = Some(opened.file);
        self.streams.push(stream);
        Ok(theirs)
    }

    /// Whether a writer is left.
    pub(super) fn is_open(&self) -> bool {
        self.streams.iter().any(|stream| stream.pipe.is_some())
    }

    /// The pipes with a remaining writer.
    pub(super) fn pipes(&self) -> Vec<BorrowedFd<'_>> {
        let streams = self.streams.iter();
        let pipes = streams.filter_map(|stream| stream.pipe.as_ref());
        pipes.map(AsFd::as_fd).collect()
    }

    /// Whether a pipe has data to move. Touches no file.
    pub(super) fn has_data(&self) -> bool {
        let pipes = self.pipes();
        pipes.into_iter().any(|pipe| held_bytes(pipe) > 0)
    }

    /// Closes empty pipes without a writer. Touches no file.
    pub(super) fn close_ended(&mut self) {
        for stream in &mut self.streams {
            stream.pipe.take_if(|pipe| has_ended(pipe.as_fd()));
        }
    }

    /// The descriptors to wait for. Empty while the pace is exceeded; the time is the end of that pause.
    pub(super) fn waiting(&self, now: Duration) -> (Vec<BorrowedFd<'_>>, Option<Duration>) {
        if self.left == 0 && now < self.pause_until {
            return (Vec::new(), Some(self.pause_until));
        }
        (self.pipes(), None)
    }

    /// Moves the available output, as far as the pace allows.
    pub(super) fn pump(&mut self, now: Duration) {
        if now >= self.pause_until {
            self.left = PACE_BYTES;
            self.pause_until = now.saturating_add(PACE);
        }
        for stream in &mut self.streams {
            self.left = stream.pump(self.left);
        }
    }

    /// Moves the rest of the pipes, after the last writer's end.
    pub(super) fn finish(&mut self) {
        for stream in &mut self.streams {
            // A pipe holds less than that; writers that still run do not delay the end.
            stream.pump(PACE_BYTES);
            stream.pipe = None;
        }
    }
}

impl Stream {
    /// Moves at most so many bytes; returns the rest of the budget.
    fn pump(&mut self, mut budget: u64) -> u64 {
        if self.file.is_none() {
            // The disk may have room again.
            let _ = self.begin_file();
        }
        while budget > 0 {
            self.find_end();
            if self.written >= self.limit.bytes {
                self.rotate();
            }
            let Some(pipe) = self.pipe.as_ref() else {
                return budget;
            };
            let free_bytes = self.limit.bytes.saturating_sub(self.written).min(budget);
            let free_bytes = usize::try_from(free_bytes)
                .unwrap_or(CHUNK_BYTES)
                .min(CHUNK_BYTES);
            let moved = match move_some(pipe, self.file.as_ref(), self.written, free_bytes.max(1)) {
                Ok(Moved::Kept(0) | Moved::Lost(0)) => {
                    self.pipe = None;
                    return budget;
                }
                Ok(Moved::Kept(moved)) => {
                    self.written = self.written.saturating_add(as_u64(moved));
                    moved
                }
                Ok(Moved::Lost(moved)) => moved,
                Err(nix::Error::EINTR) => 0,
                Err(_) => return budget,
            };
            budget = budget.saturating_sub(as_u64(moved));
        }
        budget
    }

    /// Continues at the end of the file, as append mode does, which `splice` refuses: others may have truncated the file, or
    /// written to it.
    fn find_end(&mut self) {
        let found = self.file.as_ref().map(nix::sys::stat::fstat);
        if let Some(Ok(stat)) = found {
            self.written = u64::try_from(stat.st_size).unwrap_or(0);
        }
    }

    /// Renames the full file to the first of the older ones, removes the oldest, and begins a new file.
    fn rotate(&mut self) {
        let older = |number: u32| match number {
            0 => self.name.clone(),
            _ => {
                let mut name = self.name.as_bytes().to_vec();
                name.extend_from_slice(format!(".{number}").as_bytes());
                CString::new(name).unwrap_or_default()
            }
        };
        let mut kept = true;
        for number in (0..self.limit.files).rev() {
            let (from, to) = (older(number), older(number + 1));
            let renamed =
                nix::fcntl::renameat(&self.dir, from.as_c_str(), &self.dir, to.as_c_str());
            kept = matches!(renamed, Ok(()) | Err(nix::Error::ENOENT));
        }
        if !kept || self.limit.files == 0 {
            // The task has blocked the new name, or no old files are kept: truncate this file.
            let emptied = self
                .file
                .as_ref()
                .map(|file| nix::unistd::ftruncate(file, 0));
            if matches!(emptied, Some(Ok(()))) {
                self.written = 0;
                return;
            }
        }
        self.file = None;
        // An entry that the task made in the meantime must not be written to.
        let unlink = UnlinkatFlags::NoRemoveDir;
        let _ = nix::unistd::unlinkat(&self.dir, self.name.as_c_str(), unlink);
        self.written = 0;
        // The next write repeats a failed attempt.
        let _ = self.begin_file();
    }

    /// Begins a new file under a free name. An entry of the task under this name is never written to.
    fn begin_file(&mut self) -> io::Result<()> {
        let name = OsStr::from_bytes(self.name.as_bytes());
        let file = self
            .dir
            .create(name, OUTPUT_MODE, self.owner, OFlag::empty())?;
        self.written = 0;
        self.file = Some(file);
        Ok(())
    }
}

/// The folder of an output file, and the file's name there.
pub(super) fn folder_of<'a>(beneath: &CStr, path: &'a CStr) -> io::Result<(Folder, &'a OsStr)> {
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let root = Folder::open(Path::new(OsStr::from_bytes(beneath.to_bytes())))?;
    let above = path.parent().unwrap_or(Path::new(""));
    Ok((root.folder(above)?, name))
}

/// The number of bytes in a pipe. If the kernel does not report it, the pipe counts as having some, and the next read
/// decides.
fn held_bytes(pipe: BorrowedFd<'_>) -> u64 {
    rustix::io::ioctl_fionread(pipe).unwrap_or(1)
}

/// Whether a pipe has neither writers nor bytes. The order matters: without writers no further byte can come.
fn has_ended(pipe: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut polled = [PollFd::from_borrowed_fd(pipe, PollFlags::IN)];
    let found = poll(&mut polled, Some(&Timespec::default())).is_ok();
    found && polled[0].revents().contains(PollFlags::HUP) && held_bytes(pipe) == 0
}

/// The outcome of moving some bytes.
enum Moved {
    /// The bytes are in the file.
    Kept(usize),
    /// The bytes did not fit into the file.
    Lost(usize),
}

/// Moves up to so many bytes from a pipe into a file at an offset. Drops bytes that the file cannot take: a lack of disk
/// space must not stop the task.
fn move_some(
    pipe: &OwnedFd,
    file: Option<&OwnedFd>,
    offset: u64,
    bytes: usize,
) -> nix::Result<Moved> {
    let Some(file) = file else {
        return throw_away(pipe, bytes);
    };
    let mut at = i64::try_from(offset).unwrap_or(i64::MAX);
    let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
    match splice(pipe, None, file, Some(&mut at), bytes, flags) {
        // The filesystem does not support splice: copy the bytes.
        Err(nix::Error::EINVAL) => copy(pipe, file, offset, bytes),
        Err(error @ (nix::Error::EAGAIN | nix::Error::EINTR)) => Err(error),
        Err(_) => throw_away(pipe, bytes),
        Ok(moved) => Ok(Moved::Kept(moved)),
    }
}

fn copy(pipe: &OwnedFd, file: &OwnedFd, offset: u64, bytes: usize) -> nix::Result<Moved> {
    let mut buffer = vec![0; bytes];
    let read = nix::unistd::read(pipe, &mut buffer)?;
    let mut rest = buffer.get(..read).unwrap_or_default();
    let mut at = i64::try_from(offset).unwrap_or(i64::MAX);
    while !rest.is_empty() {
        match nix::sys::uio::pwrite(file, rest, at) {
            Ok(written) if written > 0 => {
                rest = rest.get(written..).unwrap_or_default();
                at = at.saturating_add(i64::try_from(written).unwrap_or(0));
            }
            Err(nix::Error::EINTR) => {}
            Ok(_) | Err(_) if rest.len() == read => return Ok(Moved::Lost(read)),
            // The remaining bytes are lost.
            Ok(_) | Err(_) => break,
        }
    }
    Ok(Moved::Kept(read - rest.len()))
}

fn throw_away(pipe: &OwnedFd, bytes: usize) -> nix::Result<Moved> {
    let mut buffer = vec![0; bytes.min(4096)];
    nix::unistd::read(pipe, &mut buffer).map(Moved::Lost)
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
