//! Reading what may not be there, without taking trouble of ours for damage.
//!
//! [`RetryBudget`] asks again while we are short of descriptors or memory, for as long as that takes, and a few
//! times where the disk says that it failed. What is no plain file is not opened for reading: it might wait.

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
/// Attempts that a disk which fails is given, in one reading of everything.
const FAILURES_MAX: u32 = 50;

/// Where checkpoints are read from.
pub(super) trait Disk {
    /// All bytes of a plain file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The names of the folders in a folder.
    fn list(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Where a link points.
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
            return Err(io::Error::other("it is no plain file"));
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

/// What is left of the attempts that a failing disk is given.
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
    /// What `read` gives once it gives a word about what is read.
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
                warn!(%error, "checkpoints cannot be read yet; trying again");
            }
            note_repeated();
            disk.pause(AGAIN);
        }
    }
}
