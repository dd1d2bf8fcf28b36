//! A statistical predictor of the whole node: mean use plus N deviations, as a share of the limits.
//!
//! Cheaper than [`super::Slack`] and blind to single executors; good as a second opinion in `max(slack,nsigma)`.
//! Oversubscribes cpus only. Invariant: until warm it oversubscribes nothing, and new or unreadable executors count at their
//! limit.

use std::collections::VecDeque;
use std::time::Duration;

use meseta_resources::{Moment, Resources};

use super::account::{Account, Kind, gate_is_shut};
use super::checkpoint::{Decoder, Encoder};
use super::shaper::{Shaper, ShaperConfig};
use super::slack::headroom;
use crate::config::Reader;
use crate::rates::{Meter, Reading};
use crate::{
    CheckpointError, ConfigError, Estimate, Gate, Parameters, ResourceEstimator, UsageSample,
};

const VERSION: u8 = 1;
const MINUTE: Duration = Duration::from_secs(60);
/// The number of five-minute samples in a week.
const HISTORY_MAX: u32 = 2016;

/// The parameters of the estimator: each field has the name of its parameter, including those of `caps`.
#[derive(Clone, Debug, PartialEq)]
pub struct NSigmaConfig {
    /// The number of deviations above the mean. Default: 5.
    pub n: f64,
    /// The number of remembered periods. Default: 120, which is ten hours.
    pub history: u32,
    /// The number of periods that must be known before anything is oversubscribed. Default: 24, which is two hours.
    pub warm_up: u32,
    /// The length of a period, of which the highest use is remembered. Default: 5 min.
    pub fold: Duration,
    /// The window over which use is averaged. Default: 10 s.
    pub rate_window: Duration,
    /// The age below which executors count at their limit. Default: 5 min.
    pub min_age: Duration,
    /// The age above which readings are ignored, and the longest gap of a rate. Default: 45 s.
    pub stale_after: Duration,
    /// The amount kept for the system even when it uses less. Default: 0.
    pub reserved_cpus: f64,
    pub caps: ShaperConfig,
}

impl Default for NSigmaConfig {
    fn default() -> Self {
        Self {
            n: 5.0,
            history: 120,
            warm_up: 24,
            fold: 5 * MINUTE,
            rate_window: Duration::from_secs(10),
            min_age: 5 * MINUTE,
            stale_after: Duration::from_secs(45),
            reserved_cpus: 0.0,
            caps: ShaperConfig::default(),
        }
    }
}

impl NSigmaConfig {
    /// # Errors
    /// When a parameter is unknown or its value invalid.
    pub fn read(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(NSigma::NAME, parameters)?;
        let mut config = Self {
            caps: ShaperConfig::read(&mut reader)?,
            ..Self::default()
        };
        let second = Duration::from_secs(1);
        reader.number("n", 0.0..=100.0, &mut config.n)?;
        reader.count("history", HISTORY_MAX, &mut config.history)?;
        reader.count("warm_up", HISTORY_MAX, &mut config.warm_up)?;
        reader.duration("fold", second, &mut config.fold)?;
        reader.duration("rate_window", second, &mut config.rate_window)?;
        reader.duration("min_age", Duration::ZERO, &mut config.min_age)?;
        reader.duration("stale_after", second, &mut config.stale_after)?;
        reader.number("reserved_cpus", 0.0..=f64::MAX, &mut config.reserved_cpus)?;
        reader.require(
            config.warm_up <= config.history,
            "warm_up is more than history holds",
        )?;
        reader.finish()?;
        Ok(config)
    }
}

/// The n-sigma estimator. A checkpoint is at most 16 kB.
#[derive(Clone, Debug)]
pub struct NSigma {
    config: NSigmaConfig,
    meter: Meter,
    shaper: Shaper,
    /// The highest use of each past period, as a share of the limits at that time.
    shares: VecDeque<f64>,
    highest: f64,
    fold_since: Option<Moment>,
    last: Option<Moment>,
}

impl NSigma {
    pub(crate) const NAME: &'static str = "nsigma";

    #[must_use]
    pub fn new(config: NSigmaConfig) -> Self {
        Self {
            meter: Meter::new(config.rate_window, config.stale_after),
            shaper: Shaper::new(config.caps.clone()),
            config,
            shares: VecDeque::new(),
            highest: 0.0,
            fold_since: None,
            last: None,
        }
    }

    fn learn(&mut self, now: Moment, share: f64) {
        self.highest = self.highest.max(share);
        let since = *self.fold_since.get_or_insert(now);
        if now.saturating_since(since) >= self.config.fold {
            self.shares.push_back(self.highest);
            while self.shares.len() > usize::try_from(self.config.history).unwrap_or(usize::MAX) {
                self.shares.pop_front();
            }
            self.highest = 0.0;
            self.fold_since = Some(now);
        }
    }

    /// The greatest share of the limits that regular work is expected to use soon.
    fn share(&self) -> f64 {
        mean_and_deviations(
            self.shares.iter().copied(),
            self.config.warm_up,
            self.config.n,
        )
    }
}

/// The mean plus `n` deviations, at most 1; 1 while fewer than `warm_up` periods are known.
pub(crate) fn mean_and_deviations(
    shares: impl Iterator<Item = f64> + Clone,
    warm_up: u32,
    n: f64,
) -> f64 {
    let count = u32::try_from(shares.clone().count()).unwrap_or(u32::MAX);
    if count == 0 || count < warm_up {
        return 1.0;
    }
    let mean = shares.clone().sum::<f64>() / f64::from(count);
    let variance = shares.map(|share| (share - mean).powi(2)).sum::<f64>() / f64::from(count);
    (mean + n * variance.sqrt()).min(1.0)
}

