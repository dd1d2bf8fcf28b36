//! All jobs by key.
//!
//! Invariant: a job that may have changed is among the changed jobs, until its waiting tasks are counted anew. Each access
//! that can change a job marks it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::time::Duration;

use super::input::Record;
use super::job::{Job, KillReason, Killing, Task};
use super::offer_demand::OfferDemand;
use super::task_name::TaskName;

/// All jobs, and the offers that they wait for.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    by_key: BTreeMap<String, Job>,
    /// The keys of the jobs that may have changed since their waiting tasks were counted.
    changed: BTreeSet<String>,
    demand: OfferDemand,
    /// The jobs that may need a decision.
    dirty: BTreeSet<String>,
    /// Jobs with a failure in this step: each is written once, however many of its tasks have failed.
    failing: BTreeSet<String>,
}

impl Deref for Jobs {
    type Target = BTreeMap<String, Job>;

    fn deref(&self) -> &Self::Target {
        &self.by_key
    }
}

impl<'a> IntoIterator for &'a Jobs {
    type Item = (&'a String, &'a Job);
    type IntoIter = std::collections::btree_map::Iter<'a, String, Job>;

    fn into_iter(self) -> Self::IntoIter {
        self.by_key.iter()
    }
}

impl Jobs {
    pub(super) fn insert(&mut self, key: String, job: Job) {
        self.changed.insert(key.clone());
        self.by_key.insert(key, job);
    }

    pub(super) fn remove(&mut self, key: &str) -> Option<Job> {
        let job = self.by_key.remove(key)?;
        self.dirty.remove(key);
        self.changed.insert(key.to_owned());
        Some(job)
    }

    /// Returns a job that the caller may change.
    pub(super) fn get_mut(&mut self, key: &str) -> Option<&mut Job> {
        let job = self.by_key.get_mut(key)?;
        if !self.changed.contains(key) {
            self.changed.insert(key.to_owned());
        }
        Some(job)
    }

    /// Returns all jobs, each of which the caller may change.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Job> {
        self.changed.extend(self.by_key.keys().cloned());
        self.by_key.values_mut()
    }

    pub(super) fn task(&self, id: &str) -> Option<&Task> {
        let name: TaskName = id.parse().ok()?;
        self.get(&name.job)?.tasks.get(id)
    }

    /// Returns the name and the job of a task that has not ended.
    pub(super) fn with_task_mut(&mut self, id: &str) -> Option<(TaskName, &mut Job)> {
        let name: TaskName = id.parse().ok()?;
        self.get(&name.job)?.tasks.get(id)?;
        let job = self.get_mut(&name.job)?;
        Some((name, job))
    }

    pub(super) fn task_mut(&mut self, id: &str) -> Option<&mut Task> {
        let name: TaskName = id.parse().ok()?;
        self.get_mut(&name.job)?.tasks.get_mut(id)
    }

    /// Notes that a job may need a decision.
    pub(super) fn mark_dirty(&mut self, key: &str) {
        if !self.dirty.contains(key) {
            self.dirty.insert(key.to_owned());
        }
    }

    /// Notes that all jobs may need a decision.
    pub(super) fn mark_all_dirty(&mut self) {
        self.dirty.extend(self.by_key.keys().cloned());
    }

    /// Notes that a job needs no decision.
    pub(super) fn unmark_dirty(&mut self, key: &str) {
        self.dirty.remove(key);
    }

    pub(super) fn is_dirty(&self, key: &str) -> bool {
        self.dirty.contains(key)
    }

    pub(super) fn take_dirty(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.dirty)
    }

    /// Returns the records that make a job durable as it is now. The job may need a decision.
    pub(super) fn save(&mut self, key: &str) -> Vec<Record> {
        self.mark_dirty(key);
        self.get_mut(key).map(Job::records).unwrap_or_default()
    }

    /// Notes a failure of a task, which [`Self::take_failures`] makes durable at the end of the step.
    pub(super) fn mark_failing(&mut self, key: &str) {
        self.failing.insert(key.to_owned());
    }

    /// Returns the records of the jobs with failures in this step.
    pub(super) fn take_failures(&mut self) -> Vec<Record> {
        let failing = std::mem::take(&mut self.failing);
        let records = failing
            .iter()
            .filter_map(|key| Some(self.get_mut(key)?.records()));
        records.flatten().collect()
    }

    /// Begins to kill a task, unless that has begun. Returns the job whose kills are due now.
    pub(super) fn begin_kill(
        &mut self,
        id: &str,
        reason: KillReason,
        at: Duration,
    ) -> Option<String> {
        let task = self.task_mut(id)?;
        if task.killing.is_some() {
            return None;
        }
        task.killing = Some(Killing::begun(reason, at));
        let job = task.name.job.clone();
        self.mark_dirty(&job);
        Some(job)
    }

    /// Counts the waiting tasks of the jobs that may have changed, or whose tasks have become due, and returns the present
    /// demand for offers.
    pub(super) fn count_demand(&mut self, at: Duration) -> &OfferDemand {
        self.changed.extend(self.demand.take_due(at));
        for key in std::mem::take(&mut self.changed) {
            self.demand.count(at, &key, self.by_key.get(&key));
        }
        &self.demand
    }

    /// Returns the demand for offers that was counted last.
    pub(super) fn demand(&self) -> &OfferDemand {
        &self.demand
    }

    /// Returns the jobs in a tree of roles, in the order of their keys.
    pub(super) fn in_tree(&self, top: &str) -> impl Iterator<Item = &Job> {
        let keys = self.demand.jobs_in_tree(top);
        keys.filter_map(|key| self.by_key.get(key))
    }
}

#[cfg(test)]
impl Jobs {
    /// Checks that the counted demand is that of all jobs, except for those that have changed since.
    pub(super) fn check_demand(&self, at: Duration) {
        let mut all = OfferDemand::default();
        for (key, job) in &self.by_key {
            all.count(at, key, Some(job));
        }
        let mut counted = self.demand.clone();
        for key in self.changed.iter().chain(&counted.take_due(at)) {
            counted.count(at, key, self.by_key.get(key));
        }
        assert_eq!(counted, all);
    }
}
