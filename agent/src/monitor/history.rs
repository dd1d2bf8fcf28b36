//! What containers used over the last minute, for estimators and controllers.
//!
//! A ring of a fixed length for each container, packed so that a thousand containers take two
//! megabytes. Pure. Invariant: points are in the order of time; what was absent in a sample is absent
//! here.

use std::collections::VecDeque;
use std::time::Duration;

use meseta_isolators::ContainerUsage;

/// Points of one container: a minute at one sample a second.
pub(crate) const HISTORY_POINTS_MAX: usize = 60;

/// One container at one moment.
#[allow(dead_code, reason = "for estimators, which read it when they are on")]
#[derive(Copy, Clone, Debug, PartialEq)]
pub(crate) struct Point {
    /// When, since the Unix epoch.
    pub(crate) at: Duration,
    /// User and system time together, since the container began.
    pub(crate) cpu_time: Option<Duration>,
    /// Anonymous memory; read less often than the rest.
    pub(crate) rss_bytes: Option<u64>,
    /// All memory that is charged.
    pub(crate) memory_bytes: Option<u64>,
}

/// No value of a counter or of a size: five hundred thousand years, sixteen exabytes.
const ABSENT: u64 = u64::MAX;

#[derive(Copy, Clone, Debug, PartialEq)]
struct Packed {
    at_us: u64,
    cpu_us: u64,
    rss_bytes: u64,
    memory_bytes: u64,
}

/// The last points of one container.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    points: VecDeque<Packed>,
}

impl History {
    /// Adds a sample; the oldest point goes when there are [`HISTORY_POINTS_MAX`]. A clock that was
    /// set back begins the history anew.
    pub(crate) fn push(&mut self, usage: &ContainerUsage) {
        let at_us = micros(usage.timestamp);
        if self.points.back().is_some_and(|last| last.at_us > at_us) {
            self.points.clear();
        }
        if self.points.len() >= HISTORY_POINTS_MAX {
            self.points.pop_front();
        }
        let cpu_secs = usage.cpu.user_secs.zip(usage.cpu.system_secs);
        let cpu_time =
            cpu_secs.and_then(|(user, system)| Duration::try_from_secs_f64(user + system).ok());
        self.points.push_back(Packed {
            at_us,
            cpu_us: cpu_time.map_or(ABSENT, micros),
            rss_bytes: usage.memory.rss_bytes.unwrap_or(ABSENT),
            memory_bytes: usage.memory.total_bytes.unwrap_or(ABSENT),
        });
    }

    /// In order, the oldest first.
    pub(crate) fn points(&self) -> impl DoubleEndedIterator<Item = Point> + '_ {
        self.points.iter().map(|packed| Point {
            at: Duration::from_micros(packed.at_us),
            cpu_time: known(packed.cpu_us).map(Duration::from_micros),
            rss_bytes: known(packed.rss_bytes),
            memory_bytes: known(packed.memory_bytes),
        })
    }

    /// Processors used on average between the oldest and the newest point of the last `window` that
    /// know their time; `None` with fewer than two.
    pub(crate) fn cpus_over(&self, window: Duration) -> Option<f64> {
        let newest = self.points.back()?.at_us;
        let since = newest.saturating_sub(micros(window));
        let mut timed = self
            .points()
            .filter(|point| micros(point.at) >= since)
            .filter_map(|point| Some((point.at, point.cpu_time?)));
        let first = timed.next()?;
        let last = timed.next_back()?;
        let elapsed = last.0.checked_sub(first.0)?.as_secs_f64();
        let used = last.1.checked_sub(first.1)?.as_secs_f64();
        (elapsed > 0.0).then(|| used / elapsed)
    }
}

fn known(packed: u64) -> Option<u64> {
    (packed != ABSENT).then_some(packed)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(at: u64, cpu_secs: Option<f64>) -> ContainerUsage {
        let mut usage = ContainerUsage {
            timestamp: Duration::from_secs(at),
            ..ContainerUsage::default()
        };
        usage.cpu.user_secs = cpu_secs;
        usage.cpu.system_secs = cpu_secs.map(|_| 0.0);
        usage.memory.total_bytes = Some(at);
        usage
    }

    #[test]
    fn the_oldest_point_goes_and_what_is_absent_stays_absent() {
        let mut history = History::default();
        for at in 0..100 {
            history.push(&usage(at, (at != 50).then_some(1.0)));
        }
        let points: Vec<_> = history.points().collect();
        assert_eq!(points.len(), HISTORY_POINTS_MAX);
        assert_eq!(points[0].at, Duration::from_secs(40));
        assert_eq!(points[10].cpu_time, None);
        assert_eq!(points[11].cpu_time, Some(Duration::from_secs(1)));
        assert_eq!(points[11].rss_bytes, None);
        assert_eq!(points[11].memory_bytes, Some(51));
    }

    #[test]
    fn rates_are_over_what_is_known() {
        let mut history = History::default();
        assert_eq!(history.cpus_over(Duration::from_secs(10)), None);
        for (at, cpu) in [
            (0, Some(0.0)),
            (10, Some(5.0)),
            (12, None),
            (20, Some(25.0)),
        ] {
            history.push(&usage(at, cpu));
        }
        assert_eq!(history.cpus_over(Duration::from_secs(60)), Some(1.25));
        assert_eq!(history.cpus_over(Duration::from_secs(10)), Some(2.0));
        assert_eq!(history.cpus_over(Duration::from_secs(5)), None);
    }

    #[test]
    fn a_clock_that_is_set_back_begins_anew() {
        let mut history = History::default();
        history.push(&usage(100, Some(1.0)));
        history.push(&usage(50, Some(2.0)));
        assert_eq!(history.points().count(), 1);
    }
}
