//! Points in time for the pure cores: read by a shell, passed in.

use std::ops::{Add, AddAssign};
use std::time::Duration;

/// Monotonic nanoseconds since an origin of the caller's choice.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(u64);

impl Moment {
    pub const ORIGIN: Self = Self(0);
    /// A moment later than any event: the deadline of an event without a deadline.
    pub const NEVER: Self = Self(u64::MAX);

    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;
    /// Adds, and saturates at [`Moment::NEVER`].
    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

impl AddAssign<Duration> for Moment {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Both clocks, read once by the shell per step.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// The time for intervals and deadlines.
    pub moment: Moment,
    /// The time since 1970, for people and for messages.
    pub unix: Duration,
}
