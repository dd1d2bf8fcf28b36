//! A single time line for stored times and for deadlines.

use std::time::Duration;

use meseta_resources::Now;
use serde::{Deserialize, Serialize};

use super::records::Key;
use super::state::State;

/// The maximum absence that counts against the agents of services: a clock that was set may look like an absence.
const ABSENCE_MAX: Duration = Duration::from_secs(600);

/// The time between two saves of the clock: the next scheduler may not know of the time watched since the last.
const CLOCK_SAVED_EVERY: Duration = Duration::from_secs(10);

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
    pub(super) at: Duration,
    /// The time of the machine's clock, which may be set.
    pub(super) unix: Duration,
    /// The machine's clock was set back, or may have been set back before the first step.
    pub(super) was_set_back: bool,
}

impl Clock {
    /// Returns the clock of a scheduler that continues where another one ended, if there was one.
    pub(super) fn resumed(from: Option<SavedClock>) -> Self {
        Self {
            resumed: from.map(|saved| saved.at),
            ..Self::default()
        }
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

    pub(super) fn read(&mut self, now: Now) {
        self.was_set_back |= self.origin.is_none() || now.unix < self.unix;
        let origin = *self.origin.get_or_insert(now);
        let passed = now.moment.saturating_since(origin.moment);
        let begun = self.resumed.unwrap_or(origin.unix);
        self.at = begun.saturating_add(passed);
        self.unix = now.unix;
    }
}

impl State {
    /// Writes the scheduler's own record to the store, with the present time of the clock.
    pub(super) fn save_meta(&mut self) {
        self.meta.clock = Some(self.clock.saved());
        self.outbox.write(Key::Meta.put(&self.meta));
    }

    /// Makes durable from time to time how long tasks have been watched.
    pub(super) fn save_clock(&mut self) {
        let saved = self.meta.clock.map(|saved| saved.at);
        let saved = saved.unwrap_or_default();
        let is_due = self.clock.at >= saved.saturating_add(CLOCK_SAVED_EVERY);
        if is_due && self.jobs.values().any(|job| !job.tasks.is_empty()) {
            self.save_meta();
        }
    }
}

#[cfg(test)]
mod tests {
    use meseta_resources::Moment;

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
