//! Measurements of the shell: durations, and lengths of its queues.
//!
//! The shell owns the measurements and copies them for readers. Invariant: their size is bounded.

use std::collections::VecDeque;
use std::time::Duration;

use meseta_allocator::RoleGauges;

use crate::core::Usage;

/// The number of stored durations of each kind; the newest stay.
const KEPT_MAX: usize = 1_000;

/// The newest durations, in milliseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Window(VecDeque<f64>);

/// Statistics of a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Summary {
    pub(crate) last: f64,
    pub(crate) count: usize,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// The percentiles with their names (`p50`).
    pub(crate) percentiles: [(&'static str, f64); 6],
}

impl Window {
    pub(crate) fn add(&mut self, took: Duration) {
        if self.0.len() >= KEPT_MAX {
            self.0.pop_front();
        }
        self.0.push_back(took.as_secs_f64() * 1e3);
    }

    /// A window of zeros with the same number of samples.
    pub(crate) fn of_nothing(&self) -> Self {
        Self(self.0.iter().map(|_| 0.0).collect())
    }

    /// Returns the statistics; `None` without samples.
    pub(crate) fn summary(&self) -> Option<Summary> {
        const WANTED: [(&str, f64); 6] = [
            ("p50", 0.5),
            ("p90", 0.9),
            ("p95", 0.95),
            ("p99", 0.99),
            ("p999", 0.999),
            ("p9999", 0.9999),
        ];
        let mut sorted: Vec<f64> = self.0.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        Some(Summary {
            last: *self.0.back()?,
            count: sorted.len(),
            min: *sorted.first()?,
            max: *sorted.last()?,
            percentiles: WANTED.map(|(name, part)| (name, at(&sorted, part))),
        })
    }
}

/// Interpolates between the two nearest values, as Mesos does.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a place among at most a thousand"
)]
fn at(sorted: &[f64], part: f64) -> f64 {
    let rank = part * sorted.len().saturating_sub(1) as f64;
    let below = rank.floor();
    let value = |index: usize| sorted.get(index).or(sorted.last()).copied();
    let (Some(low), Some(high)) = (value(below as usize), value(below as usize + 1)) else {
        return 0.0;
    };
    low + (high - low) * (rank - below)
}

/// Upper bounds of the buckets of allocations, in seconds: from an idle cluster to one that is too large.
pub(crate) const ALLOCATION_BOUNDS: [f64; 12] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
];

/// The number of times in each bucket of [`ALLOCATION_BOUNDS`], since the start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Histogram {
    pub(crate) counts: [u64; ALLOCATION_BOUNDS.len()],
    /// The number of durations above the last bound.
    pub(crate) beyond: u64,
    pub(crate) sum: Duration,
}

impl Histogram {
    pub(crate) fn add(&mut self, took: Duration) {
        self.sum += took;
        let seconds = took.as_secs_f64();
        let bounds = ALLOCATION_BOUNDS.iter();
        let mut buckets = bounds.zip(&mut self.counts);
        match buckets.find(|(bound, _)| seconds <= **bound) {
            Some((_, count)) => *count += 1,
            None => self.beyond += 1,
        }
    }
}

/// A copy of everything that was measured.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measures {
    /// The durations of steps with an allocation, which is nearly all of such a step.
    pub(crate) allocations: Window,
    /// The durations of allocations since the start.
    pub(crate) allocation_times: Histogram,
    /// The times until a mutation was durable.
    pub(crate) stores: Window,
    /// The number of answers made from another reader's snapshot.
    pub(crate) shared_snapshots: u64,
    /// The number of commands that wait for the core.
    pub(crate) commands_waiting: usize,
    /// The number of subscribed operators.
    pub(crate) watchers: usize,
    pub(crate) roles: Vec<RoleGauges>,
    /// The resource usage of the containers of all connected agents.
    pub(crate) usage: Usage,
    /// The current time, since the Unix epoch.
    pub(crate) now: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_counts_each_time_once() {
        let mut histogram = Histogram::default();
        for ms in [0, 1, 2, 2_500, 2_501] {
            histogram.add(Duration::from_millis(ms));
        }
        assert_eq!(histogram.counts, [1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(histogram.beyond, 1);
        assert_eq!(histogram.sum, Duration::from_millis(5_004));
    }

    #[test]
    fn window_keeps_newest_in_order() {
        let mut window = Window::default();
        assert_eq!(window.summary(), None);
        for ms in 0..1_500 {
            window.add(Duration::from_millis(ms));
        }
        let summary = window.summary().unwrap();
        assert_eq!((summary.count, summary.last), (1_000, 1_499.0));
        assert_eq!((summary.min, summary.max), (500.0, 1_499.0));
        assert_eq!(summary.percentiles[0], ("p50", 999.5));
        let mut one = Window::default();
        one.add(Duration::from_millis(7));
        assert!(
            one.summary()
                .unwrap()
                .percentiles
                .iter()
                .all(|(_, value)| (value - 7.0).abs() < 1e-9)
        );
    }
}
