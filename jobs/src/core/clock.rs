//! One time line for what is stored and for deadlines.

use std::time::Duration;

use meseta_resources::Now;

/// Time since 1970 as it was at the first step, counted on by the clock that is never set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    origin: Option<Now>,
    /// On the time line; of schedules by [`Self::unix`].
    pub(super) at: Duration,
    /// Of the machine's clock, which may be set.
    pub(super) unix: Duration,
    /// That one was set back, or may have been before the first step.
    pub(super) was_set_back: bool,
}

impl Clock {
    pub(super) fn read(&mut self, now: Now) {
        self.was_set_back |= self.origin.is_none() || now.unix < self.unix;
        let origin = *self.origin.get_or_insert(now);
        let passed = now.moment.saturating_since(origin.moment);
        self.at = origin.unix.saturating_add(passed);
        self.unix = now.unix;
    }
}
