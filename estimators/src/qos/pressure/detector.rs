//! A measured value with its thresholds: its level, with hysteresis, and the time for which it has been over.
//!
//! Invariant: an unreadable value leaves the level unchanged and ends the hold time, so that it neither oversubscribes more
//! nor kills.

use std::time::Duration;

use meseta_resources::Moment;

use super::victims::Candidate;
use crate::numbers::sound;
use crate::{Explanation, Level, Unit, qos::Choice};

#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    pub(super) stop: f64,
    pub(super) throttle: Option<f64>,
    pub(super) kill: f64,
    pub(super) clear: Clear,
    /// The time for which a value must be over the threshold before it kills; it stops and throttles at once.
    pub(super) hold: Duration,
    /// The longest distance of two values that still show the time between them.
    pub(super) gap_max: Duration,
}

/// The distance below a threshold at which a value leaves its level.
#[derive(Clone, Copy, Debug)]
pub(super) enum Clear {
    Below(f64),
    Half,
}

impl Thresholds {
    const fn for_level(&self, level: Level) -> Option<f64> {
        match level {
            Level::Clear => None,
            Level::Stop => Some(self.stop),
            Level::Throttle => self.throttle,
            Level::Kill => Some(self.kill),
        }
    }

    /// The highest level whose threshold the value has reached.
    fn reached(&self, value: f64) -> Level {
        let levels = [Level::Kill, Level::Throttle, Level::Stop];
        let over = |level: &Level| {
            self.for_level(*level)
                .is_some_and(|threshold| value >= threshold)
        };
        levels.into_iter().find(over).unwrap_or(Level::Clear)
    }

    fn is_cleared(&self, level: Level, value: f64) -> bool {
        self.for_level(level)
            .is_none_or(|threshold| match self.clear {
                Clear::Below(by) => value < threshold - by,
                Clear::Half => value < threshold / 2.0,
            })
    }
}

#[derive(Clone, Debug)]
pub(super) struct Detector {
    name: &'static str,
    unit: Unit,
    thresholds: Thresholds,
    value: Option<f64>,
    /// The last readable value, to explain a level that outlives it.
    known: f64,
    level: Level,
    over_since: Option<Moment>,
    seen: Option<Moment>,
}

impl Detector {
    pub(super) const fn new(name: &'static str, unit: Unit, thresholds: Thresholds) -> Self {
        let level = Level::Clear;
        Self {
            name,
            unit,
            thresholds,
            value: None,
            known: 0.0,
            level,
            over_since: None,
            seen: None,
        }
    }

    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    pub(super) const fn value(&self) -> Option<f64> {
        self.value
    }

    pub(super) const fn level(&self) -> Level {
        self.level
    }

    /// Whether the last value was readable and is below all thresholds.
    pub(super) fn is_over_nothing(&self) -> bool {
        self.value.is_some() && self.level == Level::Clear
    }

    /// Whether the detector requires no restraint.
    pub(super) fn is_calm(&self) -> bool {
        self.level < Level::Throttle
    }

    pub(super) fn observe(&mut self, at: Moment, value: Option<f64>) {
        let gap = self
            .seen
            .is_some_and(|seen| at.saturating_since(seen) > self.thresholds.gap_max);
        self.value = value.filter(|value| value.is_finite());
        let Some(value) = self.value else {
            self.over_since = None;
            return;
        };
        self.known = value;
        self.seen = Some(at);
        if gap || value < self.thresholds.kill {
            self.over_since = None;
        }
        if value >= self.thresholds.kill {
            self.over_since.get_or_insert(at);
        }
        self.settle(value, self.thresholds.reached(value));
    }

    /// Observes an upper bound of a value: it can throttle and clear, but does not kill.
    pub(super) fn observe_at_most(&mut self, at: Moment, value: f64) {
        self.over_since = None;
        self.value = sound(value);
        let Some(value) = self.value else { return };
        self.known = value;
        self.seen = Some(at);
        self.settle(value, self.thresholds.reached(value).min(Level::Throttle));
    }

    fn settle(&mut self, value: f64, reached: Level) {
        while self.level > reached && self.thresholds.is_cleared(self.level, value) {
            self.level = match self.level {
                Level::Kill => Level::Throttle,
                Level::Throttle => Level::Stop,
                Level::Stop | Level::Clear => Level::Clear,
            };
        }
        self.level = self.level.max(reached);
    }

    /// The reason to kill now, if the value has been over for long enough.
    pub(super) fn kill(&self, at: Moment) -> Option<Explanation> {
        let held = at.saturating_since(self.over_since?);
        let why = Explanation {
            held,
            ..self.explain(at, Level::Kill)
        };
        (held >= self.thresholds.hold).then_some(why)
    }

