//! The identity of a container and of a process, which survives restarts of everything but the machine.
//!
//! A pid alone identifies nothing: it is reused. A [`ProcessIdentity`] adds the start time and the boot, and every signal we
//! send goes through a pidfd whose start time was checked after opening it.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::str::SplitAsciiWhitespace;
use std::sync::Arc;
use std::time::{Duration, Instant};

use meseta_resources::NESTING;

use crate::sys;

/// The longest container name: a path component, with room for a suffix.
pub const CONTAINER_NAME_BYTES_MAX: usize = 200;

/// A container id that is safe as one path component of a cgroup tree. A nested container has the name `outer+inner`.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ContainerName(Arc<str>);

/// Errors of parsing a [`ContainerName`].
#[derive(Debug, thiserror::Error, Eq, PartialEq)]
pub enum ContainerNameError {
    #[error("a container name may not be empty")]
    Empty,
    #[error("a container name has at most {CONTAINER_NAME_BYTES_MAX} bytes, not {0}")]
    TooLong(usize),
    /// A leading dot is reserved for our own folders (and for `..`).
    #[error("a container name may not start with '.': {0:?}")]
    LeadingDot(String),
    /// The name has a byte outside `[A-Za-z0-9._:@=+-]`.
    #[error("a container name holds letters, digits and ._:@=+- only: {0:?}")]
    Character(String),
}

