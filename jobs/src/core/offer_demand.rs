//! The offers that jobs wait for: the waiting tasks of all jobs, summed by role and by tree of roles.
//!
//! Invariant: the sums are those of the jobs as they were last counted, so that a step counts only the jobs that changed.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::job::Job;
use super::roles::top_of;

/// The tasks that wait for offers of a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    /// Tasks to be launched, and volumes to be released.
    pub(super) all: usize,
    /// The waiting tasks that any agent may serve. While there are none, the core declines offers of most agents for long.
    pub(super) anywhere: usize,
}

/// The waiting tasks of all jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OfferDemand {
    by_job: BTreeMap<String, JobDemand>,
    by_role: BTreeMap<String, RoleDemand>,
    by_tree: BTreeMap<String, TreeDemand>,
    /// The jobs with tasks that may start later, by the time of the first.
    due: BTreeSet<(Duration, String)>,
}

/// The waiting tasks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
struct JobDemand {
    roles: BTreeMap<String, Demand>,
    /// The top role of the job's own role.
    tree: String,
    /// The waiting tasks for which another gang may give offers back. Gangs wait for their turn to keep offers back.
    claimed: usize,
    /// The next time at which a waiting task may start.
    due: Option<Duration>,
}

/// The jobs that may need offers of a role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RoleDemand {
    /// The number of jobs that name the role.
    jobs: usize,
    /// The jobs with waiting tasks in the role.
    waiting: BTreeSet<String>,
    sum: Demand,
}

/// The jobs in a tree of roles.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TreeDemand {
    jobs: BTreeSet<String>,
    /// The jobs that claim offers of a gang.
    claiming: BTreeSet<String>,
    claimed: usize,
}

impl JobDemand {
    fn from_job(job: &Job, at: Duration) -> Self {
        let roles = job.roles().into_iter().map(|role| {
            let demand = Demand {
                all: job.demand_in(at, role),
                anywhere: job.demand_anywhere(at, role),
            };
            (role.to_owned(), demand)
        });
        let is_gang = job.spec().is_none_or(|spec| spec.gang.is_some());
        Self {
            roles: roles.collect(),
            tree: top_of(job.role()).to_owned(),
            claimed: if is_gang { 0 } else { job.demand(at) },
            due: job.next_due_task(at),
        }
    }
}

impl OfferDemand {
    /// Counts the waiting tasks of a job anew; without the job, forgets it.
    pub(super) fn count(&mut self, at: Duration, key: &str, job: Option<&Job>) {
        let now = job.map(|job| JobDemand::from_job(job, at));
        if self.by_job.get(key) == now.as_ref() {
            return;
        }
        if let Some(before) = self.by_job.remove(key) {
            self.subtract(key, &before);
        }
        if let Some(now) = now {
            self.add(key, &now);
            self.by_job.insert(key.to_owned(), now);
        }
    }

    fn add(&mut self, key: &str, demand: &JobDemand) {
        for (role, own) in &demand.roles {
            let of_role = self.by_role.entry(role.clone()).or_default();
            of_role.jobs += 1;
            of_role.sum.all += own.all;
            of_role.sum.anywhere += own.anywhere;
            if own.all > 0 {
                of_role.waiting.insert(key.to_owned());
            }
        }
        let tree = self.by_tree.entry(demand.tree.clone()).or_default();
        tree.jobs.insert(key.to_owned());
        tree.claimed += demand.claimed;
        if demand.claimed > 0 {
            tree.claiming.insert(key.to_owned());
        }
        self.due.extend(demand.due.map(|due| (due, key.to_owned())));
    }

    fn subtract(&mut self, key: &str, demand: &JobDemand) {
        for (role, own) in &demand.roles {
            let Some(of_role) = self.by_role.get_mut(role) else {
                debug_assert!(false, "a counted job has its roles");
                continue;
            };
            of_role.jobs -= 1;
            of_role.sum.all -= own.all;
            of_role.sum.anywhere -= own.anywhere;
            of_role.waiting.remove(key);
            if of_role.jobs == 0 {
                self.by_role.remove(role);
            }
        }
        if let Some(tree) = self.by_tree.get_mut(&demand.tree) {
            tree.jobs.remove(key);
            tree.claiming.remove(key);
            tree.claimed -= demand.claimed;
            if tree.jobs.is_empty() {
                self.by_tree.remove(&demand.tree);
            }
        }
        if let Some(due) = demand.due {
            self.due.remove(&(due, key.to_owned()));
        }
    }

    /// Removes and returns the jobs with tasks that have become due.
    pub(super) fn take_due(&mut self, at: Duration) -> Vec<String> {
        let mut due = Vec::new();
        while self.due.first().is_some_and(|(time, _)| *time <= at) {
            due.extend(self.due.pop_first().map(|(_, key)| key));
        }
        due
    }

    /// Returns the demand of each role that a job names.
    pub(super) fn by_role(&self) -> impl Iterator<Item = (&str, Demand)> {
        self.by_role.iter().map(|(role, all)| (&**role, all.sum))
    }

    pub(super) fn in_role(&self, role: &str) -> Demand {
        let found = self.by_role.get(role);
        found.map(|role| role.sum).unwrap_or_default()
    }

    /// Returns the jobs with waiting tasks in a role, in the order of their keys.
    pub(super) fn waiting_in(&self, role: &str) -> impl Iterator<Item = &String> {
        let found = self.by_role.get(role);
        found.into_iter().flat_map(|role| &role.waiting)
    }

    /// Returns the top roles of the trees that may claim offers of a gang, and the number of their waiting tasks.
    pub(super) fn claims(&self) -> impl Iterator<Item = (&str, usize)> {
        let claiming = self.by_tree.iter().filter(|(_, tree)| tree.claimed > 0);
        claiming.map(|(top, tree)| (&**top, tree.claimed))
    }

    /// Returns the jobs of a tree that claim offers of a gang, in the order of their keys.
    pub(super) fn claiming_in(&self, top: &str) -> impl Iterator<Item = &String> {
        let found = self.by_tree.get(top);
        found.into_iter().flat_map(|tree| &tree.claiming)
    }

    /// Returns the keys of the jobs in a tree of roles, in order.
    pub(super) fn jobs_in_tree(&self, top: &str) -> impl Iterator<Item = &String> {
        let found = self.by_tree.get(top);
        found.into_iter().flat_map(|tree| &tree.jobs)
    }
}
