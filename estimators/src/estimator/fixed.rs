//! Mesos's fixed estimator: a constant total, independent of the measurements.
//!
//! The estimate is the configured resources minus the revocable allocations, so that the total which the agent reports
//! (allocated and free) stays the same.

use meseta_resources::Resources;

use crate::{
    ConfigError, Estimate, Gate, Parameters, ResourceEstimator, UsageSample, config::Reader,
};

#[derive(Clone, Debug)]
pub struct Fixed {
    total: Resources,
}

impl Fixed {
    pub(crate) const NAME: &'static str = "fixed";

    /// Takes the required parameter `resources`.
    ///
    /// # Errors
    /// When `resources` is missing or invalid, or there is another parameter.
    pub fn new(parameters: &Parameters) -> Result<Self, ConfigError> {
        let mut reader = Reader::new(Self::NAME, parameters)?;
        let total = reader.resources_opt("resources")?;
        reader.finish()?;
        let total = total.ok_or(ConfigError::Missing {
            module: Self::NAME,
            key: "resources",
            help: "give the resources to offer as revocable, such as cpus:14",
        })?;
        Ok(Self { total })
    }
}

/// The rest of a constant total. Allocations count alike with and without a role.
pub(super) fn rest(total: &Resources, sample: &UsageSample) -> Resources {
    total - &sample.allocated_revocable()
}

impl ResourceEstimator for Fixed {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn estimate(&mut self, sample: &UsageSample, gate: Gate) -> Estimate {
        match gate {
            Gate::Open => Estimate::from_oversubscribable(rest(&self.total, sample)),
            // Mesos's own controller never closes the gate, so this never happens with it.
            Gate::Closed => Estimate::nothing("a detector has demanded a stop"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{container, revocable_cpus};

    fn fixed(text: &str) -> Result<Fixed, ConfigError> {
        Fixed::new(&[("resources", text)].into_iter().collect())
    }

    /// Corresponds to Mesos's OversubscriptionTest.FixedResourceEstimator.
    #[test]
    fn total_includes_oversubscribed_resources_in_use() {
        let mut estimator = fixed("cpus(*):2").unwrap();
        let idle = estimator.estimate(&UsageSample::default(), Gate::Open);
        assert_eq!(idle.oversubscribable, Some(revocable_cpus("2")));

        let busy = UsageSample {
            containers: vec![container("f", "e", &revocable_cpus("1"))],
            ..UsageSample::default()
        };
        let free = estimator
            .estimate(&busy, Gate::Open)
            .oversubscribable
            .unwrap();
        assert_eq!(free, revocable_cpus("1"));
        assert_eq!(free + busy.allocated_revocable(), revocable_cpus("2"));
    }

    /// The documented example: 14 cpus, all of them revocable.
    #[test]
    fn everything_it_offers_is_revocable() {
        let mut estimator = fixed("cpus:14;mem:100").unwrap();
        let answer = estimator.estimate(&UsageSample::default(), Gate::Open);
        let offered = answer.oversubscribable.unwrap();
        assert_eq!(offered, offered.revocable());
        assert_eq!(offered.cpus().unwrap().to_f64(), 14.0);
    }

    #[test]
    fn an_allocation_to_a_role_counts() {
        let role = meseta_resources::Role::new("ads").unwrap();
        let held = revocable_cpus("1.5").allocate(&role);
        let sample = UsageSample {
            containers: vec![container("f", "e", &held)],
            ..UsageSample::default()
        };
        let answer = fixed("cpus:2").unwrap().estimate(&sample, Gate::Open);
        assert_eq!(answer.oversubscribable, Some(revocable_cpus("0.5")));
    }

    #[test]
    fn excess_allocation_leaves_nothing_not_less() {
        let sample = UsageSample {
            containers: vec![container("f", "e", &revocable_cpus("3"))],
            ..UsageSample::default()
        };
        let answer = fixed("cpus:2").unwrap().estimate(&sample, Gate::Open);
        assert_eq!(answer.oversubscribable, Some(Resources::new()));
    }

    #[test]
    fn unusable_resources_are_refused() {
        assert!(matches!(
            Fixed::new(&Parameters::default()),
            Err(ConfigError::Missing { .. })
        ));
        for text in ["cpus:-1", "cpus:nan", "cpus(ads):2", "nonsense"] {
            let error = fixed(text).unwrap_err();
            assert!(
                matches!(error, ConfigError::Value { .. }),
                "{text}: {error}"
            );
        }
    }
}
