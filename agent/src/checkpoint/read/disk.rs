//! Reads entries that may be missing, and does not mistake the agent's own shortages for damage.
//!
//! [`RetryBudget`] retries without a limit while the agent lacks descriptors or memory, and a few times after errors of
//! the disk. Only plain files are opened for reading: others might block.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_isolators::{is_device_failure, is_shortage, note_repeated};
use rustix::fs::OFlags;
use tracing::warn;

/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(200);
/// Attempts granted to a failing disk during one reading of all checkpoints.
const FAILURES_MAX: u32 = 50;

/// The source of the checkpoints.
pub(super) trait Disk {
    /// Reads all bytes of a plain file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Lists the names of the folders in a folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Returns the target of a link.
    fn read_link(&self, path: &Path) -> io::Result<PathBuf>;
    fn pause(&self, pause: Duration);
}

#[derive(Debug)]
pub(super) struct LocalDisk;

impl Disk for LocalDisk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = i32::try_from(flags.bits()).unwrap_or(0);
        let opened = fs::OpenOptions::new()
            .read(true)
            .custom_flags(flags)
            .open(path);
        let mut file = opened?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        fs::read_link(path)
    }

    fn pause(&self, pause: Duration) {
        std::thread::sleep(pause);
    }
}

/// The remaining attempts for a failing disk.
#[derive(Debug)]
pub(super) struct RetryBudget {
    failures_left: u32,
    has_logged: bool,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self {
            failures_left: FAILURES_MAX,
            has_logged: false,
        }
    }
}

impl RetryBudget {
    /// Returns the result of `read`, and retries while the error may be temporary.
    pub(super) fn read<T>(
        &mut self,
        disk: &dyn Disk,
        mut read: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            let error = match read() {
                Err(error) if is_shortage(&error) => error,
                Err(error) if is_device_failure(&error) && self.failures_left > 0 => {
                    self.failures_left -= 1;
                    error
                }
                read => return read,
            };
            if !std::mem::replace(&mut self.has_logged, true) {
                warn!(%error, "failed to read checkpoints; retrying");
            }
            note_repeated();
            disk.pause(AGAIN);
        }
    }
}
