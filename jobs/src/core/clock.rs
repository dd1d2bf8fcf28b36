//! A single time line for stored times and for deadlines.

use std::time::Duration;

use meseta_resources::{Moment, Now};
use serde::{Deserialize, Serialize};

/// The maximum absence that counts against the agents of services: a clock that was set may look like an absence.
const ABSENCE_MAX: Duration = Duration::from_secs(600);

/// The time between two saves of the clock: the next scheduler may not know of the time watched since the last.
const CLOCK_SAVED_EVERY: Duration = Duration::from_secs(10);

/// A longer pause between two steps means that the process stood still: unread input may wait.
const STANDSTILL_MIN: Duration = Duration::from_secs(5);
/// The time after such a pause during which no schedule starts a run: the core reads the waiting input first.
pub(super) const CATCHING_UP: Duration = Duration::from_millis(500);

/// A moment by both clocks, as it is stored from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SavedClock {
    pub(super) at: Duration,
    /// The reading of the machine's clock.
    pub(super) unix: Duration,
}

/// The time during which schedulers have watched their tasks. It starts at the Unix time, advances with the monotonic
/// clock, and continues from the store in the next scheduler, on any machine. A timeout on this time line therefore does
/// not expire because a clock was set, because two machines differ, or because no scheduler ran.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// The time that the previous scheduler had reached.
    resumed: Option<Duration>,
    origin: Option<Now>,
    /// The present time on the time line; schedules use [`Self::unix`].
    at: Duration,
    /// The time of the machine's clock, which may be set.
    unix: Duration,
    /// The machine's clock was set back, or may have been set back before the first step.
    was_set_back: bool,
    /// The monotonic time of the last step.
    moment: Moment,
    /// No schedule starts a run before this time: the core first reads the input that came while the process stood still.
    fires_from: Duration,
}

impl Clock {
    /// Returns the clock of a scheduler that continues where another one ended, if there was one.
    pub(super) fn resumed(from: Option<SavedClock>) -> Self {
        Self {
            resumed: from.map(|saved| saved.at),
            ..Self::default()
        }
    }

    /// Returns the present time on the time line.
    pub(super) fn at(&self) -> Duration {
        self.at
    }

    /// Returns the present time of the machine's clock.
    pub(super) fn unix(&self) -> Duration {
        self.unix
    }

    /// Returns the present monotonic time.
    pub(super) fn moment(&self) -> Moment {
        self.moment
    }

    /// Whether the machine's clock was set back since the last call.
    pub(super) fn take_set_back(&mut self) -> bool {
        std::mem::take(&mut self.was_set_back)
    }

    /// Whether schedules may start runs.
    pub(super) fn may_fire(&self) -> bool {
        self.at >= self.fires_from
    }

    /// Whether a saved time is so old that the present time should be saved.
    pub(super) fn is_save_due(&self, saved: Option<SavedClock>) -> bool {
        let saved = saved.map(|saved| saved.at).unwrap_or_default();
        self.at >= saved.saturating_add(CLOCK_SAVED_EVERY)
    }

    pub(super) fn saved(&self) -> SavedClock {
        SavedClock {
            at: self.at,
            unix: self.unix,
        }
    }

    /// Returns how long no scheduler watched the tasks, as far as the clocks show.
    pub(super) fn absence(&self, saved: Option<SavedClock>) -> Duration {
        let absence = saved.map(|saved| self.unix.saturating_sub(saved.unix));
        absence.unwrap_or_default().min(ABSENCE_MAX)
    }

    /// Returns the time since 1970 of a time on the time line, as far as that is known.
    pub(super) fn unix_of(&self, at: Duration) -> Duration {
        self.unix.saturating_add(at).saturating_sub(self.at)
    }

    /// Returns the time on the time line of a time since 1970.
    pub(super) fn at_of(&self, unix: Duration) -> Duration {
        self.at.saturating_add(unix).saturating_sub(self.unix)
    }

    /// Reads both clocks. Returns the time without a step if the process stood still.
    pub(super) fn read(&mut self, now: Now) -> Option<Duration> {
        let is_first = self.origin.is_none();
        self.was_set_back |= is_first || now.unix < self.unix;
        let origin = *self.origin.get_or_insert(now);
        let passed = now.moment.saturating_since(origin.moment);
        let begun = self.resumed.unwrap_or(origin.unix);
        self.at = begun.saturating_add(passed);
        self.unix = now.unix;
        let before = std::mem::replace(&mut self.moment, now.moment);
        let passed = now.moment.saturating_since(before);
        if is_first || passed <= STANDSTILL_MIN {
            return None;
        }
        // A core that needs this long for each step lets every other step fire.
        if self.fires_from.saturating_add(passed) <= self.at {
            self.fires_from = self.at.saturating_add(CATCHING_UP);
        }
        Some(passed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_scheduler_continues_despite_wrong_clock() {
        let seconds = Duration::from_secs;
        let now = |moment: u64, unix: u64| Now {
            moment: Moment::ORIGIN + seconds(moment),
            unix: seconds(unix),
        };
        let mut first = Clock::default();
        first.read(now(5, 1_000));
        first.read(now(15, 5_000));
        assert_eq!((first.at, first.unix), (seconds(1_010), seconds(5_000)));
        for unix in [900, 1_000_000] {
            let mut next = Clock::resumed(Some(first.saved()));
            next.read(now(70, unix));
            next.read(now(72, unix + 2));
            assert_eq!(next.at, seconds(1_012));
            assert_eq!(next.unix_of(next.at), next.unix);
            assert_eq!(next.unix_of(seconds(1_002)), seconds(unix + 2 - 10));
            assert_eq!(next.at_of(next.unix_of(seconds(1_002))), seconds(1_002));
        }
    }
}
