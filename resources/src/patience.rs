//! The time that counts against others: that in which this process itself ran.
//!
//! A process that was stopped or starved has read nothing meanwhile. Deadlines of its peers are kept on the clock of
//! [`Patience`], which stands still while the process does not run, and for a while afterwards, so that what came
//! meanwhile is read before anybody is judged. Invariant: the clock never runs faster than time, and a deadline on
//! it never passes in a step that comes late.

use std::time::Duration;

use crate::time::Moment;

/// How often a process that has deadlines of others steps at least: what it cannot see of a pause.
pub const PULSE: Duration = Duration::from_secs(1);

/// A step that comes so much later than it was due comes after a pause; less is the machine being busy.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// For how long the clock stands still after a pause at most: peers that noticed the pause try again with pauses
/// of up to 15 s.
const SETTLE_MAX: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Time that counted against nobody.
    lost: Duration,
    /// The last step.
    last: Moment,
    /// When the next step is due.
    due: Moment,
    /// Until when the clock stands still after the last pause.
    settled: Moment,
}

impl Patience {
    /// A clock that begins now, before the first step.
    #[must_use]
    pub const fn new(now: Moment) -> Self {
        Self {
            lost: Duration::ZERO,
            last: now,
            due: Moment::NEVER,
            settled: now,
        }
    }

    /// The process makes a step; gives the time that passed since the one before if it was a pause.
    pub fn step(&mut self, now: Moment) -> Option<Duration> {
        let passed = now.saturating_since(self.last);
        let paused = now.saturating_since(self.due) >= PAUSE_MIN;
        if paused {
            self.lost += passed;
            self.settled = now + passed.min(SETTLE_MAX);
        } else {
            self.lost += self.settled.min(now).saturating_since(self.last);
        }
        self.last = self.last.max(now);
        paused.then_some(passed)
    }

    /// Plans the next step, if nothing happens before: within a pulse, or earlier.
    pub fn expect(&mut self, next: Option<Moment>) {
        let pulse = self.last + PULSE;
        self.due = next.map_or(pulse, |next| next.min(pulse));
    }

    /// When the next step is due; never before the first was planned.
    #[must_use]
    pub const fn due(&self) -> Moment {
        self.due
    }

    /// Whether the process has not run for long enough after a pause to judge others.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.last < self.settled
    }

    /// What this clock shows at the last step, if others may be judged in it.
    #[must_use]
    pub fn judging(&self) -> Option<Moment> {
        (!self.is_settling()).then(|| self.now())
    }

    /// What this clock shows at the last step.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.place(self.last)
    }

    /// What this clock shows at a moment that is not before the last step, if the process runs until then.
    #[must_use]
    pub fn place(&self, at: Moment) -> Moment {
        if at == Moment::NEVER {
            return at;
        }
        let lost = u64::try_from(self.lost.as_nanos()).unwrap_or(u64::MAX);
        Moment::from_nanos(at.as_nanos().saturating_sub(lost))
    }

    /// When this clock shows a moment, if the process runs until then.
    #[must_use]
    pub fn real(&self, shown: Moment) -> Moment {
        self.last.max(self.settled) + shown.saturating_since(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Runs as it is asked to, and gives when the clock showed the moment.
    fn run_until(patience: &mut Patience, mut now: Moment, shown: Moment) -> Moment {
        while patience.now() < shown {
            patience.expect(Some(patience.real(shown)));
            now = patience.due();
            assert_eq!(patience.step(now), None);
        }
        now
    }

    #[test]
    fn it_goes_with_time_as_long_as_the_process_runs() {
        let start = Moment::ORIGIN + 7 * SECOND;
        let mut patience = Patience::new(start);
        let deadline = patience.place(start + 90 * SECOND);
        assert_eq!(
            run_until(&mut patience, start, deadline),
            start + 90 * SECOND
        );
        assert!(!patience.is_settling());
        assert_eq!(patience.place(Moment::NEVER), Moment::NEVER);
    }

    #[test]
    fn a_pause_counts_against_nobody_and_as_much_again_is_given_to_come_back() {
        let start = Moment::ORIGIN + SECOND;
        let mut patience = Patience::new(start);
        let deadline = patience.place(start + 2 * SECOND);
        patience.expect(None);
        let woken = start + 10 * SECOND;
        assert_eq!(patience.step(woken), Some(10 * SECOND));
        assert!(patience.is_settling() && patience.now() < deadline);
        // One that is set now begins when the others go on.
        let later = patience.place(woken);
        assert_eq!(patience.real(later), woken + 10 * SECOND);
        assert_eq!(
            run_until(&mut patience, woken, deadline),
            woken + 12 * SECOND
        );
    }

    #[test]
    fn after_a_long_pause_it_goes_on_in_the_end_and_a_second_pause_is_one_more() {
        let start = Moment::ORIGIN;
        let mut patience = Patience::new(start);
        let deadline = patience.place(start + SECOND);
        for pause in [3_600, 5] {
            patience.expect(None);
            let woken = patience.last + pause * SECOND;
            assert!(patience.step(woken).is_some());
            assert!(patience.now() < deadline);
        }
        let woken = patience.last;
        assert_eq!(
            run_until(&mut patience, woken, deadline),
            woken + 6 * SECOND
        );
    }

    #[test]
    fn a_step_that_is_a_little_late_is_no_pause() {
        let mut patience = Patience::new(Moment::ORIGIN);
        let mut now = Moment::ORIGIN;
        for _ in 0..100 {
            patience.expect(None);
            now = patience.due() + SECOND / 2;
            assert_eq!(patience.step(now), None);
        }
        assert_eq!(patience.now(), now);
    }
}
