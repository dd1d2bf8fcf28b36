//! Finds the task groups that an earlier agent had written only in part.
//!
//! Pure. Invariant: no group with a begun task is among them.

use std::collections::{BTreeMap, BTreeSet};

use crate::checkpoint::{RunImage, TaskImage, TaskKey};

/// The tasks of groups that did not reach the disk whole, so that nothing of them was begun. A group that was begun may
/// also lack tasks, which are completed and retired.
pub(super) fn tasks_of_partial_groups(run: &RunImage) -> Vec<TaskKey> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    for task in &run.tasks {
        if let Some(group) = &task.record.group {
            *sizes.entry(group).or_default() += 1;
        }
    }
    let groups = run.tasks.iter().filter(|task| !task.log.is_empty());
    let begun: BTreeSet<_> = groups
        .filter_map(|task| task.record.group.as_deref())
        .collect();
    let is_half = |task: &&TaskImage| {
        let held = task
            .record
            .group
            .as_deref()
            .and_then(|group| sizes.get(group));
        let group_size = usize::try_from(task.record.group_size).unwrap_or(usize::MAX);
        let is_begun = task
            .record
            .group
            .as_deref()
            .is_some_and(|group| begun.contains(group));
        held.is_some_and(|held| *held < group_size) && !is_begun
    };
    let halves = run.tasks.iter().filter(is_half);
    halves
        .map(|task| TaskKey {
            run: run.key.clone(),
            task: task.id.clone(),
        })
        .collect()
}
