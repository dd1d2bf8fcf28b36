//! Times of a schedule that were dealt with: run, skipped, or counted as missed.
//!
//! Invariant: none of the last [`SPANS_MAX`] spans of them comes again, whatever becomes of the clock and of the scheduler.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Spans that are remembered: one more with each time that the clock is set, or that the schedule is stopped.
const SPANS_MAX: usize = 16;

/// The times after one moment up to another, both since 1970.
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

/// Spans in order, of which no two touch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Dealt(Vec<Span>);

impl Dealt {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A time was dealt with, whatever became of others.
    pub(super) fn add_one(&mut self, time: Duration) {
        self.add(time.saturating_sub(Duration::from_nanos(1)), time);
    }

    /// All times after one moment up to another were dealt with.
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
            // The earliest: no clock is set back that far so soon.
            self.0.remove(0);
        }
    }

    /// The first time after a moment that was not dealt with, of those that `next` gives.
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
    fn what_was_dealt_with_is_given_by_no_moment_before_it() {
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
    fn the_earliest_of_very_many_spans_is_forgotten() {
        let mut dealt = Dealt::default();
        for number in (0..2 * SPANS_MAX as u64).rev() {
            dealt.add(at(number * 10), at(number * 10 + 5));
        }
        assert_eq!(dealt.0.len(), SPANS_MAX);
        assert_eq!(dealt.next(at(0), each_second), Some(at(1)));
        let last = (2 * SPANS_MAX as u64 - 1) * 10;
        assert_eq!(dealt.next(at(last), each_second), Some(at(last + 6)));
        // What lies between two of them joins them.
        dealt.add(at(last - 5), at(last));
        assert_eq!(dealt.0.len(), SPANS_MAX - 1);
    }
}
