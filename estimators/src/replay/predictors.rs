//! The rated predictors: the product's estimators, and those of other systems by their published formulas.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::Trace;
use crate::estimator::{NSigma, NSigmaConfig, ShaperConfig, Slack, SlackConfig};
use crate::{ExecutorKey, Gate, ResourceEstimator, UsageSample};

/// Ten hours of five-minute samples, and two hours to get warm, as in the published simulator.
const WINDOW: Duration = Duration::from_secs(10 * 3600);
const WARM_UP: Duration = Duration::from_secs(2 * 3600);

/// The observations of a machine at one step.
#[derive(Copy, Clone, Debug)]
pub struct Seen<'a> {
    pub sample: &'a UsageSample,
    pub capacity: f64,
    /// The joint use of all tasks.
    pub used: f64,
    /// The use and the limit of each running task, in the order of the sample's containers.
    pub by_task: &'a [(f64, f64)],
}

impl Seen<'_> {
    fn limits(&self) -> f64 {
        self.by_task.iter().map(|(_, limit)| limit).sum()
    }
}

/// A predictor of the highest use of a machine.
pub trait Predictor: fmt::Debug {
    fn name(&self) -> String;

    /// Takes each step once, in order.
    fn peak(&mut self, seen: &Seen<'_>) -> f64;
}

/// All predictors, new: the formulas of others first, then ours, before and after its caps.
#[must_use]
pub fn lineup(trace: &Trace) -> Vec<Box<dyn Predictor>> {
    let step = trace.step();
    let formula = |name, share_of_capacity, share_of_limits, share_of_use| {
        Box::new(Formula {
            name,
            share_of_capacity,
            share_of_limits,
            share_of_use,
        })
    };
    vec![
        formula("borg-default, 0.9 of the limits", 0.0, 0.9, 0.0),
        formula("last sample", 0.0, 0.0, 1.0),
        formula("Serenity, last + 0.3 C", 0.3, 0.0, 1.0),
        formula("Koordinator batch, last + 0.4 C", 0.4, 0.0, 1.0),
        Box::new(nsigma(3.0, step)),
        Box::new(nsigma(5.0, step)),
        Box::new(RcLike::new(0.99, step)),
        Box::new(MaxPredictor::new(
            Box::new(nsigma(5.0, step)),
            Box::new(RcLike::new(0.99, step)),
        )),
        Box::new(slack("Koordinator mid, p95 + 10 %", 0.95, 1.1, 0.0, step)),
        Box::new(slack("p95 + 10 %, last + 5 % of C", 0.95, 1.1, 0.05, step)),
        Box::new(slack("p95 + 10 %, last + 10 % of C", 0.95, 1.1, 0.10, step)),
        Box::new(EstimatorPredictor::new(
            "slack without crowd",
            SlackConfig {
                crowd: false,
                ..slack_config(step)
            },
            false,
        )),
        Box::new(EstimatorPredictor::new(
            "**slack**, predictor",
            slack_config(step),
            false,
        )),
        Box::new(EstimatorPredictor::new(
            "**slack**, after its caps",
            slack_config(step),
            true,
        )),
    ]
}

/// A predictor without memory: a weighted sum of present values.
#[derive(Debug)]
struct Formula {
    name: &'static str,
    share_of_capacity: f64,
    share_of_limits: f64,
    share_of_use: f64,
}

impl Predictor for Formula {
    fn name(&self) -> String {
        self.name.into()
    }

