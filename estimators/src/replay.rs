//! Rates estimators on recorded usage: the amount that they would have oversubscribed, and their errors.
//!
//! A [`Trace`] is cut into machines of a few tasks each ([`machines`]), every [`Predictor`] sees each machine's samples in
//! turn, and [`evaluate`] compares its predictions with the later use. The predictors of [`lineup`] are the product's own
//! estimators, run on the samples that an agent would have made, and formulas from other systems for comparison. Invariant: a
//! predictor sees nothing of the future, and the same trace and seeds give the same figures.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

mod course;
mod hindsight;
mod machine;
mod predictors;
mod trace;

pub use course::{Course, course};
pub use machine::{Machine, machines};
pub use predictors::{Predictor, Seen, lineup};
pub use trace::{Trace, TraceError};

/// The horizons of predicted peaks: a kill frees cpus in milliseconds, so that the first one counts most for revocable work.
pub const HORIZONS: [(&str, Duration); 3] = [
    ("10 min", Duration::from_secs(600)),
    ("1 h", Duration::from_secs(3600)),
    ("24 h", Duration::from_secs(86_400)),
];
/// The tolerance of comparisons: rounding of counters must not count as a violation.
const TOLERANCE: f64 = 1e-6;
const DAY: f64 = 86_400.0;

/// The result of one predictor.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    pub name: String,
    /// The amount that could be oversubscribed, as a share of the capacity; the mean over all moments and machines.
    pub savings: f64,
    /// The share of moments in which regular work came to use more than predicted, by horizon; `None` if the trace is too short
    /// for it.
    pub violations: [Option<f64>; HORIZONS.len()],
    /// The sum of all changes of the oversubscribable amount, in capacities by day.
    pub churn: f64,
}

#[derive(Clone, Debug, Default)]
struct Tally {
    moments: f64,
    savings: f64,
    moved: f64,
    violations: [f64; HORIZONS.len()],
    judged: [f64; HORIZONS.len()],
}

/// Runs new predictors over each machine of a trace; returns a score for each, after those of an oracle for each horizon.
pub fn evaluate<F>(trace: &Trace, machines: &[Vec<usize>], lineup: F) -> Vec<Score>
where
    F: Fn(&Trace) -> Vec<Box<dyn Predictor>>,
{
    let oracles = HORIZONS.map(|(horizon, _)| format!("oracle, {horizon}"));
    let hindsight = [hindsight::CONSTANT, hindsight::BY_USE].map(str::to_owned);
    let names = oracles.into_iter().chain(hindsight);
    let mut tallies: Vec<(String, Tally)> = names.map(|name| (name, Tally::default())).collect();
    let oracles = tallies.len();
    let mut days = 0.0;
    for tasks in machines {
        let mut predictors = lineup(trace);
        for predictor in predictors.iter().skip(tallies.len() - oracles) {
            tallies.push((predictor.name(), Tally::default()));
        }
        let mut machine = Machine::new(trace, tasks);
        let mut used = Vec::new();
        let mut peaks: Vec<Vec<f64>> = vec![Vec::new(); predictors.len()];
        while let Some(seen) = machine.step() {
            used.push(seen.used);
            for (predictor, peaks) in predictors.iter_mut().zip(&mut peaks) {
                peaks.push(predictor.peak(&seen).clamp(0.0, seen.capacity));
            }
        }
        let capacity = machine.capacity();
        let ahead = HORIZONS.map(|(_, horizon)| highest_ahead(&used, trace.steps_in(horizon)));
        let constant = hindsight::constant(&ahead, used.len());
        let by_use = hindsight::by_use(&used, &ahead, capacity);
        let oracles = ahead.iter().cloned().chain([constant, by_use]);
        for ((_, tally), peaks) in tallies.iter_mut().zip(oracles.chain(peaks)) {
            tally.count(&peaks, &ahead, capacity);
        }
        days += trace.step().as_secs_f64() * count(used.len()) / DAY;
    }
    tallies
        .into_iter()
        .map(|(name, tally)| tally.score(name, days))
        .collect()
}

