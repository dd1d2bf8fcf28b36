//! The use of one machine and its predictions, step by step, for a chart.

use super::machine::Machine;
use super::predictors::Predictor;
use super::trace::Trace;

#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// The capacity in processors.
    pub capacity: f64,
    /// The use of all tasks at each step.
    pub used: Vec<f64>,
    /// The predicted peaks of each predictor at each step, by name.
    pub peaks: Vec<(String, Vec<f64>)>,
}

/// Runs new predictors over one machine of a trace.
pub fn course<F>(trace: &Trace, tasks: &[usize], lineup: F) -> Course
where
    F: Fn(&Trace) -> Vec<Box<dyn Predictor>>,
{
    let mut predictors = lineup(trace);
    let mut machine = Machine::new(trace, tasks);
    let capacity = machine.capacity();
    let mut used = Vec::new();
    let mut peaks: Vec<Vec<f64>> = vec![Vec::new(); predictors.len()];
    while let Some(seen) = machine.step() {
        used.push(seen.used);
        for (predictor, peaks) in predictors.iter_mut().zip(&mut peaks) {
            peaks.push(predictor.peak(&seen).clamp(0.0, capacity));
        }
    }
    let names = predictors.iter().map(|predictor| predictor.name());
    Course {
        capacity,
        used,
        peaks: names.zip(peaks).collect(),
    }
}
