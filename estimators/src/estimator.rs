//! The contract of resource estimators, and the built-in ones.
//!
//! The agent calls [`ResourceEstimator::estimate`] once for each sample. Invariant: an estimate is revocable resources only,
//! finite and not negative, on top of the present revocable allocations.

use std::fmt;
use std::time::Duration;

use meseta_resources::{Moment, Resources};

use crate::UsageSample;

mod account;
mod checkpoint;
mod crowd;
mod fixed;
mod forecaster;
mod max;
mod noop;
mod nsigma;
mod shaper;
mod slack;
mod threshold;

pub use fixed::Fixed;
pub use max::{MEMBERS_MAX, Max};
pub use noop::Noop;
pub use nsigma::{NSigma, NSigmaConfig};
pub use shaper::ShaperConfig;
pub use slack::{Slack, SlackConfig};
pub use threshold::{Threshold, ThresholdConfig};

/// The decision of the node's controller whether anything may be oversubscribed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Gate {
    #[default]
    Open,
    /// A detector signals stop: nothing is oversubscribed until it has been quiet for a while.
    Closed,
}

/// Decides how much can be oversubscribed beyond the present revocable allocations.
pub trait ResourceEstimator: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Takes each sample once, in order of time. A sample that is not younger than the last one teaches nothing and
    /// oversubscribes no more than before.
    fn estimate(&mut self, sample: &UsageSample, gate: Gate) -> Estimate;

    /// The longest distance of two samples that still show the use between them; `None` if any distance will do.
    fn stale_after(&self) -> Option<Duration> {
        None
    }

    /// The learned state for [`ResourceEstimator::restore`] after a restart; empty if the estimator never learns. Bounded: see
    /// each estimator.
    fn checkpoint(&self, now: Moment) -> Vec<u8> {
        let _ = now;
        Vec::new()
    }

    /// Restores the learned state of an earlier run. `now` may be on another clock than that of the checkpoint, which holds only
    /// ages.
    ///
    /// # Errors
    /// When the bytes are not a checkpoint of this estimator, which then keeps its present state.
    fn restore(&mut self, now: Moment, bytes: &[u8]) -> Result<(), CheckpointError> {
        let _ = now;
        if bytes.is_empty() {
            Ok(())
        } else {
            Err(CheckpointError::Unexpected(self.name()))
        }
    }
}

/// An answer to one sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The resources that can be offered in addition to the present revocable allocations; `None` if the estimator has no answer,
    /// and the previous one stays.
    pub oversubscribable: Option<Resources>,
    /// The derivation of the estimate, for each measured resource; for metrics and replays.
    pub forecasts: Vec<Forecast>,
    /// The reason why the estimate is lower than possible; `None` if nothing is held back.
    pub held_back: Option<String>,
}

impl Estimate {
    pub(crate) fn from_oversubscribable(oversubscribable: Resources) -> Self {
        Self {
            oversubscribable: Some(oversubscribable),
            ..Self::default()
        }
    }

    pub(crate) fn nothing(because: &str) -> Self {
        Self {
            oversubscribable: Some(Resources::new()),
            forecasts: Vec::new(),
            held_back: Some(because.to_owned()),
        }
    }
}

/// The computation for one resource: cpus, or megabytes of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    pub resource: &'static str,
    pub capacity: f64,
    /// The resources allocated to regular work.
    pub promised: f64,
    /// The use of regular work at the last sample.
    pub used: f64,
    /// The maximum use of regular work expected in the near future: the predictor, before any cap.
    pub peak: f64,
    /// All resources that may be oversubscribed, including those already in use: after caps, gate, ramp and rounding.
    pub total: f64,
}

/// Errors of restoring a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    #[error("the estimator {0} has no state to restore from a checkpoint")]
    Unexpected(&'static str),
    #[error("the checkpoint has the unknown version {0}")]
    Version(u8),
    #[error("the checkpoint ends in the middle of a record, at byte {0}")]
    Truncated(usize),
    #[error("the checkpoint has {0} bytes after its end")]
    Trailing(usize),
    #[error("the checkpoint holds {count} {what}, more than {max}")]
    TooMany {
        what: &'static str,
        count: usize,
        max: usize,
    },
    #[error("the checkpoint holds an invalid {0}")]
    Invalid(&'static str),
}