impl ResourceEstimator for NSigma {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn stale_after(&self) -> Option<Duration> {
        Some(self.meter.stale_after())
    }

    fn estimate(&mut self, sample: &UsageSample, gate: Gate) -> Estimate {
        let now = self.last.map_or(sample.at, |last| last.max(sample.at));
        let shut = gate_is_shut(&mut self.shaper, now, gate);
        let of = |total| {
            Estimate::from_oversubscribable(
                headroom(Kind::Cpus, sample, total)
                    .into_iter()
                    .collect::<Resources>(),
            )
        };
        if self.last.is_some_and(|last| sample.at <= last) {
            let mut estimate = of(self.shaper.reported());
            estimate.held_back = Some("the sample is not newer than the last sample".into());
            return estimate;
        }
        self.last = Some(now);
        self.meter.observe(sample);
        let reserved = self.config.reserved_cpus;
        let Some(account) = Account::from_kind(Kind::Cpus, sample, &self.meter, reserved) else {
            return Estimate::nothing("the capacity of cpus is unknown");
        };
        // The executors known well enough for the statistics, and those that count at their limit.
        let (mut known, mut used, mut at_limit) = (0.0, 0.0, 0.0);
        for regular in &account.regular {
            let age = regular
                .started
                .map_or(Duration::MAX, |started| now.saturating_since(started));
            match regular.used {
                Reading::Fresh(rate) | Reading::Held(rate) if age >= self.config.min_age => {
                    known += regular.limit;
                    used += rate.min(regular.limit);
                }
                _ => at_limit += regular.limit,
            }
        }
        if known > 0.0 {
            self.learn(now, used / known);
        }
        let peak = self.share() * known + at_limit;
        let forecast = match shut {
            true => account.forecast(Kind::Cpus, peak, 0.0),
            false => account.settle(Kind::Cpus, sample, peak, false, &mut self.shaper),
        };
        let mut estimate = of(forecast.total);
        estimate.forecasts.push(forecast);
        estimate.held_back = match shut {
            true => Some("a detector demands a stop, or demanded one recently".into()),
            false => account.blind().map(Into::into),
        };
        estimate
    }

    fn checkpoint(&self, _: Moment) -> Vec<u8> {
        let mut bytes = Encoder::new(VERSION);
        bytes.count(self.shares.len());
        for share in &self.shares {
            bytes.f64(*share);
        }
        bytes.finish()
    }

    fn restore(&mut self, _: Moment, bytes: &[u8]) -> Result<(), CheckpointError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut decoder = Decoder::new(VERSION, bytes)?;
        let max = usize::try_from(HISTORY_MAX).unwrap_or(usize::MAX);
        let mut shares = VecDeque::new();
        for _ in 0..decoder.count("periods", max)? {
            shares.push_back(decoder.f64("share")?);
        }
        decoder.finish()?;
        self.shares = shares;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Node;

    fn minutes(node: &mut Node, estimator: &mut NSigma, minutes: u64, used: f64) -> Estimate {
        let mut last = Estimate::default();
        for _ in 0..minutes * 6 {
            let sample = node.step(Duration::from_secs(10), &[used]);
            last = estimator.estimate(&sample, Gate::Open);
        }
        last
    }

    #[test]
    fn defaults() {
        let config = NSigmaConfig::read(&Parameters::default()).unwrap();
        assert_eq!(config, NSigmaConfig::default());
        assert_eq!((config.n, config.history, config.warm_up), (5.0, 120, 24));
        assert_eq!(
            (config.fold, config.rate_window),
            (5 * MINUTE, Duration::from_secs(10))
        );
        assert_eq!((config.min_age, config.reserved_cpus), (5 * MINUTE, 0.0));
        assert_eq!(config.stale_after, Duration::from_secs(45));
    }

    #[test]
    fn nonsensical_parameters_are_refused() {
        let error = NSigmaConfig::read(&[("history", "10")].into_iter().collect()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "nsigma: warm_up is more than history holds"
        );
        NSigmaConfig::read(&[("n", "-3")].into_iter().collect()).unwrap_err();
    }

    #[test]
    fn oversubscribes_only_after_warmup() {
        let mut node = Node::new(10, &[8.0]);
        let mut estimator = NSigma::new(NSigmaConfig::default());
        let cold = minutes(&mut node, &mut estimator, 119, 2.0);
        assert_eq!(cold.oversubscribable.unwrap(), Resources::new());
        let warm = minutes(&mut node, &mut estimator, 15, 2.0);
        // Constant use has no deviation: the peak is the mean.
        assert!((warm.forecasts[0].peak - 2.0).abs() < 1e-6, "{warm:?}");
        assert_eq!(warm.oversubscribable.unwrap().cpus().unwrap().to_f64(), 6.0);
    }

    #[test]
    fn a_checkpoint_saves_the_warm_up() {
        let mut node = Node::new(10, &[8.0]);
        let mut estimator = NSigma::new(NSigmaConfig::default());
        minutes(&mut node, &mut estimator, 140, 2.0);
        let bytes = estimator.checkpoint(Moment::ORIGIN);
        let mut restored = NSigma::new(NSigmaConfig::default());
        restored.restore(Moment::ORIGIN, &bytes).unwrap();
        assert_eq!(restored.shares, estimator.shares);
        assert!(
            restored
                .restore(Moment::ORIGIN, &bytes[..bytes.len() - 1])
                .is_err()
        );
    }
}