impl ContainerName {
    pub fn new(text: &str) -> Result<Self, ContainerNameError> {
        if text.is_empty() {
            return Err(ContainerNameError::Empty);
        }
        if text.len() > CONTAINER_NAME_BYTES_MAX {
            return Err(ContainerNameError::TooLong(text.len()));
        }
        if text.starts_with('.') {
            return Err(ContainerNameError::LeadingDot(text.to_owned()));
        }
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._:@=+-".contains(&byte);
        if !text.bytes().all(allowed) {
            return Err(ContainerNameError::Character(text.to_owned()));
        }
        Ok(Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The outer container of this nested one, and its own name there.
    pub fn nesting(&self) -> Option<(Self, &str)> {
        let (outer, inner) = self.0.rsplit_once(NESTING)?;
        Some((Self(outer.into()), inner))
    }

    /// The outermost container: this one, or the one that contains it.
    pub fn outermost(&self) -> Self {
        let outer = self.0.split(NESTING).next().unwrap_or_default();
        Self(outer.into())
    }
}

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The kernel's identifier of this boot.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct BootId(Arc<str>);

impl BootId {
    /// The id of the running boot.
    pub fn current() -> io::Result<Self> {
        Self::at(Path::new("/proc"))
    }

    /// Reads the boot id below a given procfs.
    pub fn at(proc: &Path) -> io::Result<Self> {
        let text = fs::read_to_string(proc.join("sys/kernel/random/boot_id"))?;
        Ok(Self(text.trim().into()))
    }

    /// Parses the text of a checkpoint.
    pub fn from_text(text: &str) -> Self {
        Self(text.trim().into())
    }

    /// The text of the id, for a checkpoint.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A process of one boot.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ProcessIdentity {
    /// The pid of the process as the agent sees it.
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks between boot and its start.
    pub start_ticks: u64,
    pub boot_id: BootId,
}

impl ProcessIdentity {
    /// Formats a line for a checkpoint: `pid start boot`.
    pub fn to_text(&self) -> String {
        format!(
            "{} {} {}",
            self.pid,
            self.start_ticks,
            self.boot_id.as_str()
        )
    }

    /// Parses the output of [`ProcessIdentity::to_text`].
    pub fn from_text(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let pid = words.next()?.parse().ok().filter(|pid| *pid > 0)?;
        let start_ticks = words.next()?.parse().ok()?;
        let boot_id = BootId::from_text(words.next()?);
        words.next().is_none().then_some(Self {
            pid,
            start_ticks,
            boot_id,
        })
    }
}

impl ProcessIdentity {
    /// The identity of the running process with this pid; `None` if there is no such process.
    pub(crate) fn of_running(pid: i32) -> io::Result<Option<Self>> {
        let boot_id = BootId::current()?;
        let start_ticks = match fs::read(format!("/proc/{pid}/stat")) {
            Ok(stat) => start_ticks_of_stat(&stat),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => None,
            Err(error) => return Err(error),
        };
        Ok(start_ticks.map(|start_ticks| Self {
            pid,
            start_ticks,
            boot_id,
        }))
    }

    /// A pidfd on exactly this process; `None` if it is gone.
    ///
    /// The pidfd is opened first and the start time read afterwards: if the pid was reused before,
    /// the start time differs; if it is reused later, the pidfd still means the old process.
    pub fn open(&self) -> io::Result<Option<OwnedFd>> {
        if BootId::current()? != self.boot_id {
            return Ok(None);
        }
        let pidfd = match sys::pidfd_open(self.pid) {
            Ok(pidfd) => pidfd,
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            Err(error) => return Err(error),
        };
        let same = match fs::read(format!("/proc/{}/stat", self.pid)) {
            Ok(stat) => start_ticks_of_stat(&stat) == Some(self.start_ticks),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => false,
            Err(error) => return Err(error),
        };
        Ok((same && !has_ended(&pidfd)?).then_some(pidfd))
    }

    /// Whether the process lives; false also if that cannot be read.
    pub(crate) fn is_known_to_live(&self) -> bool {
        matches!(self.open(), Ok(Some(_)))
    }

    /// Waits for the end of the process; returns whether it came in time.
    pub(crate) fn wait_end(&self, at_most: Duration) -> bool {
        match self.open() {
            Ok(Some(pidfd)) => wait_pidfd(&pidfd, at_most).unwrap_or(false),
            Ok(None) => true,
            Err(_) => false,
        }
    }
}

fn has_ended(pidfd: &OwnedFd) -> io::Result<bool> {
    wait_pidfd(pidfd, Duration::ZERO)
}

/// Waits until the process behind a pidfd has ended; returns whether it has.
pub(crate) fn wait_pidfd(pidfd: &OwnedFd, at_most: Duration) -> io::Result<bool> {
    sys::is_readable_by(pidfd, Instant::now() + at_most)
}

/// The fields of a `/proc/<pid>/stat` line from the state on. The command name before it may hold anything, also `)`.
pub(crate) fn fields_of_stat(stat: &[u8]) -> Option<SplitAsciiWhitespace<'_>> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = str::from_utf8(stat.get(after_name..)?).ok()?;
    Some(text.split_ascii_whitespace())
}

/// The start time in a `/proc/<pid>/stat` line.
pub(crate) fn start_ticks_of_stat(stat: &[u8]) -> Option<u64> {
    fields_of_stat(stat)?.nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_leaving_the_tree_are_refused() {
        assert!(ContainerName::new("a-1_B:c@d=e+f.g").is_ok());
        for bad in ["", ".", "..", ".x", "a/b", "a\nb", "a b", "é", "a\0"] {
            assert!(ContainerName::new(bad).is_err(), "{bad:?}");
        }
        assert!(ContainerName::new(&"x".repeat(CONTAINER_NAME_BYTES_MAX)).is_ok());
        assert_eq!(
            ContainerName::new(&"x".repeat(CONTAINER_NAME_BYTES_MAX + 1)),
            Err(ContainerNameError::TooLong(CONTAINER_NAME_BYTES_MAX + 1))
        );
    }

    #[test]
    fn start_time_survives_hostile_command_name() {
        let stat = b"7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4242 100 1\n";
        assert_eq!(start_ticks_of_stat(stat), Some(4242));
        assert_eq!(start_ticks_of_stat(b"garbage"), None);
        assert_eq!(start_ticks_of_stat(b"7 (x) S 1"), None);
    }

    #[test]
    fn identity_goes_through_text() {
        let identity = ProcessIdentity {
            pid: 12,
            start_ticks: 99,
            boot_id: BootId::from_text("b-1\n"),
        };
        assert_eq!(
            ProcessIdentity::from_text(&identity.to_text()),
            Some(identity)
        );
        for bad in ["", "1", "1 2", "x 2 b", "-1 2 b", "1 2 b more"] {
            assert_eq!(ProcessIdentity::from_text(bad), None, "{bad:?}");
        }
    }
}
