//! The core's clocks, and the detection of pauses of the process.
//!
//! A heartbeat runs with the process. A gap in the heartbeat is a pause: a SIGSTOP, a frozen machine, or a lack of CPU
//! time. The core learns of the pause before it learns that time has passed, see [`crate::core::Input::Paused`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use meseta_isolators::BootId;
use meseta_resources::{Moment, Now};
use rustix::time::{ClockId, clock_gettime};

use crate::core::BootClock;

/// The time between two beats.
const BEAT: Duration = Duration::from_millis(500);
/// The shortest gap that counts as a pause.
const PAUSE_MIN: Duration = Duration::from_secs(3);

/// The monotonic clock and the wall clock. Moments count from the agent's start.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The machine's uptime at the origin, see [`uptime`].
    uptime_at_origin: Duration,
    heartbeat: Arc<Mutex<Heartbeat>>,
}

/// The last time when the process was running, and the pauses before it.
#[derive(Debug)]
struct Heartbeat {
    last: Instant,
    paused: Duration,
}

impl Heartbeat {
    fn beat(&mut self, now: Instant) {
        let gap = now.saturating_duration_since(self.last);
        if gap >= PAUSE_MIN {
            self.paused = self.paused.saturating_add(gap);
        }
        self.last = self.last.max(now);
    }

    /// Returns the pauses not reported yet.
    fn take(&mut self) -> Option<Duration> {
        let paused = std::mem::take(&mut self.paused);
        (!paused.is_zero()).then_some(paused)
    }
}

impl Clock {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        Self {
            origin: now,
            uptime_at_origin: uptime(),
            heartbeat: Arc::new(Mutex::new(Heartbeat {
                last: now,
                paused: Duration::ZERO,
            })),
        }
    }

    /// The clock for recorded times: it counts from this boot.
    pub(crate) fn boot_clock(&self, boot: &BootId) -> BootClock {
        BootClock::new(boot.clone(), self.uptime_at_origin)
    }

    /// Runs the heartbeat for ever.
    pub(crate) async fn run_heartbeat(self) {
        let mut beats = tokio::time::interval(BEAT);
        beats.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beats.tick().await;
            self.with_heartbeat(|heartbeat| heartbeat.beat(Instant::now()));
        }
    }

    /// The time, and the length of the pause since the last call, if there was one.
    pub(crate) fn now(&self) -> (Now, Option<Duration>) {
        let instant = Instant::now();
        let paused = self.with_heartbeat(|heartbeat| {
            heartbeat.beat(instant);
            heartbeat.take()
        });
        let now = Now {
            moment: Moment::ORIGIN + instant.saturating_duration_since(self.origin),
            unix: unix_now(),
        };
        (now, paused)
    }

    /// Notes that the core stood still for this time, although the process was running.
    pub(crate) fn stood_still(&self, lasted: Duration) {
        if lasted >= PAUSE_MIN {
            self.with_heartbeat(|heartbeat| {
                heartbeat.paused = heartbeat.paused.saturating_add(lasted)
            });
        }
    }

    /// Converts a moment to the machine's clock.
    pub(crate) fn instant(&self, moment: Option<Moment>) -> Option<Instant> {
        let since = moment?.saturating_since(Moment::ORIGIN);
        // A moment beyond the range of the clock is no deadline.
        self.origin
            .checked_add(since.min(Duration::from_secs(1 << 32)))
    }

    fn with_heartbeat<T>(&self, ask: impl FnOnce(&mut Heartbeat) -> T) -> T {
        ask(&mut self
            .heartbeat
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

/// The time since the boot without suspensions; nobody can set it. An [`Instant`] is a time of the same clock.
pub(crate) fn uptime() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// The wall clock, as the time since the Unix epoch.
pub(crate) fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_gap_is_reported_once() {
        let begin = Instant::now();
        let mut heartbeat = Heartbeat {
            last: begin,
            paused: Duration::ZERO,
        };
        for beat in 1..10 {
            heartbeat.beat(begin + BEAT * beat);
        }
        assert_eq!(heartbeat.take(), None);
        let stopped = Duration::from_secs(90);
        // Either the heartbeat or a reader of the clock notices the gap first.
        heartbeat.beat(heartbeat.last + stopped);
        heartbeat.beat(heartbeat.last + BEAT);
        assert_eq!(heartbeat.take(), Some(stopped));
        assert_eq!(heartbeat.take(), None);
    }
}
