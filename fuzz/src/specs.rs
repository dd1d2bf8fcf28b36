//! The expressions that choose estimators and controllers.

use meseta_estimators::{ControllerSpec, EstimatorSpec};

/// Every body with seeds.
pub const ALL: &[(&str, fn(&[u8]), &[&[u8]])] = &[(
    "module_specs",
    module_specs,
    &[
        b"noop",
        b"fixed(resources=cpus:4;mem:512)",
        b"threshold(load_threshold_5min=4)",
        b"slack",
        b"max(fixed(resources=cpus:1),slack)",
        b"((((((((",
    ],
)];

/// Expressions are read or refused, however deep they go.
pub fn module_specs(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let _refused = EstimatorSpec::parse(text).map_err(|error| error.to_string());
    let _refused = ControllerSpec::parse(text).map_err(|error| error.to_string());
}
