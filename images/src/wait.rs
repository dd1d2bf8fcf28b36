//! Time and cancellation of a pull.
//!
//! [`Clock`] is the only source of time in this crate, so tests run on a virtual clock. Invariant: every wait ends at once
//! when its [`Cancel`] is set.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// A request to end, shared by all threads of a pull.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Arc<CancelState>);

#[derive(Debug, Default)]
struct CancelState {
    is_set: Mutex<bool>,
    changed: Condvar,
}

/// The error of work whose last client has gone.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("cancelled")]
pub struct Cancelled;

impl Cancel {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn set(&self) {
        *self.0.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.changed.notify_all();
    }

    pub fn check(&self) -> Result<(), Cancelled> {
        match *self.0.is_set.lock().unwrap_or_else(PoisonError::into_inner) {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }

    /// Waits for a duration, or until the cancellation.
    fn wait(&self, duration: Duration) -> Result<(), Cancelled> {
        let is_set = self.0.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self
            .0
            .changed
            .wait_timeout_while(is_set, duration, |is_set| !*is_set);
        let (is_set, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match *is_set {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }
}

/// The time, real or of a test.
pub trait Clock: std::fmt::Debug + Send + Sync {
    fn now(&self) -> Instant;
    fn system_time(&self) -> SystemTime;
    /// Waits for a duration. Ends early, with an error, when the work is cancelled.
    fn wait(&self, duration: Duration, cancel: &Cancel) -> Result<(), Cancelled>;
}

/// The time of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn system_time(&self) -> SystemTime {
        SystemTime::now()
    }

    fn wait(&self, duration: Duration, cancel: &Cancel) -> Result<(), Cancelled> {
        cancel.wait(duration)
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// A clock that jumps over every wait, and records it.
    #[derive(Debug)]
    pub(crate) struct VirtualClock {
        start: Instant,
        waits: Mutex<Vec<Duration>>,
        passed: Mutex<Duration>,
    }

    impl VirtualClock {
        pub(crate) fn new() -> Arc<Self> {
            Arc::new(Self {
                start: Instant::now(),
                waits: Mutex::default(),
                passed: Mutex::default(),
            })
        }

        pub(crate) fn advance(&self, duration: Duration) {
            *self.passed.lock().expect("no panic") += duration;
        }

        pub(crate) fn waits(&self) -> Vec<Duration> {
            self.waits.lock().expect("no panic").clone()
        }
    }

    impl Clock for VirtualClock {
        fn now(&self) -> Instant {
            self.start + *self.passed.lock().expect("no panic")
        }

        fn system_time(&self) -> SystemTime {
            let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
            epoch + *self.passed.lock().expect("no panic")
        }

        fn wait(&self, duration: Duration, cancel: &Cancel) -> Result<(), Cancelled> {
            cancel.check()?;
            self.waits.lock().expect("no panic").push(duration);
            self.advance(duration);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancellation_ends_a_wait() {
        let cancel = Cancel::new();
        assert_eq!(SystemClock.wait(Duration::ZERO, &cancel), Ok(()));
        let waiting = {
            let cancel = cancel.clone();
            std::thread::spawn(move || SystemClock.wait(Duration::from_secs(3600), &cancel))
        };
        cancel.set();
        assert_eq!(waiting.join().expect("no panic"), Err(Cancelled));
        assert_eq!(cancel.check(), Err(Cancelled));
    }
}
