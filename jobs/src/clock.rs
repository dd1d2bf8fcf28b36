//! The clocks of this process, read once per step of the core.

use std::time::{Duration, Instant, SystemTime};

use meseta_resources::{Moment, Now};

/// Moments count from its making.
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

    pub(crate) fn now(self) -> Now {
        Now {
            moment: Moment::ORIGIN + self.origin.elapsed(),
            unix: SystemTime::now()
                .duration_since(SystemTime::UNIX_EPOCH)
                .unwrap_or(Duration::ZERO),
        }
    }
}
