//! A clock that advances only while this process runs, for the deadlines of peers.
//!
//! A process that was stopped or starved has read nothing in the meantime. Deadlines of its peers use the clock of
//! [`ProcessClock`]. This clock stands still while the process does not run, and for a while afterwards, so that the process
//! reads waiting messages before any deadline passes. Invariant: the clock never runs faster than time, and a deadline on it
//! never passes in a late step.

use std::time::Duration;

use crate::time::Moment;

/// The longest interval between two steps of a process that has deadlines of others: shorter pauses stay unnoticed.
pub const STEP_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// The minimum delay of a step that counts as a pause; a shorter delay means that the machine is busy.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// The longest time that the clock stands still after a pause of the process. Peers that noticed the pause retry at
/// intervals of up to 15 s.
const SETTLE_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug)]
pub struct ProcessClock {
    /// Time that does not count towards deadlines.
    lost: Duration,
    /// The moment of the last step.
    last: Moment,
    /// The due time of the next step.
    due: Moment,
    /// The end of the settling time after the last pause, in which the clock stands still.
    settled: Moment,
}

impl ProcessClock {
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

    /// Makes a step; returns the time since the previous step if it was a pause.
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

    /// Plans the next step: at `next`, but no later than a pulse from now.
    pub fn schedule_step(&mut self, next: Option<Moment>) {
        let latest = self.last + STEP_INTERVAL_MAX;
        self.due = next.map_or(latest, |next| next.min(latest));
    }

    /// The due time of the next step, which is never before the first was planned.
    #[must_use]
    pub const fn due(&self) -> Moment {
        self.due
    }

    /// Whether the process has run for too short a time after a pause to expire deadlines of others.
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.last < self.settled
    }

    /// The time of this clock at the last step, unless it is still settling after a pause.
    #[must_use]
    pub fn now_if_settled(&self) -> Option<Moment> {
        (!self.is_settling()).then(|| self.now())
    }

    /// The time of this clock at the last step.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.to_process_time(self.last)
    }

    /// The time of this clock at a moment that is not before the last step, if the process runs until then.
    #[must_use]
    pub fn to_process_time(&self, at: Moment) -> Moment {
        if at == Moment::NEVER {
            return at;
        }
        let lost = u64::try_from(self.lost.as_nanos()).unwrap_or(u64::MAX);
        Moment::from_nanos(at.as_nanos().saturating_sub(lost))
    }

    /// The moment at which this clock shows a time, if the process runs until then.
    #[must_use]
    pub fn to_real_time(&self, process_time: Moment) -> Moment {
        self.last.max(self.settled) + process_time.saturating_since(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Steps at each due time, and returns the moment when the clock showed the deadline.
    fn run_until(
        process_clock: &mut ProcessClock,
        mut now: Moment,
        process_time: Moment,
    ) -> Moment {
        while process_clock.now() < process_time {
            process_clock.schedule_step(Some(process_clock.to_real_time(process_time)));
            now = process_clock.due();
            assert_eq!(process_clock.step(now), None);
        }
        now
    }

    #[test]
    fn process_clock_follows_time_while_running() {
        let start = Moment::ORIGIN + 7 * SECOND;
        let mut process_clock = ProcessClock::new(start);
        let deadline = process_clock.to_process_time(start + 90 * SECOND);
        assert_eq!(
            run_until(&mut process_clock, start, deadline),
            start + 90 * SECOND
        );
        assert!(!process_clock.is_settling());
        assert_eq!(process_clock.to_process_time(Moment::NEVER), Moment::NEVER);
    }

    #[test]
    fn pause_extends_deadlines_by_its_length() {
        let start = Moment::ORIGIN + SECOND;
        let mut process_clock = ProcessClock::new(start);
        let deadline = process_clock.to_process_time(start + 2 * SECOND);
        process_clock.schedule_step(None);
        let woken = start + 10 * SECOND;
        assert_eq!(process_clock.step(woken), Some(10 * SECOND));
        assert!(process_clock.is_settling() && process_clock.now() < deadline);
        // A deadline that is set now starts when the clock continues.
        let later = process_clock.to_process_time(woken);
        assert_eq!(process_clock.to_real_time(later), woken + 10 * SECOND);
        assert_eq!(
            run_until(&mut process_clock, woken, deadline),
            woken + 12 * SECOND
        );
    }

    #[test]
    fn clock_resumes_after_pauses() {
        let start = Moment::ORIGIN;
        let mut process_clock = ProcessClock::new(start);
        let deadline = process_clock.to_process_time(start + SECOND);
        for pause in [3_600, 5] {
            process_clock.schedule_step(None);
            let woken = process_clock.last + pause * SECOND;
            assert!(process_clock.step(woken).is_some());
            assert!(process_clock.now() < deadline);
        }
        let woken = process_clock.last;
        assert_eq!(
            run_until(&mut process_clock, woken, deadline),
            woken + 6 * SECOND
        );
    }

    #[test]
    fn slightly_late_step_is_no_pause() {
        let mut process_clock = ProcessClock::new(Moment::ORIGIN);
        let mut now = Moment::ORIGIN;
        for _ in 0..100 {
            process_clock.schedule_step(None);
            now = process_clock.due() + SECOND / 2;
            assert_eq!(process_clock.step(now), None);
        }
        assert_eq!(process_clock.now(), now);
    }
}
