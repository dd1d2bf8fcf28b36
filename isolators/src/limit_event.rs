//! Kernel events that signal a possible limit of a container.
//!
//! [`crate::Containers::watch_limits`] returns them; the caller waits with the means of its runtime. Invariant: no event
//! needs an inotify instance, of which all programs of a user share 128.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// A descriptor that reports when a container may have run into a limit.
#[derive(Debug)]
pub enum LimitEvent {
    /// An eventfd, which is readable until [`LimitEvent::take`] reads its count.
    Count(OwnedFd),
    /// A file of version 2, which is ready with priority (`POLLPRI`) until [`LimitEvent::take`] reads it from its beginning.
    File(std::fs::File),
}

impl LimitEvent {
    /// Returns whether the descriptor reports an event as priority instead of as readable.
    pub fn is_priority(&self) -> bool {
        matches!(self, Self::File(_))
    }

    /// Takes the event, so that the descriptor can report the next one. Fails with `WouldBlock` if a count has no event.
    pub fn take(&self) -> io::Result<()> {
        match self {
            Self::Count(descriptor) => {
                nix::unistd::read(descriptor, &mut [0; 8])?;
            }
            Self::File(file) => {
                // The kernel records the read; the content does not matter here.
                file.read_at(&mut [0; 512], 0)?;
            }
        }
        Ok(())
    }
}

impl AsFd for LimitEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Count(descriptor) => descriptor.as_fd(),
            Self::File(file) => file.as_fd(),
        }
    }
}

impl std::os::fd::AsRawFd for LimitEvent {
    fn as_raw_fd(&self) -> std::os::fd::RawFd {
        self.as_fd().as_raw_fd()
    }
}
