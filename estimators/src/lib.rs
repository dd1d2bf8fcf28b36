//! Resource estimators and QoS controllers: how much allocated but unused capacity to oversubscribe, and how to take it back
//! under pressure.
//!
//! Both are functions of [`UsageSample`]s, built from names and parameters by [`spec`], and rated on recorded usage by
//! [`replay`]. Invariant: no clock, no input or output, no randomness; the samples, in their order, decide everything here.
//! An unreadable value is `None`, and a `None` never oversubscribes more and never kills.

pub mod config;
pub mod estimator;
mod histogram;
mod numbers;
pub mod qos;
mod rates;
pub mod replay;
mod revocable;
mod sample;
pub mod spec;

pub use config::{ConfigError, ModuleParameters, Parameters};
pub use estimator::{CheckpointError, Estimate, Forecast, Gate, ResourceEstimator};
pub use qos::{
    Action, Assessment, Correction, DetectorReading, Explanation, Level, QosController, Throttle,
    Unit,
};
pub use sample::{
    ContainerUsage, ExecutorKey, HostMemory, HostUsage, LoadAverage, Pressure, UsageSample,
};
pub use spec::{ControllerSpec, EstimatorSpec};

#[cfg(test)]
mod properties;
#[cfg(test)]
mod testing;
