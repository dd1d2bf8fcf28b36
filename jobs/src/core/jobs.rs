//! All jobs by key.
//!
//! Invariant: a job that may have changed is among the changed jobs, until its waiting tasks are counted anew. Each access
//! that can change a job marks it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::time::Duration;

use super::job::Job;
use super::offer_demand::OfferDemand;

/// All jobs, and the offers that they wait for.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    by_key: BTreeMap<String, Job>,
    /// The keys of the jobs that may have changed since their waiting tasks were counted.
    changed: BTreeSet<String>,
    demand: OfferDemand,
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
