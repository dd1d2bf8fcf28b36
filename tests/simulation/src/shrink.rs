//! Shortens a story: finds a run that breaks the same promise with fewer kinds of faults and fewer steps.

use crate::checks::Violation;
use crate::cluster::Cluster;
use crate::plan::{Feature, Plan};

/// Steps that are tried in total: half a minute's work.
const STEPS_MAX: u64 = 1_000_000;

/// Returns the violation of a run, if it breaks this promise or, without one, any; and the number of steps.
fn broken(plan: &Plan, rule: Option<&str>) -> (Option<Violation>, u64) {
    let Ok(mut cluster) = Cluster::new(plan.clone()) else {
        return (None, 0);
    };
    match cluster.run() {
        Ok(outcome) => (None, outcome.steps),
        Err(violation) => {
            let steps = violation.step;
            let is_it = rule.is_none_or(|rule| rule == violation.rule);
            (is_it.then_some(violation), steps)
        }
    }
}

/// Returns the shortest run found that breaks the promise of `plan`, described in words; `None` if `plan` breaks none.
#[must_use]
pub fn shrink(plan: &Plan) -> Option<(Plan, Violation)> {
    let first = broken(plan, None).0?;
    let rule = Some(first.rule);
    let mut best = plan.clone();
    let mut tried = 0;
    let mut holds = |plan: &Plan| {
        if tried > STEPS_MAX {
            return false;
        }
        let (violation, steps) = broken(plan, rule);
        tried += steps;
        violation.is_some()
    };
    for feature in Feature::ALL {
        let mut fewer = best.clone();
        if best.features().contains(&feature) && fewer.without.insert(feature) && holds(&fewer) {
            best = fewer;
        }
    }
    let mut shorter = best.clone();
    shorter.steps = best.steps.min(first.step);
    if holds(&shorter) {
        best = shorter;
    }
    let mut length = (best.steps / 2).max(1);
    loop {
        let mut at = 1;
        while at <= best.steps {
            let range = at..at + length;
            let mut fewer = best.clone();
            fewer.skipped.push(range.clone());
            if holds(&fewer) {
                best = fewer;
            }
            at = range.end;
        }
        if length == 1 {
            break;
        }
        length /= 2;
    }
    best.is_told = true;
    let told = broken(&best, rule).0?;
    Some((best, told))
}
