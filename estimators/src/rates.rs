//! Rates of cumulative processor time, by container and for the host.
//!
//! [`Meter::observe`] takes each sample; readers then ask for a rate by key. Invariant: a rate is between two readings of the
//! same counter, never across a restart of the counter or a gap that is longer than readings may be old; memory is bounded by
//! the containers in the last samples.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use meseta_resources::{ContainerId, Moment};

use crate::{ContainerUsage, ExecutorKey, UsageSample};

/// The number of kept readings of one counter: ten seconds at one each second, and some to spare.
const POINTS_MAX: usize = 16;

/// The present knowledge of a value.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) enum Reading {
    /// A reading of this very sample.
    Fresh(f64),
    /// A reading of an earlier sample that is not too old: good enough to go on, not to oversubscribe more.
    Held(f64),
    Unknown,
}

impl Reading {
    pub(crate) const fn value(self) -> Option<f64> {
        match self {
            Self::Fresh(value) | Self::Held(value) => Some(value),
            Self::Unknown => None,
        }
    }
}

/// The latest readings of a counter, oldest first.
#[derive(Clone, Debug, Default)]
struct Counter {
    points: VecDeque<(Moment, Duration)>,
}

impl Counter {
    fn push(&mut self, at: Moment, value: Duration, window: Duration, gap_max: Duration) {
        if let Some(&(last_at, last)) = self.points.back() {
            if at <= last_at {
                return;
            }
            if value < last || at.saturating_since(last_at) > gap_max {
                self.points.clear();
            }
        }
        // Readings that arrive faster than the window can hold replace one another.
        let spacing = window / u32::try_from(POINTS_MAX - 2).unwrap_or(u32::MAX);
        if let [.., (before, _), last] = self.points.make_contiguous()
            && last.0.saturating_since(*before) < spacing
        {
            *last = (at, value);
        } else {
            self.points.push_back((at, value));
        }
        // One reading at or before the start of the window stays as the base.
        while let Some(&(second, _)) = self.points.get(1)
            && (self.points.len() > POINTS_MAX
                || (self.points.len() > 2 && at.saturating_since(second) >= window))
        {
            self.points.pop_front();
        }
    }

    /// The time of the last reading, and the rate over the window in seconds per second.
    fn rate(&self) -> Option<(Moment, f64)> {
        let (first_at, first) = self.points.front()?;
        let (last_at, last) = self.points.back()?;
        let elapsed = last_at.saturating_since(*first_at).as_secs_f64();
        let spent = last.saturating_sub(*first).as_secs_f64();
        (elapsed > 0.0).then(|| (*last_at, spent / elapsed))
    }

