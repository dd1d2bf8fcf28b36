//! The counters of events since the scheduler started.

use std::collections::BTreeMap;
use std::time::Duration;

use super::names::plain;

/// Counts since the scheduler started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of tasks whose ACCEPT has left.
    pub launched: u64,
    /// Tasks that reached RUNNING.
    pub started: u64,
    pub succeeded: u64,
    /// The number of tasks that failed by themselves, or because their run took too long.
    pub failed: u64,
    pub lost: u64,
    /// Tasks that ended or were lost without a request, and that are started again.
    pub restarts: u64,
    /// Tasks that were killed because the scheduler did not know them.
    pub strays_killed: u64,
    /// Offers that were declined because they could not be decoded.
    pub unreadable_offers: u64,
    /// The waiting times of launched tasks.
    pub queue: Queue,
}

/// The counters since the scheduler started.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    totals: Totals,
    failures: JobFailures,
}

impl Statistics {
    pub(super) fn totals(&self) -> Totals {
        self.totals
    }

    pub(super) fn failures(&self) -> &JobFailures {
        &self.failures
    }

    /// Counts a task whose ACCEPT leaves, and the time for which the task has waited.
    pub(super) fn count_launch(&mut self, waited: Duration) {
        self.totals.launched += 1;
        self.totals.queue.add(waited);
    }

    pub(super) fn count_start(&mut self) {
        self.totals.started += 1;
    }

    pub(super) fn count_success(&mut self) {
        self.totals.succeeded += 1;
    }

    /// Counts a task of a job in a role that failed by its own fault.
    pub(super) fn count_failure(&mut self, key: &str, role: &str) {
        self.totals.failed += 1;
        self.failures.add(key, role);
    }

    pub(super) fn count_loss(&mut self) {
        self.totals.lost += 1;
    }

    pub(super) fn count_restart(&mut self) {
        self.totals.restarts += 1;
    }

    pub(super) fn count_stray_kill(&mut self) {
        self.totals.strays_killed += 1;
    }

    pub(super) fn count_unreadable_offers(&mut self, offers: usize) {
        self.totals.unreadable_offers += offers as u64;
    }

    /// Moves the failures of a job that is gone to those of the other jobs.
    pub(super) fn forget_job(&mut self, key: &str) {
        self.failures.forget(key);
    }
}

/// Jobs whose failures are counted separately: names of jobs come from clients.
const FAILED_JOBS_MAX: usize = 1_000;
/// Stands for all other jobs: beyond the limit, purged, or moved to another role.
const OTHER_JOBS: &str = "";

/// Numbers of failed tasks by job and role.
///
/// Invariant: a count belongs to one job in one role. A job that takes a purged name does not inherit its failures, and the sum of
/// all counts never falls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFailures {
    /// The role of each job, by its key, and the tasks that failed there.
    jobs: BTreeMap<String, (String, u64)>,
    others: u64,
}

impl JobFailures {
    /// Counts a task of the job with this key that has failed.
    pub fn add(&mut self, key: &str, role: &str) {
        if self.jobs.get(key).is_some_and(|(before, _)| before != role) {
            self.forget(key);
        }
        if let Some((_, count)) = self.jobs.get_mut(key) {
            *count += 1;
        } else if self.jobs.len() < FAILED_JOBS_MAX {
            self.jobs.insert(key.to_owned(), (role.to_owned(), 1));
        } else {
            self.others += 1;
        }
    }

    /// Moves the failures of a job that is gone to those of the other jobs.
    pub fn forget(&mut self, key: &str) {
        if let Some((_, count)) = self.jobs.remove(key) {
            self.others += count;
        }
    }

    /// The names of the jobs in the roles that the reader sees, their roles, and how many tasks of each have failed. All others are
    /// together, so that the sum is that of all jobs.
    pub fn seen(&self, sees: impl Fn(&str) -> bool) -> BTreeMap<(&str, &str), u64> {
        let mut seen = BTreeMap::new();
        let mut others = self.others;
        for (key, (role, count)) in &self.jobs {
            match sees(role) {
                true => *seen.entry((plain(key), role.as_str())).or_default() += count,
                false => others += count,
            }
        }
        if others > 0 {
            seen.insert((OTHER_JOBS, OTHER_JOBS), others);
        }
        seen
    }
}

/// The upper bounds of the buckets of queue times.
pub const QUEUE_BOUNDS: [Duration; 10] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(1_800),
    Duration::from_secs(7_200),
];

/// A histogram of queue times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// The number of waiting times up to each of [`QUEUE_BOUNDS`] and above the bound before.
    pub counts: [u64; QUEUE_BOUNDS.len()],
    /// The number of waiting times above all bounds.
    pub beyond: u64,
    pub sum: Duration,
}

impl Queue {
    pub fn add(&mut self, waited: Duration) {
        let bucket = QUEUE_BOUNDS.iter().position(|bound| waited <= *bound);
        match bucket.and_then(|bucket| self.counts.get_mut(bucket)) {
            Some(count) => *count += 1,
            None => self.beyond += 1,
        }
        self.sum = self.sum.saturating_add(waited);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_of_many_jobs_are_bounded() {
        let mut failures = JobFailures::default();
        for number in 0..2_000 {
            failures.add(&format!("job{number}"), "r");
            failures.add("job1", "r");
        }
        let all = failures.seen(|_| true);
        assert_eq!(all.len(), FAILED_JOBS_MAX + 1);
        assert_eq!(all[&("job1", "r")], 2_001);
        assert_eq!(all[&(OTHER_JOBS, OTHER_JOBS)], 1_000);
    }
    /// The next owner of a purged name inherited the failures of the job before.
    #[test]
    fn failures_end_with_their_job() {
        let mut failures = JobFailures::default();
        failures.add("web", "dev");
        failures.add("web", "dev");
        failures.add("db", "dev");
        failures.forget("web");
        failures.forget("unknown");
        let expected = [(("", ""), 2), (("db", "dev"), 1)];
        assert_eq!(failures.seen(|_| true), BTreeMap::from(expected));
        failures.add("web", "dev");
        assert_eq!(failures.seen(|_| true)[&("web", "dev")], 1);
        // A job that moved to another role leaves its failures behind, too.
        failures.add("db", "prod");
        let expected = [(("", ""), 3), (("db", "prod"), 1), (("web", "dev"), 1)];
        assert_eq!(failures.seen(|_| true), BTreeMap::from(expected));
    }

    /// The metrics named jobs and roles to readers that may not view the roles.
    #[test]
    fn hidden_job_failures_have_no_name() {
        let mut failures = JobFailures::default();
        for (key, role) in [("web", "dev"), ("secret", "prod"), ("other", "prod")] {
            failures.add(key, role);
        }
        let seen = failures.seen(|role| role == "dev");
        let expected = [(("", ""), 2), (("web", "dev"), 1)];
        assert_eq!(seen, BTreeMap::from(expected));
        assert!(JobFailures::default().seen(|_| true).is_empty());
    }
}
