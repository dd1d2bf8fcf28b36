//! Mesos's load controller: kills every revocable executor at once when the machine is loaded.
//!
//! A load counts as over only if it is strictly greater than the threshold; thresholds are absolute, not by processor; the
//! load of one minute is ignored. An extension, off by default: with `nested`, a longer average counts only while the shorter
//! ones are over its threshold too, because load averages fall slowly.

use crate::config::Reader;
use crate::{
    Action, Assessment, ConfigError, Correction, DetectorReading, Explanation, Level, LoadAverage,
    Parameters, QosController, Unit, UsageSample,
};

/// The parameters of the controller: each field has the name of its parameter. At least one threshold is required.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadConfig {
    pub load_threshold_5min: Option<f64>,
    pub load_threshold_15min: Option<f64>,
    /// Whether a longer average counts only while the shorter ones are over their thresholds too; false by default.
    pub nested: bool,
}

impl LoadConfig {
    /// # Errors
    /// When a parameter is unknown or its value invalid, or no threshold is set.
    pub fn read(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(LoadController::NAME, parameters)?;
        let mut config = Self {
            load_threshold_5min: reader.number_opt("load_threshold_5min", 0.0..=f64::MAX)?,
            load_threshold_15min: reader.number_opt("load_threshold_15min", 0.0..=f64::MAX)?,
            nested: false,
        };
        reader.flag("nested", &mut config.nested)?;
        reader.finish()?;
        if config.load_threshold_5min.is_none() && config.load_threshold_15min.is_none() {
            return Err(ConfigError::Missing {
                module: LoadController::NAME,
                key: "load_threshold_5min",
                help: "give load_threshold_5min or load_threshold_15min, or both",
            });
        }
        Ok(config)
    }
}

#[derive(Clone, Debug)]
pub struct LoadController {
    config: LoadConfig,
}

impl LoadController {
    pub(crate) const NAME: &'static str = "load";

    #[must_use]
    pub const fn new(config: LoadConfig) -> Self {
        Self { config }
    }

    fn readings(&self, load: LoadAverage) -> Vec<(DetectorReading, Option<Explanation>)> {
        let nested = self.config.nested;
        let shorter = |threshold: f64, averages: &[f64]| {
            !nested || averages.iter().all(|average| *average > threshold)
        };
        let five = self.config.load_threshold_5min.map(|threshold| {
            (
                "load-5min",
                load.five,
                threshold,
                shorter(threshold, &[load.one]),
            )
        });
        let fifteen = self.config.load_threshold_15min.map(|threshold| {
            (
                "load-15min",
                load.fifteen,
                threshold,
                shorter(threshold, &[load.one, load.five]),
            )
        });
        let read = |(detector, value, threshold, counts): (&'static str, f64, f64, bool)| {
            // NaN is not greater than any threshold.
            let over = value > threshold && counts;
            let level = if over { Level::Kill } else { Level::Clear };
            let why = over.then(|| Explanation::over(detector, value, threshold, Unit::Load));
            (
                DetectorReading {
                    detector,
                    value: value.is_finite().then_some(value),
                    level,
                },
                why,
            )
        };
        five.into_iter().chain(fifteen).map(read).collect()
    }
}

