//! The expressions that choose estimators and controllers.

use meseta_estimators::{ControllerSpec, EstimatorSpec};

/// Expressions are parsed or refused at any depth.
pub fn module_specs(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _refused = EstimatorSpec::parse(text).map_err(|error| error.to_string());
    let _refused = ControllerSpec::parse(text).map_err(|error| error.to_string());
}
