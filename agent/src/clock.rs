//! The core's clocks, and whether the process stood still.
//!
//! A pulse beats while the process runs. A gap in it is a pause: a SIGSTOP, a machine that was frozen, or want
//! of the processor. The core is told of it before it is told that time has passed, see
//! [`crate::core::Input::Paused`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use meseta_isolators::BootId;
use meseta_resources::{Moment, Now};
use rustix::time::{ClockId, clock_gettime};

use crate::core::BootClock;

/// The time between two beats.
const BEAT: Duration = Duration::from_millis(500);
/// A longer gap is a pause.
const PAUSE_MIN: Duration = Duration::from_secs(3);

/// Both clocks. Moments count from the agent's start.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The machine's uptime at the origin, see [`uptime`].
    uptime_at_origin: Duration,
    heartbeat: Arc<Mutex<Heartbeat>>,
}

/// When the process was last seen to run, and how long it stood still before.
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

    /// The pauses that nobody has asked for yet.
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

    /// The same clock as the core records it: since this boot.
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

    /// The time, and how long the process stood still since this was asked last, if it did.
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

    /// The core stood still for so long, though the process ran.
    pub(crate) fn stood_still(&self, lasted: Duration) {
        if lasted >= PAUSE_MIN {
            self.with_heartbeat(|heartbeat| {
                heartbeat.paused = heartbeat.paused.saturating_add(lasted)
            });
        }
    }

    /// When a moment is, as the machine counts.
    pub(crate) fn instant(&self, moment: Option<Moment>) -> Option<Instant> {
        let since = moment?.saturating_since(Moment::ORIGIN);
        // A moment beyond what the clock can name is no deadline.
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

/// Time since the machine was booted, without the time it was suspended; nobody can set it. An [`Instant`] is a
/// time of the same clock.
pub(crate) fn uptime() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// The wall clock, since the epoch.
pub(crate) fn unix_now() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_is_a_pause_whoever_notices_it_and_is_told_once() {
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
        // The pulse itself beats first, or whoever asks for the time does.
        heartbeat.beat(heartbeat.last + stopped);
        heartbeat.beat(heartbeat.last + BEAT);
        assert_eq!(heartbeat.take(), Some(stopped));
        assert_eq!(heartbeat.take(), None);
    }
}
