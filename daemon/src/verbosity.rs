//! The log level of a daemon, which operators raise for a while over HTTP.
//!
//! The owner of the logging defines the meaning of a level; here it is a number, with a time after which it falls back.
//! Invariant: the last request applies; the expiry of an earlier one does not end it.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The lines that the log of this process omitted because too many of one cause came at once.
static LINES_LEFT_OUT: AtomicU64 = AtomicU64::new(0);

/// Counts a line that is left out of the log.
pub fn count_log_line_left_out() {
    LINES_LEFT_OUT.fetch_add(1, Ordering::Relaxed);
}

/// Returns the number of lines that are left out of this process's log.
#[must_use]
pub fn log_lines_left_out() -> u64 {
    LINES_LEFT_OUT.load(Ordering::Relaxed)
}

/// The function that changes the log level.
pub type Apply = Arc<dyn Fn(u32) + Send + Sync>;

/// The level of a daemon's log. Cheap to clone.
#[derive(Clone, Default)]
pub struct Verbosity {
    apply: Option<Apply>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    level: u32,
    /// The number of requests so far.
    generation: u64,
}

impl fmt::Debug for Verbosity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verbosity")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Verbosity {
    /// Returns the state at level 0, the configured one.
    #[must_use]
    pub fn new(apply: Apply) -> Self {
        Self {
            apply: Some(apply),
            state: Arc::default(),
        }
    }

    /// Returns the current level.
    #[must_use]
    pub fn level(&self) -> u32 {
        self.lock().level
    }

    /// Sets a level for a while, after which 0 applies again. Needs a tokio runtime.
    pub fn raise(&self, level: u32, duration: Duration) {
        let generation = {
            let mut state = self.lock();
            state.generation += 1;
            self.set(&mut state, level);
            state.generation
        };
        tracing::info!(level, ?duration, "logging level set");
        let verbosity = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(duration).await;
            let mut state = verbosity.lock();
            if state.generation == generation {
                verbosity.set(&mut state, 0);
                tracing::info!("logging level restored");
            }
        });
    }

    fn set(&self, state: &mut State, level: u32) {
        state.level = level;
        if let Some(apply) = &self.apply {
            apply(level);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn last_request_holds_until_it_expires() {
        let applied = Arc::new(Mutex::new(Vec::new()));
        let seen = applied.clone();
        let verbosity = Verbosity::new(Arc::new(move |level| seen.lock().unwrap().push(level)));
        verbosity.raise(2, Duration::from_secs(10));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(verbosity.level(), 2);
        verbosity.raise(1, Duration::from_secs(20));
        tokio::time::sleep(Duration::from_secs(15)).await;
        assert_eq!(
            verbosity.level(),
            1,
            "the end of the first request is not that of the second"
        );
        tokio::time::sleep(Duration::from_secs(6)).await;
        assert_eq!(verbosity.level(), 0);
        assert_eq!(*applied.lock().unwrap(), [2, 1, 0]);
    }
}
