//! Failed tasks by framework and by role, for Prometheus.
//!
//! Entered through [`families`]. Invariant: no more series than [`FRAMEWORKS_MAX`] frameworks and the roles of the core's
//! counters have, and none with the name of a framework or role that is hidden from the reader.

use std::collections::BTreeMap;

use meseta_resources::Role;

use super::Families;
use crate::core::{OTHER_ROLES, Snapshot};

/// The number of frameworks with series of their own: the first by id, so that series do not come and go with
/// amounts.
const FRAMEWORKS_MAX: usize = 1_000;
/// The state for which each framework and role has a series from the beginning: otherwise the first failure would
/// show no increase.
const COMMON: &str = "task_failed";
/// The final states that are not failures.
const ENDS: [&str; 2] = ["task_finished", "task_killed"];

type Series = Vec<(Vec<String>, u64)>;

pub(super) fn families(
    families: &mut Families,
    all: &Snapshot,
    seen: &Snapshot,
) -> Result<(), prometheus::Error> {
    families.counter(
        "meseta_master_framework_tasks_failed_total",
        "Tasks that ended by a failure, by framework and state.",
        &["framework_id", "state"],
        of_frameworks(seen),
    )?;
    families.counter(
        "meseta_master_role_tasks_failed_total",
        "Tasks that ended by a failure, by role and state; an empty role stands for roles beyond the first thousand, and for roles that the reader may not view.",
        &["role", "state"],
        of_roles(all, seen),
    )
}

fn of_frameworks(seen: &Snapshot) -> Series {
    let mut series = Series::new();
    for framework in seen.frameworks.iter().take(FRAMEWORKS_MAX) {
        let failures = framework.counters.terminal.iter();
        let failures = failures.filter(|(state, _)| !ENDS.contains(state));
        for (state, count) in failures.filter(|(state, count)| *count > 0 || *state == COMMON) {
            // Without the name, because its length is up to its framework.
            let labels = [framework.id.as_str(), state];
            series.push((labels.map(str::to_owned).to_vec(), count));
        }
    }
    series
}

fn of_roles(all: &Snapshot, seen: &Snapshot) -> Series {
    let is_seen = |role: &str| Role::new(role).is_ok_and(|role| seen.viewer_may_view_role(&role));
    let mut counts: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for ((role, state), count) in &all.counters.role_failures {
        let role = if is_seen(role) { role } else { OTHER_ROLES };
        *counts.entry((role, state)).or_default() += count;
    }
    let counts = counts.into_iter();
    counts
        .map(|((role, state), count)| (vec![role.to_owned(), state.to_owned()], count))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::views::tests::many_frameworks;

    #[test]
    fn series_begin_before_the_first_failure() {
        let snapshot = many_frameworks(1, 3);
        let series = of_frameworks(&snapshot);
        assert_eq!(series.len(), 3);
        assert!(series.iter().all(|(_, count)| *count == 0));
        let id = snapshot.frameworks.iter().next().map(|one| &one.id);
        let id = id.expect("a framework").as_str();
        assert_eq!(series[0].0, [id, COMMON], "and no name");
    }

    #[test]
    fn failures_of_hidden_roles_are_hidden() {
        let mut all = Arc::into_inner(many_frameworks(0, 0)).expect("the only reference");
        let failures = &mut all.counters.role_failures;
        failures.insert((Arc::from("eng"), COMMON), 2);
        failures.insert((Arc::from(OTHER_ROLES), COMMON), 1);
        let mut seen = Arc::into_inner(many_frameworks(0, 0)).expect("the only reference");
        assert_eq!(of_roles(&all, &seen).len(), 2);
        let rules = r#"{"permissive": false}"#;
        let acls = meseta_access::Acls::parse(rules).expect("rules");
        let authorizer = meseta_access::Authorizer::new(acls, false);
        seen.viewer = authorizer.approver(Some("ada".to_owned()));
        let left = of_roles(&all, &seen);
        assert_eq!(left, [(vec![String::new(), COMMON.to_owned()], 3)]);
    }
}
