//! Deadlines, ordered: the master's own, and those by which others must act.
//!
//! Short timers are never cancelled: the handler recognises a stale one by its connection or generation. Long timers
//! can be cancelled, so that they do not pile up. Invariant: time in which the master did not run counts against
//! nobody, and no deadline of others passes before the master has read the input of that time.

use std::collections::BTreeMap;
use std::time::Duration;

use meseta_resources::process_clock::ProcessClock;
use meseta_resources::time::Moment;
use meseta_resources::{AgentId, FrameworkId, OfferId};

use crate::core::ids::ConnectionId;

/// The purpose of a deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// The periodic allocation over all agents.
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
    /// The framework has not come back to this master so far.
    Overdue {
        framework: FrameworkId,
        generation: u64,
    },
    /// A ping is due, and the last one should have been answered.
    Ping { agent: AgentId, generation: u64 },
    /// Agents of the previous master that have not come back are unreachable.
    Reregister,
    /// An offer has been out for `--offer_timeout`.
    Offer { offer: OfferId },
    /// An inverse offer has been out for `--offer_timeout`.
    InverseOffer { offer: OfferId },
    /// A reregistration in parts should have progressed, or be complete.
    PartialReregistration { connection: ConnectionId },
    /// Old entries of the lists of lost agents may be removed.
    RegistryGc,
}

impl Timer {
    /// Whether the timer is a deadline for an agent or scheduler.
    fn is_of_others(&self) -> bool {
        match self {
            Self::Failover { .. }
            | Self::Overdue { .. }
            | Self::Reregister
            | Self::Offer { .. }
            | Self::InverseOffer { .. }
            | Self::PartialReregistration { .. } => true,
            // The handler of an unanswered ping checks whether the master could have read the answer.
            Self::Ping { .. } | Self::Allocation | Self::Heartbeat { .. } | Self::RegistryGc => {
                false
            }
        }
    }
}

/// The key of a timer that may be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimerKey(Moment, u64);

/// Pending timers, ordered by time and by the order of setting.
type Pending = BTreeMap<(Moment, u64), Timer>;

/// Pending timers: the earliest first, equal ones in the order of setting.
#[derive(Debug)]
pub(super) struct Timers {
    own: Pending,
    /// The deadlines of others, by the clock of `process_clock`.
    of_others: Pending,
    process_clock: ProcessClock,
    sequence: u64,
}

impl Timers {
    pub(super) fn new(now: Moment) -> Self {
        Self {
            own: Pending::new(),
            of_others: Pending::new(),
            process_clock: ProcessClock::new(now),
            sequence: 0,
        }
    }

    /// Begins a step; returns the time that the master did not run before it, if that was long.
    pub(super) fn step(&mut self, now: Moment) -> Option<Duration> {
        self.process_clock.step(now)
    }

    /// Schedules the next step: at once if there is more to do now, else at the next timer.
    pub(super) fn expect(&mut self, now: Moment, at_once: bool) {
        let next = if at_once { Some(now) } else { self.next() };
        self.process_clock.schedule_step(next);
    }

    /// The time of the next step, with or without a timer.
    pub(super) fn due(&self) -> Moment {
        self.process_clock.due()
    }

    /// Whether the master may still have unread input from a time in which it did not run.
    pub(super) fn is_settling(&self) -> bool {
        self.process_clock.is_settling()
    }

    /// The clock for the deadlines of others.
    pub(super) fn clock(&self) -> Moment {
        self.process_clock.now()
    }

    /// The time at which that clock shows a moment, if the master runs until then.
    pub(super) fn real(&self, shown: Moment) -> Moment {
        self.process_clock.to_real_time(shown)
    }

    /// Sets a timer for a moment not before the last step.
    pub(super) fn set(&mut self, at: Moment, timer: Timer) -> TimerKey {
        self.sequence += 1;
        let (at, pending) = if timer.is_of_others() {
            (self.process_clock.to_process_time(at), &mut self.of_others)
        } else {
            (at, &mut self.own)
        };
        pending.insert((at, self.sequence), timer);
        TimerKey(at, self.sequence)
    }

    /// Cancels a timer. A timer that has fired no longer exists.
    pub(super) fn cancel(&mut self, TimerKey(at, sequence): TimerKey) {
        if self.own.remove(&(at, sequence)).is_none() {
            self.of_others.remove(&(at, sequence));
        }
    }

    /// The number of timers of a kind.
    #[cfg(test)]
    pub(super) fn count(&self, timer: &Timer) -> usize {
        let all = self.own.values().chain(self.of_others.values());
        all.filter(|one| *one == timer).count()
    }

    fn next(&self) -> Option<Moment> {
        let own = self.own.keys().next().map(|(at, _)| *at);
        let others = self.of_others.keys().next();
        let others = others.map(|(at, _)| self.process_clock.to_real_time(*at));
        own.into_iter().chain(others).min()
    }

    /// The next timer due at the time of the step.
    pub(super) fn pop(&mut self, now: Moment) -> Option<Timer> {
        pop(&mut self.own, now).or_else(|| {
            let now = self.process_clock.now_if_settled()?;
            pop(&mut self.of_others, now)
        })
    }
}

fn pop(pending: &mut Pending, now: Moment) -> Option<Timer> {
    let entry = pending.first_entry()?;
    (entry.key().0 <= now).then(|| entry.remove())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The timers that fire up to a moment, with their times, if the master runs.
    fn fired(timers: &mut Timers, from: Moment, until: Moment) -> Vec<(Duration, Timer)> {
        let mut fired = Vec::new();
        let mut now = from;
        loop {
            while let Some(timer) = timers.pop(now) {
                fired.push((now.saturating_since(from), timer));
            }
            timers.expect(now, false);
            now = timers.due();
            if now > until {
                return fired;
            }
            timers.step(now);
        }
    }

    #[test]
    fn fires_in_order_and_not_early() {
        let start = Moment::from_nanos(5);
        let mut timers = Timers::new(start);
        timers.set(start + 20 * SECOND, Timer::RegistryGc);
        timers.set(start + 10 * SECOND, Timer::Allocation);
        timers.set(start + 20 * SECOND, Timer::Reregister);
        let key = timers.set(start + 15 * SECOND, Timer::Reregister);
        timers.cancel(key);
        timers.cancel(key);
        assert_eq!(
            fired(&mut timers, start, start + 60 * SECOND),
            [
                (10 * SECOND, Timer::Allocation),
                (20 * SECOND, Timer::RegistryGc),
                (20 * SECOND, Timer::Reregister)
            ]
        );
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn pause_delays_only_expected_timers() {
        let start = Moment::from_nanos(5);
        let mut timers = Timers::new(start);
        timers.set(start + 2 * SECOND, Timer::Reregister);
        timers.set(start + 3 * SECOND, Timer::Allocation);
        timers.expect(start, false);
        let woken = start + 10 * SECOND;
        assert_eq!(timers.step(woken), Some(10 * SECOND));
        assert!(timers.is_settling());
        assert_eq!(
            fired(&mut timers, woken, woken + 60 * SECOND),
            [
                (Duration::ZERO, Timer::Allocation),
                (12 * SECOND, Timer::Reregister)
            ]
        );
    }
}
