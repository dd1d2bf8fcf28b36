//! Files that are checked repeatedly for changes, which apply while the daemon runs.
//!
//! Invariant: a change is offered until it is accepted, so that a file that is invalid at one look, perhaps half written,
//! is read again at the next.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The inode, the time of the last change, and the length; `None` if there is no file.
type Stamp = Option<(u64, i64, i64, u64)>;

/// Some files, and their accepted versions.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    files: Vec<PathBuf>,
    taken: Vec<Stamp>,
}

impl Watched {
    /// Records the present state of the files; to be called before they are read.
    pub(super) fn new(files: impl IntoIterator<Item = PathBuf>) -> Self {
        let files: Vec<_> = files.into_iter().collect();
        let taken = stamps(&files);
        Self { files, taken }
    }

    /// Offers each change until `shutdown`; `take` returns whether the files were usable.
    pub(super) async fn follow(
        mut self,
        interval: Duration,
        shutdown: CancellationToken,
        mut take: impl FnMut() -> bool,
    ) {
        while !self.files.is_empty() {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(interval) => {}
            }
            let now = stamps(&self.files);
            if now != self.taken && take() {
                self.taken = now;
            }
        }
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    files.iter().map(|path| stamp(path)).collect()
}

fn stamp(path: &Path) -> Stamp {
    use std::os::unix::fs::MetadataExt as _;
    let found = std::fs::metadata(path).ok()?;
    Some((found.ino(), found.mtime(), found.mtime_nsec(), found.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn change_is_offered_until_taken_once() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "a").unwrap();
        let watched = Watched::new([path.clone()]);
        std::fs::write(&path, "longer").unwrap();
        let (sender, mut offered) = tokio::sync::mpsc::channel(8);
        let shutdown = CancellationToken::new();
        let following = watched.follow(Duration::from_secs(1), shutdown.clone(), {
            let mut offers = 0;
            move || {
                offers += 1;
                sender.try_send(offers).unwrap();
                offers != 1
            }
        });
        let following = tokio::spawn(following);
        assert_eq!(offered.recv().await, Some(1), "refused");
        assert_eq!(offered.recv().await, Some(2), "taken");
        let quiet = tokio::time::timeout(Duration::from_secs(60), offered.recv()).await;
        assert!(quiet.is_err(), "nothing has changed since");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(offered.recv().await, Some(3), "its absence is a change");
        shutdown.cancel();
        following.await.unwrap();
    }
}