/// The means of several ratings of the same predictors, over as many machines each.
#[must_use]
pub fn mean(judgements: &[Vec<Score>]) -> Vec<Score> {
    let Some((first, others)) = judgements.split_first() else {
        return Vec::new();
    };
    let number = count(judgements.len());
    let of = |score: &Score| {
        let same = others
            .iter()
            .flatten()
            .filter(|other| other.name == score.name);
        let mut sum = score.clone();
        for other in same {
            sum.savings += other.savings;
            sum.churn += other.churn;
            for (mine, theirs) in sum.violations.iter_mut().zip(&other.violations) {
                *mine = mine.zip(*theirs).map(|(mine, theirs)| mine + theirs);
            }
        }
        let violations = sum.violations.map(|part| part.map(|part| part / number));
        let (savings, churn) = (sum.savings / number, sum.churn / number);
        Score {
            name: sum.name,
            savings,
            violations,
            churn,
        }
    };
    first.iter().map(of).collect()
}

/// The highest of the next `steps` values at each moment; the result is shorter than the values by `steps`.
fn highest_ahead(values: &[f64], steps: usize) -> Vec<f64> {
    // The indices of values that are higher than all later ones in the window.
    let mut falling: VecDeque<(usize, f64)> = VecDeque::new();
    let mut highest = Vec::with_capacity(values.len().saturating_sub(steps));
    for (index, value) in values.iter().enumerate() {
        while falling.back().is_some_and(|(_, last)| last <= value) {
            falling.pop_back();
        }
        falling.push_back((index, *value));
        if index < steps {
            continue;
        }
        // The window after `index - steps` ends here.
        while falling
            .front()
            .is_some_and(|(first, _)| *first + steps <= index)
        {
            falling.pop_front();
        }
        highest.extend(falling.front().map(|(_, value)| *value));
    }
    highest
}

fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

impl Tally {
    fn count(&mut self, peaks: &[f64], ahead: &[Vec<f64>; HORIZONS.len()], capacity: f64) {
        if capacity <= 0.0 {
            return;
        }
        self.moments += count(peaks.len());
        self.savings += peaks
            .iter()
            .map(|peak| (capacity - peak) / capacity)
            .sum::<f64>();
        let moves = peaks.iter().zip(peaks.iter().skip(1));
        self.moved += moves
            .map(|(one, next)| (one - next).abs() / capacity)
            .sum::<f64>();
        let horizons = self.violations.iter_mut().zip(&mut self.judged).zip(ahead);
        for ((violations, judged), ahead) in horizons {
            let missed = |(peak, came): &(&f64, &f64)| **came > **peak + TOLERANCE * capacity;
            *judged += count(ahead.len().min(peaks.len()));
            *violations += count(peaks.iter().zip(ahead).filter(missed).count());
        }
    }

    fn score(self, name: String, days: f64) -> Score {
        let mut violations = [None; HORIZONS.len()];
        let counted = self.violations.iter().zip(&self.judged);
        for (slot, (violations, judged)) in violations.iter_mut().zip(counted) {
            *slot = (*judged > 0.0).then(|| violations / judged);
        }
        Score {
            name,
            savings: if self.moments > 0.0 {
                self.savings / self.moments
            } else {
                0.0
            },
            violations,
            churn: if days > 0.0 { self.moved / days } else { 0.0 },
        }
    }
}

/// The scores as a Markdown table.
#[must_use]
pub fn table(scores: &[Score]) -> String {
    let mut text = String::from("| estimator | savings |");
    for (horizon, _) in HORIZONS {
        let _ = write!(text, " {horizon} viol. |");
    }
    text.push_str(" churn/day |\n| --- | --- |");
    text.push_str(&" --- |".repeat(HORIZONS.len() + 1));
    text.push('\n');
    for score in scores {
        let _ = write!(text, "| {} | {:.3} |", score.name, score.savings);
        for violations in score.violations {
            let _ = match violations {
                Some(part) => write!(text, " {:.3} % |", 100.0 * part),
                None => write!(text, " - |"),
            };
        }
        let _ = writeln!(text, " {:.2} |", score.churn);
    }
    text
}

#[cfg(test)]
mod tests;
