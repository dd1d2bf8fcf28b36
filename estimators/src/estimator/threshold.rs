//! A fixed estimator with a gate: nothing while the host is loaded or short of memory.
//!
//! The rules are those of Blue Yonder's module: reaching a threshold is enough, a longer load average counts only if the
//! shorter ones have reached its threshold too, and an unreadable value counts as over. Invariant: without a threshold this
//! is [`super::Fixed`].

use meseta_resources::Resources;

use super::fixed::rest;
use crate::config::Reader;
use crate::{ConfigError, Estimate, Gate, LoadAverage, Parameters, ResourceEstimator, UsageSample};

const MEGABYTE: f64 = 1024.0 * 1024.0;

/// The parameters, all optional; an unset threshold is never reached.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThresholdConfig {
    /// The resources to offer, such as `cpus:16;mem:98304`. Default: nothing.
    pub resources: Resources,
    pub load_threshold_1min: Option<f64>,
    pub load_threshold_5min: Option<f64>,
    pub load_threshold_15min: Option<f64>,
    /// Memory in use, in megabytes.
    pub mem_threshold: Option<f64>,
}

impl ThresholdConfig {
    /// # Errors
    /// When a parameter is unknown or its value invalid.
    pub fn read(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(Threshold::NAME, parameters)?;
        let any = 0.0..=f64::MAX;
        let config = Self {
            resources: reader.resources_opt("resources")?.unwrap_or_default(),
            load_threshold_1min: reader.number_opt("load_threshold_1min", any.clone())?,
            load_threshold_5min: reader.number_opt("load_threshold_5min", any.clone())?,
            load_threshold_15min: reader.number_opt("load_threshold_15min", any.clone())?,
            mem_threshold: reader.number_opt("mem_threshold", any)?,
        };
        reader.finish()?;
        Ok(config)
    }
}

#[derive(Clone, Debug)]
pub struct Threshold {
    config: ThresholdConfig,
}

impl Threshold {
    pub(crate) const NAME: &'static str = "threshold";

    #[must_use]
    pub const fn new(config: ThresholdConfig) -> Self {
        Self { config }
    }

    /// The reason why nothing may be offered now, if there is one.
    fn overloaded(&self, sample: &UsageSample) -> Option<String> {
        let config = &self.config;
        let loads = [
            (1, config.load_threshold_1min),
            (5, config.load_threshold_5min),
            (15, config.load_threshold_15min),
        ];
        if loads.iter().any(|(_, threshold)| threshold.is_some()) {
            let Some(load) = sample.host.load.filter(is_sound) else {
                return Some("failed to read the load".into());
            };
            let averages = [load.one, load.five, load.fifteen];
            for (index, (minutes, threshold)) in loads.into_iter().enumerate() {
                let Some(threshold) = threshold else { continue };
                if averages
                    .iter()
                    .take(index + 1)
                    .all(|average| *average >= threshold)
                {
                    return Some(format!("the {minutes} min load has reached {threshold}"));
                }
            }
        }
        let threshold = config.mem_threshold?;
        match sample.host.memory {
            None => Some("failed to read the memory in use".into()),
            Some(memory) if used_mb(memory) >= threshold => {
                Some(format!("the memory in use has reached {threshold} MB"))
            }
            Some(_) => None,
        }
    }
}

fn used_mb(memory: crate::HostMemory) -> f64 {
    crate::numbers::bytes(memory.used_bytes()) / MEGABYTE
}

const fn is_sound(load: &LoadAverage) -> bool {
    load.one.is_finite() && load.five.is_finite() && load.fifteen.is_finite()
}

impl ResourceEstimator for Threshold {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn estimate(&mut self, sample: &UsageSample, gate: Gate) -> Estimate {
        if gate == Gate::Closed {
            return Estimate::nothing("a detector has demanded a stop");
        }
        match self.overloaded(sample) {
            Some(because) => Estimate::nothing(&because),
            None => Estimate::from_oversubscribable(rest(&self.config.resources, sample)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HostMemory;
    use crate::testing::revocable_cpus;

    fn threshold(pairs: &[(&str, &str)]) -> Threshold {
        let parameters = pairs.iter().copied().collect();
        Threshold::new(ThresholdConfig::read(&parameters).unwrap())
    }

    fn offered(estimator: &mut Threshold, load: Option<(f64, f64, f64)>) -> Resources {
        let mut sample = UsageSample::default();
        sample.host.load = load.map(|(one, five, fifteen)| LoadAverage { one, five, fifteen });
        estimator
            .estimate(&sample, Gate::Open)
            .oversubscribable
            .unwrap()
    }

    #[test]
    fn defaults_offer_nothing_without_thresholds() {
        let config = ThresholdConfig::read(&Parameters::default()).unwrap();
        assert_eq!(config, ThresholdConfig::default());
        assert!(config.resources.is_empty());
        assert_eq!(config.load_threshold_1min, None);
        assert_eq!(config.load_threshold_5min, None);
        assert_eq!(config.load_threshold_15min, None);
        assert_eq!(config.mem_threshold, None);
    }

    #[test]
    fn longer_loads_require_shorter_loads_exceeded() {
        let mut estimator = threshold(&[
            ("resources", "cpus:2"),
            ("load_threshold_1min", "8"),
            ("load_threshold_5min", "6"),
            ("load_threshold_15min", "4"),
        ]);
        let all = revocable_cpus("2");
        let none = Resources::new();
        assert_eq!(offered(&mut estimator, Some((3.9, 3.9, 3.9))), all);
        assert_eq!(offered(&mut estimator, Some((8.0, 0.0, 0.0))), none);
        assert_eq!(offered(&mut estimator, Some((6.0, 6.0, 0.0))), none);
        assert_eq!(offered(&mut estimator, Some((5.9, 7.0, 0.0))), all);
        assert_eq!(offered(&mut estimator, Some((4.0, 4.0, 4.0))), none);
        assert_eq!(offered(&mut estimator, Some((3.0, 5.0, 9.0))), all);
    }

    #[test]
    fn unreadable_value_counts_as_exceeded() {
        let mut load = threshold(&[("resources", "cpus:2"), ("load_threshold_5min", "6")]);
        assert!(offered(&mut load, None).is_empty());
        assert!(offered(&mut load, Some((f64::NAN, 0.0, 0.0))).is_empty());
        let mut memory = threshold(&[("resources", "cpus:2"), ("mem_threshold", "100")]);
        assert!(offered(&mut memory, Some((0.0, 0.0, 0.0))).is_empty());
    }

    #[test]
    fn memory_in_use_closes_it() {
        let mut estimator = threshold(&[("resources", "cpus:2"), ("mem_threshold", "100")]);
        let mut at = |available_mb: u64| {
            let mut sample = UsageSample::default();
            sample.host.memory = Some(HostMemory {
                total_bytes: 200 << 20,
                available_bytes: available_mb << 20,
            });
            estimator
                .estimate(&sample, Gate::Open)
                .oversubscribable
                .unwrap()
                .is_empty()
        };
        assert!(at(100));
        assert!(!at(101));
    }

    #[test]
    fn negative_and_undefined_thresholds_are_refused() {
        let of_load = ["-1", "NaN", "inf", "x", ""].map(|text| ("load_threshold_5min", text));
        for (key, text) in of_load.into_iter().chain([("mem_threshold", "-1")]) {
            let parameters = [(key, text)].into_iter().collect();
            let error = ThresholdConfig::read(&parameters).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{text}: {error}"
            );
        }
    }
}
