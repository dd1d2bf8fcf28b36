//! The contract of QoS controllers, and the built-in ones.
//!
//! The agent calls [`QosController::assess`] once for each sample. Invariant: a correction names a container that holds
//! revocable resources in the very sample it answers, and gives the reason.

use std::fmt;
use std::time::Duration;

use meseta_resources::{ContainerId, ExecutorId, FrameworkId};

use crate::{ContainerUsage, Gate, UsageSample};

mod load;
mod noop;
mod pressure;

pub use load::{LoadConfig, LoadController};
pub use noop::NoopController;
pub use pressure::{PressureConfig, PressureController};

/// A controller that protects regular work from the revocable work beside it.
pub trait QosController: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// Takes each sample once, in order of time.
    fn assess(&mut self, sample: &UsageSample) -> Assessment;

    /// The longest allowed distance of samples while anything is oversubscribed; `None` if any distance will do.
    fn interval_max(&self) -> Option<Duration> {
        None
    }

    /// The longest distance of two samples that still show the use between them; samples further apart are no reason to act.
    /// `None` if any distance will do.
    fn stale_after(&self) -> Option<Duration> {
        None
    }
}

/// The answer to one sample. The first three fields are states, in force until the next assessment; the agent carries out the
/// corrections once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// The reason to offer no more revocable resources and to rescind such offers, if there is one.
    pub stop_offering: Option<Explanation>,
    /// CPU limit of all revocable containers together; `None` without a throttle.
    pub throttle: Option<Throttle>,
    /// The limit on the memory of all revocable containers together; `None` without a limit.
    pub memory_ceiling_bytes: Option<u64>,
    pub corrections: Vec<Correction>,
    /// The readings of each detector, for metrics.
    pub readings: Vec<DetectorReading>,
}

impl Assessment {
    /// The gate for the estimator of the same node.
    #[must_use]
    pub const fn gate(&self) -> Gate {
        match self.stop_offering {
            Some(_) => Gate::Closed,
            None => Gate::Open,
        }
    }
}

/// A processor quota on the parent group of all revocable containers.
#[derive(Clone, Debug, PartialEq)]
pub struct Throttle {
    pub cpus: f64,
    pub why: Explanation,
}

/// An action on one revocable container.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    pub action: Action,
    pub framework: FrameworkId,
    pub executor: ExecutorId,
    /// `None` for the whole executor, in any container that it has by then.
    pub container: Option<ContainerId>,
    pub why: Explanation,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Action {
    Kill,
    Freeze,
    Thaw,
}

impl Action {
    /// The name in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
        }
    }
}

/// The escalation level of a detector.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    #[default]
    Clear,
    Stop,
    Throttle,
    Kill,
}

impl Level {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clear => "clear",
            Self::Stop => "stop",
            Self::Throttle => "throttle",
            Self::Kill => "kill",
        }
    }
}

/// The reading of a detector in one sample.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct DetectorReading {
    pub detector: &'static str,
    /// The value; `None` if it could not be read.
    pub value: Option<f64>,
    pub level: Level,
}

/// The unit of a number in an explanation.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A share of the capacity; 1 is all of it.
    Share,
    Percent,
    Cpus,
    Bytes,
    Load,
    Seconds,
}

impl Unit {
    const fn suffix(self) -> &'static str {
        match self {
            Self::Share | Self::Load => "",
            Self::Percent => " %",
            Self::Cpus => " cpus",
            Self::Bytes => " bytes",
            Self::Seconds => " s",
        }
    }
}

/// The reason for an action, with the numbers that decided it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub detector: &'static str,
    pub value: f64,
    pub threshold: f64,
    pub unit: Unit,
    /// The time for which the value had been over the threshold.
    pub held: Duration,
    /// The amount that had to be freed, where it could be computed.
    pub gap: Option<(f64, Unit)>,
    /// The amount that this victim frees, and the rule that chose it.
    pub victim: Option<Choice>,
    /// The text of an external controller, in place of all other fields.
    pub words: Option<String>,
}

#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Choice {
    pub frees: f64,
    pub unit: Unit,
    pub rule: &'static str,
}

impl Explanation {
    pub(crate) fn over(detector: &'static str, value: f64, threshold: f64, unit: Unit) -> Self {
        let held = Duration::ZERO;
        Self {
            detector,
            value,
            threshold,
            unit,
            held,
            gap: None,
            victim: None,
            words: None,
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            detector,
            value,
            threshold,
            unit,
            held,
            gap,
            victim,
            words,
        } = self;
        if let Some(words) = words {
            return write!(f, "{detector}: {words}");
        }
        write!(
            f,
            "{detector} is {value:.3}{}, limit {threshold:.3}",
            unit.suffix()
        )?;
        if !held.is_zero() {
            write!(f, ", for {:.1} s", held.as_secs_f64())?;
        }
        if let Some((gap, unit)) = gap {
            write!(f, "; to free: {gap:.3}{}", unit.suffix())?;
        }
        if let Some(Choice { frees, unit, rule }) = victim {
            write!(
                f,
                "; this frees {frees:.3}{}; chosen as {rule}",
                unit.suffix()
            )?;
        }
        Ok(())
    }
}

impl Correction {
    pub(crate) fn from_container(
        container: &ContainerUsage,
        action: Action,
        why: Explanation,
    ) -> Self {
        Self {
            action,
            framework: container.framework.clone(),
            executor: container.executor.clone(),
            container: container.container.clone(),
            why,
        }
    }
}