    fn reading(&self, now: Moment, refreshed: bool, stale_after: Duration) -> Reading {
        match self.rate() {
            Some((at, rate)) if now.saturating_since(at) <= stale_after => {
                if refreshed {
                    Reading::Fresh(rate)
                } else {
                    Reading::Held(rate)
                }
            }
            _ => Reading::Unknown,
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Tracked {
    counter: Counter,
    container: Option<ContainerId>,
    seen: Moment,
    /// The time of the last reading of the container's statistics, and whether it belongs to the last sample.
    read_at: Option<Moment>,
    read: bool,
    /// Whether that reading included the counter.
    refreshed: bool,
}

/// The rates of a whole node.
#[derive(Clone, Debug)]
pub(crate) struct Meter {
    window: Duration,
    stale_after: Duration,
    host: Counter,
    host_refreshed: bool,
    containers: BTreeMap<ExecutorKey, Tracked>,
    now: Moment,
}

impl Meter {
    pub(crate) fn new(window: Duration, stale_after: Duration) -> Self {
        Self {
            window,
            stale_after,
            host: Counter::default(),
            host_refreshed: false,
            containers: BTreeMap::new(),
            now: Moment::ORIGIN,
        }
    }

    pub(crate) fn observe(&mut self, sample: &UsageSample) {
        let now = sample.at;
        self.now = now;
        self.host_refreshed = sample.host.cpu_time.is_some();
        if let Some(spent) = sample.host.cpu_time {
            self.host.push(now, spent, self.window, self.stale_after);
        }
        for tracked in self.containers.values_mut() {
            (tracked.read, tracked.refreshed) = (false, false);
        }
        for container in &sample.containers {
            self.track(container, now);
        }
        let stale_after = self.stale_after;
        self.containers
            .retain(|_, tracked| now.saturating_since(tracked.seen) <= stale_after);
    }

    fn track(&mut self, container: &ContainerUsage, now: Moment) {
        let tracked = self.containers.entry(container.key()).or_default();
        tracked.seen = now;
        if tracked.container != container.container {
            tracked.counter = Counter::default();
            tracked.container.clone_from(&container.container);
        }
        let Some(at) = container
            .at
            .filter(|_| container.is_fresh(now, self.stale_after))
        else {
            return;
        };
        tracked.read = tracked.read_at.is_none_or(|before| at > before);
        tracked.read_at = Some(at);
        let Some(spent) = container.cpu_time else {
            return;
        };
        let before = tracked.counter.points.back().copied();
        tracked
            .counter
            .push(at, spent, self.window, self.stale_after);
        tracked.refreshed = tracked.counter.points.back().copied() != before;
    }

    /// Whether the last sample included the statistics of an executor's container.
    pub(crate) fn was_read(&self, key: &ExecutorKey) -> bool {
        self.containers.get(key).is_some_and(|tracked| tracked.read)
    }

    pub(crate) const fn stale_after(&self) -> Duration {
        self.stale_after
    }

    pub(crate) fn host(&self) -> Reading {
        self.host
            .reading(self.now, self.host_refreshed, self.stale_after)
    }

    /// Whether the last sample has the first reading of an executor's counter.
    pub(crate) fn is_first_reading(&self, key: &ExecutorKey) -> bool {
        let tracked = self.containers.get(key);
        tracked.is_some_and(|tracked| tracked.refreshed && tracked.counter.points.len() == 1)
    }

    /// The processors that an executor's container uses.
    pub(crate) fn container(&self, key: &ExecutorKey) -> Reading {
        self.containers
            .get(key)
            .map_or(Reading::Unknown, |tracked| {
                tracked
                    .counter
                    .reading(self.now, tracked.refreshed, self.stale_after)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Node;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    fn pushed(points: impl IntoIterator<Item = (u64, u64)>, window: Duration) -> Counter {
        let mut counter = Counter::default();
        for (moment, spent) in points {
            counter.push(
                at(moment),
                Duration::from_millis(spent),
                window,
                45 * SECOND,
            );
        }
        counter
    }

    #[test]
    fn rate_covers_exactly_the_window() {
        // Idle for a minute, then one processor for twelve seconds.
        let idle = (0..60).map(|second| (second * 1000, 0));
        let busy = (60..=72).map(|second| (second * 1000, (second - 60) * 1000));
        let counter = pushed(idle.chain(busy), 10 * SECOND);
        assert_eq!(counter.rate().unwrap().1, 1.0);
        assert!(counter.points.len() <= POINTS_MAX);
    }

    #[test]
    fn fast_readings_stay_bounded_and_correct() {
        let counter = pushed((0..10_000).map(|step| (step * 10, step * 5)), 10 * SECOND);
        assert!(counter.points.len() <= POINTS_MAX);
        let (read, rate) = counter.rate().unwrap();
        assert!((rate - 0.5).abs() < 1e-9);
        assert_eq!(read, at(99_990));
    }

    #[test]
    fn slow_readings_use_the_last_two() {
        let counter = pushed([(0, 0), (15_000, 15_000), (30_000, 15_000)], 10 * SECOND);
        assert_eq!(counter.rate().unwrap().1, 0.0);
    }

    #[test]
    fn reset_or_long_gap_restarts_rate() {
        assert_eq!(pushed([(0, 100), (1000, 50)], SECOND).rate(), None);
        assert_eq!(pushed([(0, 0), (46_000, 46_000)], SECOND).rate(), None);
        assert!(pushed([(0, 0), (45_000, 46_000)], SECOND).rate().is_some());
    }

    #[test]
    fn repeated_or_older_reading_changes_nothing() {
        let counter = pushed([(0, 0), (1000, 500), (1000, 900), (500, 900)], 10 * SECOND);
        assert_eq!(counter.rate().unwrap().1, 0.5);
    }

    #[test]
    fn reading_time_may_differ_from_sample() {
        for (before, after) in [(0, 5), (5, 0)] {
            let mut node = Node::new(4, &[2.0]);
            let mut meter = Meter::new(10 * SECOND, 45 * SECOND);
            for _ in 0..5 {
                let mut sample = node.step(SECOND, &[1.0]);
                sample.at += Duration::from_millis(before);
                sample.containers[0].at = Some(node.sample.at + Duration::from_millis(after));
                meter.observe(&sample);
            }
            let key = node.sample.containers[0].key();
            assert!(matches!(meter.container(&key), Reading::Fresh(rate) if rate > 0.99));
            assert!(meter.was_read(&key));
        }
    }

    #[test]
    fn reading_from_far_future_is_ignored() {
        let mut node = Node::new(4, &[2.0]);
        let mut meter = Meter::new(10 * SECOND, 45 * SECOND);
        let mut sample = node.step(SECOND, &[1.0]);
        sample.containers[0].at = Some(sample.at + 3600 * SECOND);
        meter.observe(&sample);
        meter.observe(&node.step(SECOND, &[1.0]));
        meter.observe(&node.step(SECOND, &[1.0]));
        let key = node.sample.containers[0].key();
        assert_eq!(meter.container(&key), Reading::Fresh(1.0));
    }
}
