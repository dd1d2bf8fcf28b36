//! The time for a core: the runtime's monotonic clock and the system clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meseta_resources::time::{Moment, Now};
use tokio::time::Instant;

/// The clocks of a daemon. The monotonic one is the runtime's, so that tests may control it.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// Creates a clock whose times count from now.
    #[must_use]
    pub fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// Returns the present time of both clocks.
    #[must_use]
    pub fn now(&self) -> Now {
        let elapsed = self.origin.elapsed();
        Now {
            moment: Moment::ORIGIN + elapsed,
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    /// Converts a moment for timers.
    #[must_use]
    pub fn instant(&self, at: Moment) -> Instant {
        let since = at.saturating_since(Moment::ORIGIN);
        self.origin.checked_add(since).unwrap_or_else(far_future)
    }
}

fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}
