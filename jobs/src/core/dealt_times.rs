//! The times of a schedule that were dealt with: run, skipped, or counted as missed.
//!
//! Invariant: none of the last [`SPANS_MAX`] spans comes again, whatever happens to the clock and the scheduler.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Remembered spans: each setting of the clock and each stop of the schedule adds one.
const SPANS_MAX: usize = 16;

/// A range of times, from after one Unix time up to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Span {
    after: Duration,
    until: Duration,
}

impl Span {
    fn contains(self, time: Duration) -> bool {
        self.after < time && time <= self.until
    }
}

/// Spans in order, no two of which touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Dealt(Vec<Span>);

impl Dealt {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a single time.
    pub(super) fn add_one(&mut self, time: Duration) {
        self.add(time.saturating_sub(Duration::from_nanos(1)), time);
    }

    /// Adds all times from after one moment up to another.
    pub(super) fn add(&mut self, after: Duration, until: Duration) {
        if after >= until {
            return;
        }
        let mut added = Span { after, until };
        self.0.retain(|span| {
            let touches = span.after <= added.until && added.after <= span.until;
            if touches {
                added.after = added.after.min(span.after);
                added.until = added.until.max(span.until);
            }
            !touches
        });
        let at = self.0.partition_point(|span| span.after < added.after);
        self.0.insert(at, added);
        if self.0.len() > SPANS_MAX {
            // Drops the earliest span: no clock is set back that far so soon.
            self.0.remove(0);
        }
    }

    /// Returns the first of the times of `next` after a moment that was not dealt with.
    pub(super) fn next(
        &self,
        after: Duration,
        mut next: impl FnMut(Duration) -> Option<Duration>,
    ) -> Option<Duration> {
        let mut time = next(after)?;
        for span in &self.0 {
            if span.contains(time) {
                time = next(span.until)?;
            }
        }
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn each_second(after: Duration) -> Option<Duration> {
        Some(at(after.as_secs() + 1))
    }

    #[test]
    fn dealt_times_are_never_given_again() {
        for seed in 0..200_u64 {
            let (mut dealt, mut all) = (Dealt::default(), [false; 100]);
            for step in 0..10 {
                let after = (seed * 31 + step * step * 17) % 90;
                let until = after + (seed + step * 7) % 10;
                dealt.add(at(after), at(until));
                for time in after + 1..=until {
                    all[usize::try_from(time).expect("a few")] = true;
                }
            }
            for moment in 0..99 {
                let mut open = (moment + 1..100).filter(|time| !all[*time]);
                let expected = open.next().map(|time| at(time as u64));
                let next = |after| each_second(after).filter(|time| *time < at(100));
                assert_eq!(dealt.next(at(moment as u64), next), expected, "{dealt:?}");
            }
        }
    }

    #[test]
    fn full_list_forgets_the_earliest_span() {
        let mut dealt = Dealt::default();
        for number in (0..2 * SPANS_MAX as u64).rev() {
            dealt.add(at(number * 10), at(number * 10 + 5));
        }
        assert_eq!(dealt.0.len(), SPANS_MAX);
        assert_eq!(dealt.next(at(0), each_second), Some(at(1)));
        let last = (2 * SPANS_MAX as u64 - 1) * 10;
        assert_eq!(dealt.next(at(last), each_second), Some(at(last + 6)));
        // A span between two others joins them.
        dealt.add(at(last - 5), at(last));
        assert_eq!(dealt.0.len(), SPANS_MAX - 1);
    }
}
