//! What every QoS controller promises, and the ones that come with the agent.
//!
//! Entered through [`QosController::assess`], once for each sample. Invariant: a correction names a
//! container that holds revocable resources in the very sample it answers, and says why.

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

/// Protects regular work from the revocable work beside it.
pub trait QosController: fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// To be called once for each sample, in order of time.
    fn assess(&mut self, sample: &UsageSample) -> Assessment;

    /// How far apart samples may be at most while anything is oversubscribed; none if any distance will do.
    fn interval_max(&self) -> Option<Duration> {
        None
    }

    /// Samples further apart than this say nothing of what is used between them, and are no reason to act; none if any
    /// distance will do.
    fn stale_after(&self) -> Option<Duration> {
        None
    }
}

/// An answer to one sample. The first three are states, in force until the next assessment; the corrections are to be
/// carried out once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// Nothing more is to be offered as revocable, and offers of it are to be rescinded.
    pub stop_offering: Option<Explanation>,
    /// CPU limit of all revocable containers together; none if they are not throttled.
    pub throttle: Option<Throttle>,
    /// How much memory all revocable containers together may have; none if they are not held.
    pub memory_ceiling_bytes: Option<u64>,
    pub corrections: Vec<Correction>,
    /// What each detector saw, for metrics.
    pub readings: Vec<DetectorReading>,
}

impl Assessment {
    /// What the estimator of the same node is to be told.
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

/// What is to be done to one revocable container.
#[derive(Clone, Debug, PartialEq)]
pub struct Correction {
    pub action: Action,
    pub framework: FrameworkId,
    pub executor: ExecutorId,
    /// None where the whole executor is meant, whatever container it is in by then.
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
    /// As in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Freeze => "freeze",
            Self::Thaw => "thaw",
        }
    }
}

/// How far a detector has gone.
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

/// What a detector saw in one sample.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct DetectorReading {
    pub detector: &'static str,
    /// None if it could not be read.
    pub value: Option<f64>,
    pub level: Level,
}

/// What a number in an explanation counts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Of the capacity, 1 being all of it.
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

/// Why something was done, with the numbers that decided it.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub detector: &'static str,
    pub value: f64,
    pub threshold: f64,
    pub unit: Unit,
    /// For how long the value had been over the threshold.
    pub held: Duration,
    /// How much had to be freed, where that could be computed.
    pub gap: Option<(f64, Unit)>,
    /// What this victim frees, and by which rule it was chosen.
    pub victim: Option<Choice>,
    /// The words of a controller that is not ours, in the place of all that.
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
    pub(crate) fn of(container: &ContainerUsage, action: Action, why: Explanation) -> Self {
        Self {
            action,
            framework: container.framework.clone(),
            executor: container.executor.clone(),
            container: container.container.clone(),
            why,
        }
    }
}
