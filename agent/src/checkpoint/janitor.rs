//! Removes retired checkpoints on its own thread: deletion is the slowest disk operation, and nothing waits for it.
//!
//! Retired trees were moved into one folder, each under a fresh name. Their removal needs no durability: if a tree came
//! back after a power cut, its log would show that all updates are acknowledged, and the agent would retire it again.
//! When the janitor is dropped, it finishes its work and ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use meseta_isolators::beneath::Folder;

/// The number of pending wake-ups: a single one suffices for any number of trees.
const WAKE_UPS_MAX: usize = 1;
/// The pause before another attempt at a failed removal.
const AGAIN: Duration = Duration::from_secs(30);

/// The thread, and the names it has given.
#[derive(Debug)]
pub(super) struct Janitor {
    folder: PathBuf,
    wake_ups: Option<mpsc::SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Distinguishes the names of this start from those of earlier starts.
    start: u128,
    named: AtomicU64,
}

impl Janitor {
    /// Starts the thread, which begins with the trees left by an earlier start.
    pub(super) fn start(folder: PathBuf) -> Self {
        let (wake_ups, woken) = mpsc::sync_channel(WAKE_UPS_MAX);
        let swept = folder.clone();
        let thread = std::thread::Builder::new()
            .name("janitor".to_owned())
            .spawn(move || {
                let mut is_clean = sweep(&swept);
                while is_to_sweep(&woken, is_clean, AGAIN) {
                    is_clean = sweep(&swept);
                }
            });
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Self {
            folder,
            wake_ups: Some(wake_ups),
            thread: thread.ok(),
            start: since.unwrap_or_default().as_nanos(),
            named: AtomicU64::new(0),
        }
    }

    /// The target path for the next retired tree.
    pub(super) fn next_path(&self) -> PathBuf {
        let number = self.named.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{}-{number}", self.start))
    }

    /// Wakes the thread to remove a tree.
    pub(super) fn wake(&self) {
        if let Some(wake_ups) = &self.wake_ups {
            // A full queue means that the thread will sweep anyway.
            let _ = wake_ups.try_send(());
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.wake_ups = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Waits until there is work, for at most `again` while a failed removal remains. Returns false at the end.
fn is_to_sweep(woken: &mpsc::Receiver<()>, is_clean: bool, again: Duration) -> bool {
    if is_clean {
        return woken.recv().is_ok();
    }
    woken.recv_timeout(again) != Err(mpsc::RecvTimeoutError::Disconnected)
}

/// Removes all retired trees. Returns whether nothing is left.
fn sweep(folder: &Path) -> bool {
    let entries = match fs::read_dir(folder) {
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
        Ok(entries) => entries,
    };
    let mut is_clean = true;
    for entry in entries {
        let Ok(entry) = entry else {
            is_clean = false;
            continue;
        };
        let path = entry.path();
        // The trees include volumes, whose tasks may have nested folders deeper than the stack allows.
        let removed =
            Folder::open(folder).and_then(|all| all.remove(Path::new(&entry.file_name())));
        if let Err(error) = removed {
            tracing::warn!(path = %path.display(), %error, "failed to remove a retired checkpoint");
            is_clean = false;
        }
    }
    is_clean
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_removal_is_retried() {
        let dir = tempfile::tempdir().expect("a directory");
        let folder = dir.path().join("retired");
        assert!(sweep(&folder), "nothing was ever retired");
        fs::write(&folder, "in the place of the folder").expect("a file");
        assert!(!sweep(&folder));

        let (wake_ups, woken) = mpsc::sync_channel(WAKE_UPS_MAX);
        assert!(is_to_sweep(&woken, false, Duration::ZERO));
        wake_ups.try_send(()).expect("room");
        assert!(is_to_sweep(&woken, true, Duration::ZERO));
        drop(wake_ups);
        for is_clean in [true, false] {
            assert!(!is_to_sweep(&woken, is_clean, AGAIN));
        }
    }
}
