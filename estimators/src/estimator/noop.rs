//! The estimator without answers, so that nothing is ever oversubscribed.

use crate::{
    ConfigError, Estimate, Gate, Parameters, ResourceEstimator, UsageSample, config::Reader,
};

#[derive(Clone, Copy, Debug, Default)]
pub struct Noop;

impl Noop {
    pub(crate) const NAME: &'static str = "noop";

    /// # Errors
    /// When there are parameters: the estimator takes none.
    pub fn new(parameters: &Parameters) -> Result<Self, ConfigError> {
        Reader::new(Self::NAME, parameters)?.finish()?;
        Ok(Self)
    }
}

impl ResourceEstimator for Noop {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn estimate(&mut self, _: &UsageSample, _: Gate) -> Estimate {
        Estimate::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noop_gives_no_estimate() {
        let answer = Noop.estimate(&UsageSample::default(), Gate::Open);
        assert_eq!(answer.oversubscribable, None);
    }

    #[test]
    fn takes_no_parameters() {
        let error = Noop::new(&[("resources", "cpus:1")].into_iter().collect()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "noop: unknown parameter \"resources\"; known are none"
        );
    }
}
