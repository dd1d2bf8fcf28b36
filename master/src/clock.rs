//! The time that the core is given: the runtime's monotonic clock and the wall's.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use meseta_resources::time::{Moment, Now};
use tokio::time::Instant;

/// Both clocks. The monotonic one is the runtime's, so that tests may turn it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        let elapsed = self.origin.elapsed();
        Now {
            moment: Moment::ORIGIN + elapsed,
            unix: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    pub(crate) fn instant(&self, at: Moment) -> Instant {
        let since = at.saturating_since(Moment::ORIGIN);
        self.origin.checked_add(since).unwrap_or_else(far_future)
    }
}

fn far_future() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}
