//! The clocks of one process: they drift from true time, and people set the wall clock.
//!
//! True time is a number of nanoseconds that only the simulation knows. Invariant: the moments of a process never go back,
//! whatever happens to the wall clock.

use std::time::Duration;

use meseta_resources::time::{Moment, Now};

/// The first moment of a process.
const FIRST_NANOS: u64 = 1_000;
/// The wall clock at the beginning of true time.
const WALL_AT_START: Duration = Duration::from_secs(1_800_000_000);
const MILLION: i128 = 1_000_000;

/// The clocks of a process on one machine.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Clock {
    /// The true time at the start of the process.
    started: u64,
    /// The excess speed of the machine's clocks, in millionths.
    drift: i32,
    /// The manual correction of the wall clock, in seconds.
    set: i64,
}

impl Clock {
    /// Returns the clock of a process that starts now, on a machine with this drift.
    pub(crate) fn new(started: u64, drift: i32) -> Self {
        let set = 0;
        Self {
            started,
            drift,
            set,
        }
    }

    /// Returns the clock of the next process on the same machine.
    pub(crate) fn restarted(self, started: u64) -> Self {
        Self { started, ..self }
    }

    /// Sets the wall clock, as an operator does.
    pub(crate) fn set_wall(&mut self, seconds: i64) {
        self.set += seconds;
    }

    fn shown(self, elapsed: u64) -> u64 {
        let shown = i128::from(elapsed) * (MILLION + i128::from(self.drift)) / MILLION;
        u64::try_from(shown).unwrap_or_default()
    }

    /// Returns the time that the process reads at a true time.
    pub(crate) fn now(self, time: u64) -> Now {
        let since_start = self.shown(time.saturating_sub(self.started));
        let wall = WALL_AT_START + Duration::from_nanos(self.shown(time));
        let set = Duration::from_secs(self.set.unsigned_abs());
        Now {
            moment: Moment::from_nanos(FIRST_NANOS + since_start),
            unix: match self.set < 0 {
                true => wall.saturating_sub(set),
                false => wall + set,
            },
        }
    }

    /// Returns the machine's uptime at the start of the process, if it was booted at that true time.
    pub(crate) fn uptime_at_origin(self, booted: u64) -> Duration {
        Duration::from_nanos(self.shown(self.started.saturating_sub(booted)))
    }

    /// Returns the true time at which the process's clock shows this time.
    pub(crate) fn true_time(self, moment: Moment) -> u64 {
        if moment == Moment::NEVER {
            return u64::MAX;
        }
        let shown = moment.as_nanos().saturating_sub(FIRST_NANOS);
        let elapsed = i128::from(shown) * MILLION / (MILLION + i128::from(self.drift));
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        // The result is rounded up, so that the moment has arrived then.
        self.started.saturating_add(elapsed).saturating_add(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_arrives_at_its_true_time() {
        for drift in [-5_000, -1, 0, 3, 5_000] {
            let clock = Clock::new(77, drift);
            for shown in [1_000, 1_001, 5_000_000_123, 86_400_000_000_007] {
                let moment = Moment::from_nanos(shown);
                let time = clock.true_time(moment);
                assert!(clock.now(time).moment >= moment);
                assert!(clock.now(time - 4).moment <= moment, "{drift} {shown}");
            }
        }
    }
}