    pub(super) fn explain(&self, at: Moment, level: Level) -> Explanation {
        let threshold = self
            .thresholds
            .for_level(level)
            .unwrap_or(self.thresholds.stop);
        let held = self
            .over_since
            .map_or(Duration::ZERO, |since| at.saturating_since(since));
        Explanation {
            held,
            ..Explanation::over(self.name, self.known, threshold, self.unit)
        }
    }
}

/// An amount to be freed.
#[derive(Clone, Debug)]
pub(super) struct Need {
    pub(super) why: Explanation,
    /// The amount to free; `None` where a single victim is the only possible answer.
    pub(super) gap: Option<f64>,
    pub(super) memory: bool,
    /// Whether victims count by their requests instead of by their use.
    pub(super) requests: bool,
}

impl Need {
    pub(super) const fn cpu(why: Explanation, gap: Option<f64>) -> Self {
        Self {
            why,
            gap,
            memory: false,
            requests: false,
        }
    }

    pub(super) const fn memory(why: Explanation, gap: Option<f64>) -> Self {
        Self {
            why,
            gap,
            memory: true,
            requests: false,
        }
    }

    pub(super) const fn requests(why: Explanation, gap: f64) -> Self {
        Self {
            why,
            gap: Some(gap),
            memory: false,
            requests: true,
        }
    }

    /// Whether freezing can help: a frozen container uses no cpu, but keeps its memory and its claim.
    pub(super) const fn freezing_helps(&self) -> bool {
        !self.memory && !self.requests
    }

    pub(super) fn explain(&self, candidate: &Candidate<'_>) -> Explanation {
        let unit = if self.memory { Unit::Bytes } else { Unit::Cpus };
        Explanation {
            gap: self.gap.map(|gap| (gap, unit)),
            victim: Some(Choice {
                frees: candidate.frees,
                unit,
                rule: candidate.rule,
            }),
            ..self.why.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn detector(clear: Clear) -> Detector {
        let thresholds = Thresholds {
            stop: 0.65,
            throttle: Some(0.70),
            kill: 0.85,
            clear,
            hold: Duration::from_secs(5),
            gap_max: Duration::from_secs(60),
        };
        Detector::new("test", Unit::Share, thresholds)
    }

    fn at(seconds: u64) -> Moment {
        Moment::ORIGIN + Duration::from_secs(seconds)
    }

    #[test]
    fn level_rises_immediately_falls_with_hysteresis() {
        let mut detector = detector(Clear::Below(0.05));
        let steps = [
            (0.64, Level::Clear),
            (0.65, Level::Stop),
            (0.86, Level::Kill),
            (0.81, Level::Kill),
            (0.79, Level::Throttle),
            (0.66, Level::Throttle),
            (0.64, Level::Stop),
            (0.61, Level::Stop),
            (0.59, Level::Clear),
        ];
        for (second, (value, level)) in (0..).zip(steps) {
            detector.observe(at(second), Some(value));
            assert_eq!(detector.level(), level, "at {value}");
        }
        detector.observe(at(20), Some(0.9));
        detector.observe(at(21), Some(0.0));
        assert_eq!(detector.level(), Level::Clear, "falls through all levels");
    }

    #[test]
    fn kills_only_after_uninterrupted_hold() {
        let mut detector = detector(Clear::Half);
        detector.observe(at(0), Some(0.9));
        assert!(detector.kill(at(0)).is_none());
        detector.observe(at(4), Some(0.84));
        detector.observe(at(5), Some(0.9));
        assert!(detector.kill(at(5)).is_none());
        detector.observe(at(10), Some(0.95));
        let why = detector.kill(at(10)).unwrap();
        assert_eq!(
            (why.held, why.threshold, why.value),
            (Duration::from_secs(5), 0.85, 0.95)
        );
    }

    #[test]
    fn unreadable_value_keeps_level_ends_hold() {
        let mut detector = detector(Clear::Half);
        detector.observe(at(0), Some(0.9));
        detector.observe(at(6), None);
        assert!(detector.kill(at(6)).is_none());
        assert_eq!((detector.level(), detector.value()), (Level::Kill, None));
        detector.observe(at(7), Some(f64::NAN));
        assert_eq!(detector.level(), Level::Kill);
        detector.observe(at(8), Some(0.9));
        assert!(detector.kill(at(8)).is_none());
    }

    #[test]
    fn unwatched_time_does_not_count() {
        let mut detector = detector(Clear::Half);
        detector.observe(at(0), Some(0.9));
        detector.observe(at(61), Some(0.9));
        assert!(detector.kill(at(61)).is_none());
    }
}
