//! The CPU usage of containers over the last minute.
//!
//! A ring of a fixed length for each container. Pure. Invariant: points are in order of time; a value missing in a
//! sample is missing here.

use std::collections::VecDeque;
use std::time::Duration;

use meseta_isolators::ContainerUsage;

/// Points of one container: a minute at one sample a second.
const HISTORY_POINTS_MAX: usize = 60;

/// A container at one moment.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Point {
    /// The time of the point, since the Unix epoch.
    at: Duration,
    /// User and system time together, since the container began.
    cpu_time: Option<Duration>,
}

/// The last points of one container.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    points: VecDeque<Point>,
}

impl History {
    /// Adds a sample; the oldest point is dropped at [`HISTORY_POINTS_MAX`]. A clock set back clears the history.
    pub(super) fn push(&mut self, usage: &ContainerUsage) {
        let at = usage.timestamp;
        if self.points.back().is_some_and(|last| last.at > at) {
            self.points.clear();
        }
        if self.points.len() >= HISTORY_POINTS_MAX {
            self.points.pop_front();
        }
        let cpu_secs = usage.cpu.user_secs.zip(usage.cpu.system_secs);
        let cpu_time =
            cpu_secs.and_then(|(user, system)| Duration::try_from_secs_f64(user + system).ok());
        self.points.push_back(Point { at, cpu_time });
    }

    /// Processors used on average between the oldest and the newest point of the last `window` with a CPU time; `None`
    /// with fewer than two such points.
    pub(super) fn cpus_over(&self, window: Duration) -> Option<f64> {
        let since = self.points.back()?.at.saturating_sub(window);
        let mut timed = self
            .points
            .iter()
            .filter(|point| point.at >= since)
            .filter_map(|point| Some((point.at, point.cpu_time?)));
        let first = timed.next()?;
        let last = timed.next_back()?;
        let elapsed = last.0.checked_sub(first.0)?.as_secs_f64();
        let used = last.1.checked_sub(first.1)?.as_secs_f64();
        (elapsed > 0.0).then(|| used / elapsed)
    }
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
        usage
    }

    #[test]
    fn oldest_point_goes_absent_stays_absent() {
        let mut history = History::default();
        for at in 0..100 {
            history.push(&usage(at, (at != 50).then_some(1.0)));
        }
        let points = &history.points;
        assert_eq!(points.len(), HISTORY_POINTS_MAX);
        assert_eq!(points[0].at, Duration::from_secs(40));
        assert_eq!(points[10].cpu_time, None);
        assert_eq!(points[11].cpu_time, Some(Duration::from_secs(1)));
    }

    #[test]
    fn rates_use_known_points() {
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
    fn clock_set_back_restarts_history() {
        let mut history = History::default();
        history.push(&usage(100, Some(1.0)));
        history.push(&usage(50, Some(2.0)));
        assert_eq!(history.points.len(), 1);
    }
}
