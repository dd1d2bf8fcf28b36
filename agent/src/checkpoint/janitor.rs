//! Removes retired checkpoints, on a thread of its own: deleting is the slowest thing a disk does, and
//! nobody waits for it.
//!
//! What is retired was moved into one folder, each under a fresh name. Its removal needs no
//! durability: were it to come back after a power cut, its log says that all is acknowledged, and it
//! is retired again. Ends, with its work done, when it is dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::SystemTime;

use meseta_isolators::beneath::Folder;

/// One pending wake-up suffices for any number of trees.
const WAKE_UPS_MAX: usize = 1;

/// The thread, and the names it has given.
#[derive(Debug)]
pub(super) struct Janitor {
    folder: PathBuf,
    wake_ups: Option<mpsc::SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
    /// Tells this start's names from those of earlier ones.
    start: u128,
    named: AtomicU64,
}

impl Janitor {
    /// Begins with what an earlier start left.
    pub(super) fn start(folder: PathBuf) -> Self {
        let (wake_ups, woken) = mpsc::sync_channel(WAKE_UPS_MAX);
        let swept = folder.clone();
        let thread = std::thread::Builder::new()
            .name("janitor".to_owned())
            .spawn(move || {
                sweep(&swept);
                while woken.recv().is_ok() {
                    sweep(&swept);
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

    /// Where the next tree may be moved to.
    pub(super) fn next_path(&self) -> PathBuf {
        let number = self.named.fetch_add(1, Ordering::Relaxed);
        self.folder.join(format!("{}-{number}", self.start))
    }

    /// There is something to remove.
    pub(super) fn wake(&self) {
        if let Some(wake_ups) = &self.wake_ups {
            // A full queue means that it will look anyway.
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

fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path();
        // Volumes are among it, whose tasks may have nested folders deeper than a stack is.
        let removed =
            Folder::open(folder).and_then(|all| all.remove(Path::new(&entry.file_name())));
        if let Err(error) = removed {
            tracing::warn!(path = %path.display(), %error, "a retired checkpoint is left over");
        }
    }
}
