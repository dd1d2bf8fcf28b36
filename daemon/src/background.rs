//! Work that gives way to everything else in the daemon: large answers, passwords, searches through `/proc`.
//!
//! Entered through [`spawn`]. Each thread does such work at a lower priority (`nice(2)`, here 10) and other work as before,
//! so that on few processors neither launches nor offers wait for readers. A thread that could not raise its priority again
//! (`RLIMIT_NICE` below 20, not root) keeps its priority.

use std::sync::LazyLock;

use tokio::task::JoinHandle;

/// The nice value, of 19: a thread at 10 gets a ninth of the time of a thread at 0 beside it.
const NICE: i32 = 10;

/// Whether a thread that has lowered its priority may raise it again. Tested once, on a separate thread.
static MAY_RAISE: LazyLock<bool> = LazyLock::new(|| {
    let tried = std::thread::Builder::new().spawn(|| {
        let usual = rustix::process::getpriority_process(None)?;
        rustix::process::setpriority_process(None, usual + 1)?;
        rustix::process::setpriority_process(None, usual)
    });
    tried.is_ok_and(|thread| matches!(thread.join(), Ok(Ok(()))))
});

/// Runs blocking work on a thread of lower priority, like [`tokio::task::spawn_blocking`] otherwise.
pub fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    tokio::task::spawn_blocking(|| {
        let _lowered = Lowered::new();
        work()
    })
}

/// A guard that keeps the calling thread's priority lower while it exists.
struct Lowered {
    usual: Option<i32>,
}

impl Lowered {
    fn new() -> Self {
        let usual = rustix::process::getpriority_process(None).ok();
        let usual = usual.filter(|usual| *usual < NICE && *MAY_RAISE);
        let lower = |_: &i32| rustix::process::setpriority_process(None, NICE).is_ok();
        Self {
            usual: usual.filter(lower),
        }
    }
}

impl Drop for Lowered {
    fn drop(&mut self) {
        if let Some(usual) = self.usual {
            let _ = rustix::process::setpriority_process(None, usual);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn thread_priority_is_restored_afterwards() {
        let priority = || rustix::process::getpriority_process(None).unwrap();
        let usual = priority();
        let expected = if *MAY_RAISE { usual.max(NICE) } else { usual };
        assert_eq!(spawn(priority).await.unwrap(), expected);
        assert_eq!(tokio::task::spawn_blocking(priority).await.unwrap(), usual);
        spawn(|| panic!("as planned")).await.unwrap_err();
        assert_eq!(tokio::task::spawn_blocking(priority).await.unwrap(), usual);
    }
}
