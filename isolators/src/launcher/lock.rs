//! Whether launches of an earlier agent are still under way.
//!
//! Every launcher holds a file's lock together with others, and each supervisor until it has recorded
//! who it is. An agent that could have the lock alone finds whatever there is, and nothing comes to it
//! later: a launcher that outlives its agent by a moment could else start what was told to have failed.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// The file, in the runtime folder.
pub(crate) const LOCK_FILE: &str = "launcher.lock";

/// Between two looks at a lock that somebody holds.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).write(true).truncate(false).open(path)
}

/// Takes the lock for as long as the descriptor, or a copy of it, is open.
pub(super) fn share(path: &Path) -> io::Result<OwnedFd> {
    let file = open(path)?;
    file.lock_shared()?;
    Ok(file.into())
}

/// Waits until nobody holds the lock; whether that came in time.
pub(crate) fn wait_until_free(path: &Path, timeout: Duration) -> io::Result<bool> {
    let deadline = Instant::now() + timeout;
    let file = open(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(true),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return Ok(false),
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_until_its_last_copy_is_closed() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join(LOCK_FILE);
        let one = share(&path).expect("shared");
        let other = share(&path).expect("shared");
        let copy = one.try_clone().expect("a copy");
        let free = |timeout| wait_until_free(&path, timeout).expect("looked at");
        assert!(!free(Duration::ZERO));
        drop(one);
        drop(other);
        assert!(!free(Duration::ZERO), "a copy is left");
        let waiting = std::thread::spawn(move || drop(copy));
        assert!(free(Duration::from_secs(30)));
        waiting.join().expect("ended");
        assert!(free(Duration::ZERO));
    }
}
