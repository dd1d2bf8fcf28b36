//! The controller that never corrects anything.

use crate::config::Reader;
use crate::{Assessment, ConfigError, Parameters, QosController, UsageSample};

#[derive(Clone, Copy, Debug, Default)]
pub struct NoopController;

impl NoopController {
    pub(crate) const NAME: &'static str = "noop";

    /// # Errors
    /// When there are parameters: the controller takes none.
    pub fn new(parameters: &Parameters) -> Result<Self, ConfigError> {
        Reader::new(Self::NAME, parameters)?.finish()?;
        Ok(Self)
    }
}

impl QosController for NoopController {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn assess(&mut self, _: &UsageSample) -> Assessment {
        Assessment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrects_nothing() {
        let mut controller = NoopController::new(&Parameters::default()).unwrap();
        assert_eq!(
            controller.assess(&UsageSample::default()),
            Assessment::default()
        );
    }
}
