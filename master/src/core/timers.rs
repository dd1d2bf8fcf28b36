//! Deadlines, ordered.
//!
//! Short ones are never cancelled: whoever set one recognises a stale one when it fires, by the
//! connection or generation inside it. Long ones can be, so that they do not pile up.

use std::collections::BTreeMap;

use meseta_resources::time::Moment;
use meseta_resources::{AgentId, FrameworkId, OfferId};

use super::io::ConnectionId;

/// What a deadline is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// A batch allocation over everything.
    Allocation,
    /// A heartbeat is due on this stream.
    Heartbeat {
        framework: FrameworkId,
        connection: ConnectionId,
    },
    /// The framework did not come back in time.
    Failover {
        framework: FrameworkId,
        generation: u64,
    },
    /// A ping is due, and the last one should have been answered.
    Ping { agent: AgentId, generation: u64 },
    /// Agents of the previous master that have not come back are unreachable.
    Reregister,
    /// An offer has been out for `--offer_timeout`.
    Offer { offer: OfferId },
    /// The same of an inverse offer.
    InverseOffer { offer: OfferId },
    /// A return that comes in parts should have gone on, or be complete.
    Return { connection: ConnectionId },
    /// Old entries of the lists of lost agents may go.
    RegistryGc,
}

/// Names a timer that may be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimerKey(Moment, u64);

/// Pending timers; the earliest first, equal ones in the order they were set.
#[derive(Debug, Default)]
pub(super) struct Timers {
    pending: BTreeMap<(Moment, u64), Timer>,
    sequence: u64,
}

impl Timers {
    pub(super) fn set(&mut self, at: Moment, timer: Timer) -> TimerKey {
        self.sequence += 1;
        self.pending.insert((at, self.sequence), timer);
        TimerKey(at, self.sequence)
    }

    /// Forgets a timer; one that has fired is forgotten already.
    pub(super) fn cancel(&mut self, TimerKey(at, sequence): TimerKey) {
        self.pending.remove(&(at, sequence));
    }

    pub(super) fn next(&self) -> Option<Moment> {
        self.pending.keys().next().map(|(at, _)| *at)
    }

    /// The next timer that is due, with the moment it was due at.
    pub(super) fn pop(&mut self, now: Moment) -> Option<(Moment, Timer)> {
        let entry = self.pending.first_entry()?;
        if entry.key().0 > now {
            return None;
        }
        let ((at, _), timer) = entry.remove_entry();
        Some((at, timer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fires_in_order_and_not_early() {
        let mut timers = Timers::default();
        timers.set(Moment::from_nanos(20), Timer::Reregister);
        timers.set(Moment::from_nanos(10), Timer::Allocation);
        timers.set(Moment::from_nanos(20), Timer::RegistryGc);
        assert_eq!(timers.next(), Some(Moment::from_nanos(10)));
        assert_eq!(timers.pop(Moment::from_nanos(9)), None);
        let mut fired = Vec::new();
        while let Some((_, timer)) = timers.pop(Moment::from_nanos(20)) {
            fired.push(timer);
        }
        assert_eq!(
            fired,
            [Timer::Allocation, Timer::Reregister, Timer::RegistryGc]
        );
        assert_eq!(timers.next(), None);
        let key = timers.set(Moment::from_nanos(30), Timer::Reregister);
        timers.cancel(key);
        timers.cancel(key);
        assert_eq!(timers.next(), None);
    }
}
