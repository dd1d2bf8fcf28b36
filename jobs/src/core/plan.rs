//! What submitting a job would change, and where its tasks would fit.

use serde::Serialize;

use super::state::State;
use crate::placement::{self, Offer, Placed};
use crate::spec::JobSpec;

/// Offers that are remembered after they were answered, for plans.
pub(super) const SEEN_MAX: usize = 1_000;
/// Obstacles that a plan names.
const OBSTACLES_MAX: usize = 20;

/// Where the variables of the environment are in a specification.
const ENVIRONMENT: &str = ".task.env.";

/// The answer to a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PlanView {
    pub changes: Vec<String>,
    /// Tasks that fit in the offers seen last.
    pub fits: usize,
    pub wants: usize,
    pub obstacles: Vec<String>,
}

impl State {
    /// Plans a job without changing anything.
    #[must_use]
    pub fn plan(&self, spec: &JobSpec) -> PlanView {
        let offers: Vec<Offer> = self
            .seen
            .values()
            .filter(|offer| offer.role == spec.role)
            .cloned()
            .collect();
        let placed: Vec<Placed> = Vec::new();
        let wants = spec.count as usize;
        let fits = placement::place(spec, &placed, &offers, wants).len();
        let mut obstacles = Vec::new();
        if !self.is_connected {
            obstacles.push("no master answers".to_owned());
        } else if offers.is_empty() {
            obstacles.push(format!("no offers were seen in role {:?} yet", spec.role));
        } else if fits < wants {
            for (index, why) in placement::obstacles(spec, &placed, &offers) {
                if obstacles.len() < OBSTACLES_MAX {
                    obstacles.push(format!("{}: {why}", offers[index].hostname));
                }
            }
        }
        PlanView {
            changes: self.changes(spec),
            fits,
            wants,
            obstacles,
        }
    }

    fn changes(&self, spec: &JobSpec) -> Vec<String> {
        let Some(present) = self.jobs.get(&spec.name).and_then(|job| job.spec()) else {
            return vec![format!("job {:?} is new", spec.name)];
        };
        let (Ok(before), Ok(after)) =
            (serde_json::to_value(&**present), serde_json::to_value(spec))
        else {
            return Vec::new();
        };
        let mut changes = Vec::new();
        compare("", &before, &after, &mut changes);
        changes
    }
}

/// Tells each field that differs, by its path.
fn compare(
    path: &str,
    before: &serde_json::Value,
    after: &serde_json::Value,
    changes: &mut Vec<String>,
) {
    use serde_json::Value;
    if before == after {
        return;
    }
    if let Some(variable) = path.strip_prefix(ENVIRONMENT) {
        // Its value may be a secret.
        let change = match (before, after) {
            (Value::Null, _) => "is added",
            (_, Value::Null) => "is removed",
            _ => "has another value",
        };
        changes.push(format!("task.env.{variable}: {change}"));
        return;
    }
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        changes.push(format!(
            "{}: {before} becomes {after}",
            path.trim_start_matches('.')
        ));
        return;
    };
    let keys: std::collections::BTreeSet<_> = old.keys().chain(new.keys()).collect();
    for key in keys {
        let of =
            |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
        compare(&format!("{path}.{key}"), &of(old), &of(new), changes);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn the_values_of_variables_are_not_told() {
        let before =
            json!({ "count": 1, "task": { "env": { "A": "hidden", "B": "hidden", "C": "x" } } });
        let after =
            json!({ "count": 2, "task": { "env": { "A": "other", "C": "x", "D": "hidden" } } });
        let mut changes = Vec::new();
        super::compare("", &before, &after, &mut changes);
        let expected = [
            "count: 1 becomes 2",
            "task.env.A: has another value",
            "task.env.B: is removed",
            "task.env.D: is added",
        ];
        assert_eq!(changes, expected);
    }
}
