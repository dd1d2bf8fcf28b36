//! Best-effort satisfaction: the share of its allocation that the throttle leaves to revocable work.
//!
//! Killing work far below its request is better than starving it, so that the rest makes progress. Invariant: only work that
//! was starved over the whole window, and still is, can be killed.

use std::collections::VecDeque;
use std::time::Duration;

use meseta_resources::Moment;

use super::PressureConfig;
use super::detector::Need;
use crate::{DetectorReading, Explanation, Level, Unit};

const NAME: &str = "be-satisfaction";
/// The maximum number of points in a window.
const POINTS_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Satisfaction {
    lower: f64,
    upper: f64,
    used_share: f64,
    window: Duration,
    gap_max: Duration,
    /// The points since the container has been starved without a break; all but one of those before the window are dropped.
    points: VecDeque<(Moment, f64)>,
    now: Option<Now>,
}

#[derive(Clone, Copy, Debug)]
struct Now {
    at: Moment,
    satisfaction: f64,
    requested: f64,
}

impl Satisfaction {
    pub(super) const fn new(config: &PressureConfig) -> Self {
        Self {
            lower: config.satisfaction_lower,
            upper: config.satisfaction_upper,
            used_share: config.satisfaction_use,
            window: config.satisfaction_window,
            gap_max: config.stale_after,
            points: VecDeque::new(),
            now: None,
        }
    }

    pub(super) fn observe(
        &mut self,
        at: Moment,
        quota: Option<f64>,
        requested: f64,
        used: Option<f64>,
    ) {
        self.now = None;
        let Some(used) = used else {
            self.points.clear();
            return;
        };
        let satisfaction = match quota {
            Some(quota) if requested > 0.0 => (quota / requested).min(1.0),
            _ => 1.0,
        };
        self.now = Some(Now {
            at,
            satisfaction,
            requested,
        });
        let starved =
            quota.is_some_and(|quota| used >= self.used_share * quota) && satisfaction < self.upper;
        let last = self.points.back().map(|(last, _)| *last);
        let gap = last.is_some_and(|last| at.saturating_since(last) > self.gap_max);
        if !starved || gap {
            self.points.clear();
        }
        let spacing = self.window / u32::try_from(POINTS_MAX - 4).unwrap_or(u32::MAX);
        let due = self
            .points
            .back()
            .is_none_or(|(last, _)| at.saturating_since(*last) >= spacing);
        if starved && due {
            self.points.push_back((at, satisfaction));
        }
        while let Some((second, _)) = self.points.get(1)
            && (at.saturating_since(*second) >= self.window || self.points.len() > POINTS_MAX)
        {
            self.points.pop_front();
        }
    }

    pub(super) fn reading(&self) -> DetectorReading {
        let value = self.now.map(|now| now.satisfaction);
        let level = match value {
            Some(value) if value < self.lower && !self.points.is_empty() => Level::Kill,
            _ => Level::Clear,
        };
        DetectorReading {
            detector: NAME,
            value,
            level,
        }
    }

    pub(super) fn kill(&self, at: Moment) -> Option<Need> {
        let now = self.now.filter(|now| now.at == at)?;
        let held = at.saturating_since(self.points.front()?.0);
        let count = f64::from(u32::try_from(self.points.len()).ok()?);
        let average = self.points.iter().map(|(_, value)| value).sum::<f64>() / count;
        let better = average.max(now.satisfaction);
        if held < self.window || better >= self.lower {
            return None;
        }
        let why = Explanation::over(NAME, better, self.lower, Unit::Share);
        // The higher satisfaction of both, which has the smaller gap.
        let gap = now.requested * (self.upper - better);
        Some(Need::requests(Explanation { held, ..why }, gap))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// The need after these seconds, in which revocable work with a request of four cpus used all of its quota.
    fn starved(satisfaction: &mut Satisfaction, seconds: Range<u64>, quota: f64) -> Option<Need> {
        let mut need = None;
        for second in seconds {
            let at = Moment::ORIGIN + Duration::from_secs(second);
            satisfaction.observe(at, Some(quota), 4.0, Some(quota));
            need = satisfaction.kill(at);
        }
        need
    }

    #[test]
    fn satisfied_executor_survives_earlier_starvation() {
        let mut satisfaction = Satisfaction::new(&PressureConfig::default());
        assert!(starved(&mut satisfaction, 0..60, 1.0).is_none());
        let need = starved(&mut satisfaction, 60..61, 1.0).unwrap();
        // The gap from a quarter of the request up to 0.6 of it.
        assert!((need.gap.unwrap() - 1.4).abs() < 1e-9, "{need:?}");
        // A half is above the 0.4 of a kill, and below the 0.6 that ends the minute.
        assert!(starved(&mut satisfaction, 61..62, 2.0).is_none());
        assert!(starved(&mut satisfaction, 62..63, 1.0).is_some());
    }
}
