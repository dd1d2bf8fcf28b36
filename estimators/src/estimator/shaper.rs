//! Rate limiter of the reported total: down at once, up slowly, in coarse steps, behind a gate.
//!
//! Invariant: the reported total is never more than the request of the same sample, and never grows in a sample that forbids
//! growth.

use std::time::Duration;

use meseta_resources::Moment;

use crate::Gate;
use crate::config::{ConfigError, Reader};

/// The caps and the ramp, in shares of the capacity.
#[derive(Clone, Debug, PartialEq)]
pub struct ShaperConfig {
    /// `utilization_cap`: the upper limit on regular, system and revocable work together. Default: 0.90.
    pub utilization_cap: f64,
    /// `offer_cap`: the upper limit on oversubscribed resources. Default: 0.80.
    pub offer_cap: f64,
    /// `growth`: the maximum growth per `growth_interval`. Defaults: 0.10 per 15 s.
    pub growth: f64,
    pub growth_interval: Duration,
    /// `reopen_after`: the time without a stop signal of any detector before offers resume. Default: 45 s.
    pub reopen_after: Duration,
}

impl Default for ShaperConfig {
    fn default() -> Self {
        Self {
            utilization_cap: 0.90,
            offer_cap: 0.80,
            growth: 0.10,
            growth_interval: Duration::from_secs(15),
            reopen_after: Duration::from_secs(45),
        }
    }
}

impl ShaperConfig {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, ConfigError> {
        let mut config = Self::default();
        reader.share("utilization_cap", &mut config.utilization_cap)?;
        reader.share("offer_cap", &mut config.offer_cap)?;
        reader.share("growth", &mut config.growth)?;
        let second = Duration::from_secs(1);
        reader.duration("growth_interval", second, &mut config.growth_interval)?;
        reader.duration("reopen_after", Duration::ZERO, &mut config.reopen_after)?;
        Ok(config)
    }
}

/// Requested total of one sample.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShapeRequest {
    pub(super) at: Moment,
    pub(super) total: f64,
    pub(super) capacity: f64,
    /// The smallest reported step.
    pub(super) quantum: f64,
    /// Whether everything needed to oversubscribe more could be read.
    pub(super) may_grow: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Shaper {
    config: ShaperConfig,
    last: Option<Moment>,
    level: f64,
    reported: f64,
    closed_until: Option<Moment>,
}

impl Shaper {
    pub(super) const fn new(config: ShaperConfig) -> Self {
        Self {
            config,
            last: None,
            level: 0.0,
            reported: 0.0,
            closed_until: None,
        }
    }

    pub(super) const fn config(&self) -> &ShaperConfig {
        &self.config
    }

    pub(super) const fn reported(&self) -> f64 {
        self.reported
    }

    /// Records the state of the gate; returns whether it is still shut.
    pub(super) fn gate(&mut self, at: Moment, gate: Gate) -> bool {
        if gate == Gate::Closed {
            let until = at + self.config.reopen_after;
            self.closed_until = Some(self.closed_until.map_or(until, |known| known.max(until)));
        }
        let shut = gate == Gate::Closed || self.closed_until.is_some_and(|until| at < until);
        if shut {
            self.level = 0.0;
            self.reported = 0.0;
        }
        shut
    }

    /// The total to report while the gate is open.
    pub(super) fn shape(&mut self, request: ShapeRequest) -> f64 {
        let elapsed = self
            .last
            .map_or(Duration::ZERO, |last| request.at.saturating_since(last));
        self.last = Some(request.at);
        let steps = elapsed.as_secs_f64() / self.config.growth_interval.as_secs_f64();
        let growth = self.config.growth * request.capacity * steps;
        // A requested total that is not a number is ignored.
        let total = if request.total > 0.0 {
            request.total
        } else {
            0.0
        };
        self.level = if total <= self.level {
            total
        } else if request.may_grow {
            total.min(self.level + growth)
        } else {
            self.level
        };
        let rounded = (self.level / request.quantum + 1e-9).floor() * request.quantum;
        let deadband = request.quantum.max(0.01 * request.capacity);
        if self.level < self.reported || rounded >= self.reported + deadband - 1e-9 {
            self.reported = rounded.min(self.level);
        }
        self.reported
    }

    /// Skips the passed time, so that it does not count as time to grow.
    pub(super) const fn hold(&mut self, at: Moment) {
        self.last = Some(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::ORIGIN + Duration::from_secs(seconds)
    }

    fn request(seconds: u64, total: f64) -> ShapeRequest {
        ShapeRequest {
            at: at(seconds),
            total,
            capacity: 10.0,
            quantum: 0.1,
            may_grow: true,
        }
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-6
    }

    #[test]
    fn grows_by_tenth_within_fifteen_seconds() {
        let mut shaper = Shaper::new(ShaperConfig::default());
        assert!(close(shaper.shape(request(0, 5.0)), 0.0));
        assert!(close(shaper.shape(request(15, 5.0)), 1.0));
        assert!(close(shaper.shape(request(30, 5.0)), 2.0));
        assert!(close(shaper.shape(request(300, 5.0)), 5.0));
    }

    #[test]
    fn falls_at_once() {
        let mut shaper = Shaper::new(ShaperConfig::default());
        shaper.shape(request(0, 5.0));
        shaper.shape(request(100, 5.0));
        assert!(close(shaper.shape(request(101, 0.55)), 0.5));
    }

    #[test]
    fn ignores_small_increases_but_no_decrease() {
        let mut shaper = Shaper::new(ShaperConfig::default());
        shaper.shape(request(0, 5.0));
        assert!(close(shaper.shape(request(100, 5.0)), 5.0));
        assert!(close(shaper.shape(request(200, 5.09)), 5.0));
        assert!(close(shaper.shape(request(300, 5.1)), 5.1));
        assert!(close(shaper.shape(request(301, 5.05)), 5.0));
    }

    #[test]
    fn does_not_grow_on_unreadable_usage() {
        let mut shaper = Shaper::new(ShaperConfig::default());
        shaper.shape(request(0, 5.0));
        shaper.shape(request(15, 5.0));
        let blind = ShapeRequest {
            may_grow: false,
            ..request(600, 5.0)
        };
        assert!(close(shaper.shape(blind), 1.0));
        assert!(close(
            shaper.shape(ShapeRequest {
                total: f64::NAN,
                ..request(700, 0.0)
            }),
            0.0
        ));
    }

    #[test]
    fn reopens_three_intervals_after_last_stop() {
        let mut shaper = Shaper::new(ShaperConfig::default());
        assert!(shaper.gate(at(0), Gate::Closed));
        assert!(shaper.gate(at(44), Gate::Open));
        assert!(!shaper.gate(at(45), Gate::Open));
        assert!(shaper.gate(at(46), Gate::Closed));
        assert!(shaper.gate(at(90), Gate::Open));
        assert!(!shaper.gate(at(91), Gate::Open));
    }
}
