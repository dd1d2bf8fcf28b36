//! The clock of the machine's boot: the age of events in earlier agent processes.
//!
//! Somebody may set the wall clock, ahead or back, while no agent runs. Times that must survive a restart are therefore
//! recorded as the machine's uptime, with the id of its boot; see [`crate::checkpoint::KillRequested`]. Suspension does
//! not count: no task runs then. Invariant: uptimes of two boots are never compared.

use std::time::Duration;

use meseta_isolators::BootId;
use meseta_resources::{Moment, Now};

/// A clock that counts from the machine's boot.
#[derive(Clone, Debug)]
pub struct BootClock {
    boot: BootId,
    /// The machine's uptime at [`Moment::ORIGIN`].
    uptime_at_origin: Duration,
}

impl BootClock {
    /// Creates the clock of this boot. `uptime_at_origin` is the uptime at the origin of the agent's moments.
    pub fn new(boot: BootId, uptime_at_origin: Duration) -> Self {
        Self {
            boot,
            uptime_at_origin,
        }
    }

    /// The id of the boot that the clock counts from.
    pub(super) fn boot(&self) -> &BootId {
        &self.boot
    }

    /// Nanoseconds since the boot, for a record.
    pub(super) fn uptime_ns(&self, now: Now) -> u64 {
        let uptime = self.uptime_at_origin + now.moment.saturating_since(Moment::ORIGIN);
        u64::try_from(uptime.as_nanos()).unwrap_or(u64::MAX)
    }

    /// The time since a recorded uptime; `None` if the uptime belongs to another boot.
    pub(super) fn since(&self, now: Now, boot: &BootId, uptime_ns: u64) -> Option<Duration> {
        let elapsed = self.uptime_ns(now).saturating_sub(uptime_ns);
        (*boot == self.boot).then(|| Duration::from_nanos(elapsed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_spans_restarts_but_not_reboots() {
        const SECOND: Duration = Duration::from_secs(1);
        let at = |after: Duration| Now {
            moment: Moment::ORIGIN + after,
            unix: Duration::ZERO,
        };
        let boot = BootId::from_text("b");
        let before = BootClock::new(boot.clone(), 100 * SECOND);
        let recorded = before.uptime_ns(at(5 * SECOND));
        let after = BootClock::new(boot.clone(), 140 * SECOND);
        let elapsed = after.since(at(2 * SECOND), &boot, recorded);
        assert_eq!(elapsed, Some(37 * SECOND));
        let rebooted = BootClock::new(BootId::from_text("c"), 140 * SECOND);
        assert_eq!(rebooted.since(at(2 * SECOND), &boot, recorded), None);
        // An uptime that no clock of this boot can have reached counts as long ago.
        assert_eq!(
            after.since(at(SECOND), &boot, u64::MAX),
            Some(Duration::ZERO)
        );
    }
}