    fn peak(&mut self, seen: &Seen<'_>) -> f64 {
        self.share_of_capacity * seen.capacity
            + self.share_of_limits * seen.limits()
            + self.share_of_use * seen.used
    }
}

/// The method of Resource Central: the sum over tasks of a percentile of each one's recent use.
#[derive(Debug)]
struct RcLike {
    percentile: f64,
    window: usize,
    warm_up: usize,
    recent: BTreeMap<ExecutorKey, VecDeque<f64>>,
}

impl RcLike {
    fn new(percentile: f64, step: Duration) -> Self {
        let (window, warm_up) = (steps(WINDOW, step), steps(WARM_UP, step));
        Self {
            percentile,
            window,
            warm_up,
            recent: BTreeMap::new(),
        }
    }
}

fn steps(span: Duration, step: Duration) -> usize {
    usize::try_from(span.as_nanos() / step.as_nanos().max(1))
        .unwrap_or(usize::MAX)
        .max(1)
}

/// The smallest value such that at least this part of the values does not exceed it.
fn percentile(values: &VecDeque<f64>, part: f64) -> f64 {
    let mut sorted: Vec<f64> = values.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    let length = f64::from(u32::try_from(sorted.len()).unwrap_or(u32::MAX));
    let rank = crate::numbers::whole((part * length).ceil());
    let index = usize::try_from(rank)
        .unwrap_or(usize::MAX)
        .saturating_sub(1);
    sorted
        .get(index)
        .or(sorted.last())
        .copied()
        .unwrap_or(f64::INFINITY)
}

impl Predictor for RcLike {
    fn name(&self) -> String {
        format!("RC-like, p{:.0}, 10 h", 100.0 * self.percentile)
    }

    fn peak(&mut self, seen: &Seen<'_>) -> f64 {
        let mut peak = 0.0;
        for (container, (used, limit)) in seen.sample.containers.iter().zip(seen.by_task) {
            let recent = self.recent.entry(container.key()).or_default();
            recent.push_back(*used);
            if recent.len() > self.window {
                recent.pop_front();
            }
            let warm = recent.len() >= self.warm_up;
            peak += if warm {
                percentile(recent, self.percentile).min(*limit)
            } else {
                *limit
            };
        }
        peak
    }
}

/// The greater prediction of two predictors.
#[derive(Debug)]
struct MaxPredictor(Box<dyn Predictor>, Box<dyn Predictor>);

impl MaxPredictor {
    fn new(one: Box<dyn Predictor>, other: Box<dyn Predictor>) -> Self {
        Self(one, other)
    }
}

impl Predictor for MaxPredictor {
    fn name(&self) -> String {
        format!("max({}; {})", self.0.name(), self.1.name())
    }

    fn peak(&mut self, seen: &Seen<'_>) -> f64 {
        self.0.peak(seen).max(self.1.peak(seen))
    }
}

/// An estimator of the product, fed with samples as an agent would.
#[derive(Debug)]
struct EstimatorPredictor {
    name: String,
    estimator: Box<dyn ResourceEstimator>,
    /// Whether to rate the final offer instead of the predicted peak.
    offered: bool,
}

impl EstimatorPredictor {
    fn new(name: &str, config: SlackConfig, offered: bool) -> Self {
        Self {
            name: name.to_owned(),
            estimator: Box::new(Slack::new(config)),
            offered,
        }
    }
}

/// The default configuration at the pace of the trace.
fn slack_config(step: Duration) -> SlackConfig {
    let default = SlackConfig::default();
    SlackConfig {
        fold: default.fold.max(step),
        stale_after: default.stale_after.max(3 * step),
        ..default
    }
}

fn slack(
    name: &str,
    percentile: f64,
    margin: f64,
    floor_margin: f64,
    step: Duration,
) -> EstimatorPredictor {
    let config = SlackConfig {
        cpu_percentile: percentile,
        cpu_margin: margin,
        floor_margin,
        crowd: false,
        ..slack_config(step)
    };
    EstimatorPredictor::new(name, config, false)
}

fn nsigma(n: f64, step: Duration) -> EstimatorPredictor {
    let default = NSigmaConfig::default();
    let count = |span| u32::try_from(steps(span, step)).unwrap_or(u32::MAX);
    let config = NSigmaConfig {
        n,
        history: count(WINDOW),
        warm_up: count(WARM_UP),
        fold: step,
        stale_after: default.stale_after.max(3 * step),
        caps: ShaperConfig::default(),
        ..default
    };
    let name = format!("N-sigma, N = {n}, 10 h");
    EstimatorPredictor {
        name,
        estimator: Box::new(NSigma::new(config)),
        offered: false,
    }
}

impl Predictor for EstimatorPredictor {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn peak(&mut self, seen: &Seen<'_>) -> f64 {
        let estimate = self.estimator.estimate(seen.sample, Gate::Open);
        match estimate.forecasts.first() {
            Some(forecast) if self.offered => seen.capacity - forecast.total,
            Some(forecast) => forecast.peak,
            // Without knowledge nothing can be oversubscribed.
            None => seen.capacity,
        }
    }
}
