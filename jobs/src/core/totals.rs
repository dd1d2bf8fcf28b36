//! The counters of events since the scheduler started.

use std::collections::BTreeMap;
use std::time::Duration;

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

/// Jobs whose failures are counted separately: names of jobs come from clients.
const FAILED_JOBS_MAX: usize = 1_000;
/// The name that stands for all further jobs.
const OTHER_JOBS: &str = "";

/// Numbers of failed tasks by job and role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFailures(BTreeMap<(String, String), u64>);

impl JobFailures {
    /// Counts a failed task of a job, under `OTHER_JOBS` if too many jobs are known.
    pub fn add(&mut self, job: &str, role: &str) {
        let job = (job.to_owned(), role.to_owned());
        let has_room = self.0.len() < FAILED_JOBS_MAX || self.0.contains_key(&job);
        let others = || (OTHER_JOBS.to_owned(), OTHER_JOBS.to_owned());
        let job = if has_room { job } else { others() };
        *self.0.entry(job).or_default() += 1;
    }

    /// Iterates over the jobs' names, their roles, and the number of failed tasks of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let all = self.0.iter();
        all.map(|((job, role), count)| (job.as_str(), role.as_str(), *count))
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
        let all = failures
            .iter()
            .map(|(job, role, count)| ((job, role), count));
        let all: BTreeMap<(&str, &str), u64> = all.collect();
        assert_eq!(all.len(), FAILED_JOBS_MAX + 1);
        assert_eq!(all[&("job1", "r")], 2_001);
        assert_eq!(all[&(OTHER_JOBS, OTHER_JOBS)], 1_000);
    }
}
