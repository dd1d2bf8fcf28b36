//! The tasks of all jobs together, and the check of their limit.
//!
//! Invariant: a top-level role, with the roles below it, has at most as many as it leaves to others.

use std::collections::BTreeMap;

use super::input::Refusal;
use super::jobs::Jobs;
use super::names::plain;
use super::roles::top_of;

/// Tasks of all jobs together: each takes memory from the start of its run, even if no offer fits.
const TASKS_MAX: u64 = 2_000_000;

/// The sizes of the existing jobs in tasks, in all and by role.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    all: u64,
    /// The size by top role, with the roles below it.
    by_role: BTreeMap<String, u64>,
}

impl Sizes {
    fn for_role(&self, role: &str) -> u64 {
        self.by_role.get(top_of(role)).copied().unwrap_or_default()
    }

    /// Notes the new size of a job of a role.
    pub(super) fn change(&mut self, role: &str, before: u64, after: u64) {
        let of_role = self.by_role.entry(top_of(role).to_owned()).or_default();
        *of_role = (*of_role + after).saturating_sub(before);
        self.all = (self.all + after).saturating_sub(before);
    }
}

impl Sizes {
    /// Counts the tasks of all jobs.
    pub(super) fn count(jobs: &Jobs) -> Self {
        let mut sizes = Self::default();
        for job in jobs.values() {
            sizes.change(job.role(), 0, job.size());
        }
        sizes
    }

    /// Checks that a job may have this number of tasks.
    pub(super) fn check(
        &self,
        jobs: &Jobs,
        (name, role): (&str, &str),
        tasks: u64,
    ) -> Result<(), Refusal> {
        let present = jobs.get(name);
        let (its_role, its_size) = present.map_or((role, 0), |job| (job.role(), job.size()));
        let is_in_role = top_of(its_role) == top_of(role);
        if present.is_some() && is_in_role && tasks <= its_size {
            return Ok(());
        }
        let (of_role, others) = (
            self.for_role(role),
            self.all.saturating_sub(self.for_role(role)),
        );
        let (in_role, elsewhere) = if is_in_role {
            (its_size, 0)
        } else {
            (0, its_size)
        };
        let of_role = of_role.saturating_sub(in_role) + tasks;
        let most = TASKS_MAX.saturating_sub(others.saturating_sub(elsewhere)) / 2;
        if of_role <= most {
            return Ok(());
        }
        Err(Refusal::Conflict(format!(
            "role {:?} and the roles below it would have {of_role} tasks with those of {:?}, and may have {most} at the \
             moment: half of what other roles leave of {TASKS_MAX}; lower `count`, or stop other jobs of the role",
            top_of(role),
            plain(name)
        )))
    }
}
