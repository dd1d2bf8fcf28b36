//! Abandons a fetcher's thread that sleeps in a file system that does not answer.
//!
//! Nothing ends such a sleep, neither a timeout nor a closed descriptor. Instead the waiting side gives up: soon after
//! the fetch was cancelled, or when a local file yields nothing for the stall timeout. Invariant: at most
//! [`ABANDONED_MAX`] threads are abandoned; at that number no fetch begins until a file system answers again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::Cancel;

/// Threads that may be abandoned: each takes some kilobytes, and all threads of the agent share a limit.
const ABANDONED_MAX: usize = 64;

/// The interval between looks at the thread's progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// The time that a cancelled fetch gets to end by itself.
const CANCEL_WAIT: Duration = Duration::from_secs(1);

static ABANDONED: AtomicUsize = AtomicUsize::new(0);

/// The reasons to give a fetch up.
pub(super) struct Watch {
    pub(super) cancel: Arc<Cancel>,
    /// The longest time that a source may send nothing.
    pub(super) stall: Duration,
}

/// Work on a thread that may be abandoned.
pub(super) struct Abandonable<T> {
    done: Receiver<T>,
    /// Shared by the thread and the waiting side: the second to finish knows whether the thread was abandoned.
    link: Arc<Link>,
}

#[derive(Default)]
struct Link {
    /// Zero while both sides are active; then [`LEFT`] once the thread is abandoned, or [`ENDED`] once it has ended.
    state: AtomicUsize,
}

const LEFT: usize = 1;
const ENDED: usize = 2;

impl<T: Send + 'static> Abandonable<T> {
    pub(super) fn start(name: &str, work: impl FnOnce() -> T + Send + 'static) -> io::Result<Self> {
        if ABANDONED.load(Ordering::SeqCst) >= ABANDONED_MAX {
            let text = "too many fetches wait for file systems that do not answer; try again later";
            return Err(io::Error::other(text));
        }
        let (tell, done) = mpsc::sync_channel(1);
        let link = Arc::new(Link::default());
        let of_thread = Ended(link.clone());
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let _ended = of_thread;
                // Nobody listens to an abandoned thread.
                let _ = tell.send(work());
            })?;
        Ok(Self { done, link })
    }

    /// Waits for the end, or until the watch gives a reason to give up.
    pub(super) fn wait(self, watch: &Watch) -> Result<T, String> {
        let mut progress = watch.cancel.local_progress();
        let mut since = Instant::now();
        let mut cancelled_at = None;
        loop {
            match self.done.recv_timeout(LOOK_INTERVAL) {
                Ok(outcome) => return Ok(outcome),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("the fetcher's thread panicked".to_owned());
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let now = Instant::now();
            if watch.cancel.is_cancelled() {
                let at = *cancelled_at.get_or_insert(now);
                if now.saturating_duration_since(at) >= CANCEL_WAIT {
                    return Err(self.leave("the container is no longer needed"));
                }
            }
            let before = std::mem::replace(&mut progress, watch.cancel.local_progress());
            if progress.is_none() || before != progress {
                since = now;
            } else if now.saturating_duration_since(since) >= watch.stall {
                let why = format!(
                    "its file system sent nothing for {:?} (--fetcher_stall_timeout)",
                    watch.stall
                );
                return Err(self.leave(&why));
            }
        }
    }

    fn leave(&self, why: &str) -> String {
        let swapped = self
            .link
            .state
            .compare_exchange(0, LEFT, Ordering::SeqCst, Ordering::SeqCst);
        if swapped.is_ok() {
            ABANDONED.fetch_add(1, Ordering::SeqCst);
        }
        why.to_owned()
    }
}

/// Dropped as the thread ends.
struct Ended(Arc<Link>);

impl Drop for Ended {
    fn drop(&mut self) {
        if self.0.state.swap(ENDED, Ordering::SeqCst) == LEFT {
            ABANDONED.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(stall: Duration) -> (Watch, Arc<Cancel>) {
        let cancel = Arc::new(Cancel::default());
        let watch = Watch {
            cancel: cancel.clone(),
            stall,
        };
        (watch, cancel)
    }

    /// Work that ends when its sender is dropped, like a call whose file system answers.
    fn stuck() -> (mpsc::Sender<()>, Abandonable<()>) {
        let (answer, wait) = mpsc::channel::<()>();
        let work = Abandonable::start("test", move || {
            let _ = wait.recv();
        });
        (answer, work.expect("a thread"))
    }

    #[test]
    fn stuck_fetch_ends_when_cancelled() {
        let (watch, cancel) = watch(Duration::MAX);
        let (_answer, work) = stuck();
        cancel.cancel();
        let why = work.wait(&watch).expect_err("it is given up");
        assert_eq!(why, "the container is no longer needed");
    }

    #[test]
    fn stalled_file_ends_the_fetch() {
        let (watch, cancel) = watch(Duration::from_millis(300));
        cancel.set_local(true);
        let (_answer, work) = stuck();
        let why = work.wait(&watch).expect_err("it is given up");
        assert!(why.contains("--fetcher_stall_timeout"), "{why}");
    }

    #[test]
    fn slow_server_start_is_not_stalled() {
        let (watch, _cancel) = watch(Duration::ZERO);
        let work = Abandonable::start("test", || std::thread::sleep(3 * LOOK_INTERVAL));
        let waited = work.expect("a thread").wait(&watch);
        assert_eq!(waited, Ok(()));
    }
}