impl QosController for LoadController {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn assess(&mut self, sample: &UsageSample) -> Assessment {
        let Some(load) = sample.host.load else {
            return Assessment::default();
        };
        let readings = self.readings(load);
        let why = readings.iter().find_map(|(_, why)| why.clone());
        let corrections = why.into_iter().flat_map(|why| {
            let revocable = sample.revocable();
            revocable.map(move |container| Correction {
                // As in Mesos, the correction names the executor and not its container.
                container: None,
                ..Correction::from_container(container, Action::Kill, why.clone())
            })
        });
        Assessment {
            corrections: corrections.collect(),
            readings: readings.iter().map(|(reading, _)| *reading).collect(),
            ..Assessment::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{container, resources, revocable_cpus};

    fn load(pairs: &[(&str, &str)]) -> LoadController {
        LoadController::new(LoadConfig::read(&pairs.iter().copied().collect()).unwrap())
    }

    /// Two regular executors, one of them partly revocable, and a wholly revocable one.
    fn sample(one: f64, five: f64, fifteen: f64) -> UsageSample {
        let mut sample = UsageSample::default();
        sample.host.load = Some(LoadAverage { one, five, fifteen });
        sample.containers = vec![
            container("f", "regular", &resources("cpus:1;mem:32")),
            container("f", "mixed", &(resources("mem:32") + revocable_cpus("0.5"))),
            container("g", "revocable", &revocable_cpus("2")),
        ];
        sample
    }

    fn killed(controller: &mut LoadController, sample: &UsageSample) -> Vec<String> {
        let assessment = controller.assess(sample);
        assert!(assessment.stop_offering.is_none() && assessment.throttle.is_none());
        let kills = assessment.corrections.iter();
        kills
            .map(|correction| {
                assert_eq!(correction.action, Action::Kill);
                correction.executor.to_string()
            })
            .collect()
    }

    /// Corresponds to Mesos's OversubscriptionTest.LoadQoSController.
    #[test]
    fn kills_all_revocable_over_threshold() {
        let mut controller = load(&[("load_threshold_5min", "7"), ("load_threshold_15min", "6")]);
        assert!(killed(&mut controller, &sample(8.0, 6.8, 5.8)).is_empty());
        assert_eq!(
            killed(&mut controller, &sample(0.0, 7.2, 5.8)),
            ["mixed", "revocable"]
        );
        assert_eq!(
            killed(&mut controller, &sample(0.0, 0.0, 6.1)),
            ["mixed", "revocable"]
        );
    }

    #[test]
    fn load_at_threshold_kills_nothing() {
        let mut controller = load(&[("load_threshold_5min", "6"), ("load_threshold_15min", "4")]);
        assert!(killed(&mut controller, &sample(100.0, 6.0, 4.0)).is_empty());
        assert_eq!(killed(&mut controller, &sample(0.0, 6.001, 0.0)).len(), 2);
    }

    #[test]
    fn unreadable_load_kills_nothing() {
        let mut controller = load(&[("load_threshold_5min", "0")]);
        let mut unreadable = sample(9.0, 9.0, 9.0);
        unreadable.host.load = None;
        assert!(killed(&mut controller, &unreadable).is_empty());
        assert!(killed(&mut controller, &sample(f64::NAN, f64::NAN, f64::NAN)).is_empty());
    }

    #[test]
    fn nested_loads_require_shorter_loads_exceeded() {
        let thresholds = [("load_threshold_5min", "6"), ("load_threshold_15min", "4")];
        let mut nested = load(&[thresholds[0], thresholds[1], ("nested", "true")]);
        assert!(killed(&mut nested, &sample(1.0, 7.0, 0.0)).is_empty());
        assert_eq!(killed(&mut nested, &sample(6.5, 7.0, 0.0)).len(), 2);
        assert!(killed(&mut nested, &sample(5.0, 3.0, 9.0)).is_empty());
        assert_eq!(killed(&mut nested, &sample(5.0, 5.0, 9.0)).len(), 2);
    }

    #[test]
    fn says_why_and_means_the_executor() {
        let mut controller = load(&[("load_threshold_5min", "7")]);
        let assessment = controller.assess(&sample(0.0, 7.2, 0.0));
        let correction = &assessment.corrections[0];
        assert_eq!(correction.container, None);
        assert_eq!(
            correction.why.to_string(),
            "load-5min is 7.200, limit 7.000"
        );
        assert_eq!(assessment.readings[0].level, Level::Kill);
    }

    #[test]
    fn defaults_and_bad_parameters() {
        let config = LoadConfig::read(&[("load_threshold_15min", "4")].into_iter().collect());
        let expected = LoadConfig {
            load_threshold_15min: Some(4.0),
            ..LoadConfig::default()
        };
        assert_eq!(config.unwrap(), expected);
        assert!(!LoadConfig::default().nested);
        let missing = LoadConfig::read(&Parameters::default()).unwrap_err();
        assert!(matches!(missing, ConfigError::Missing { .. }), "{missing}");
        for text in ["-1", "nan", "inf", "", "six"] {
            let parameters = [("load_threshold_5min", text)].into_iter().collect();
            let error = LoadConfig::read(&parameters).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{text}: {error}"
            );
        }
        let typo = [("load_treshold_5min", "6")].into_iter().collect();
        let error = LoadConfig::read(&typo).unwrap_err().to_string();
        assert!(
            error.contains("did you mean \"load_threshold_5min\"?"),
            "{error}"
        );
    }
}
