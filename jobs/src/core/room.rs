//! The room for a new job, or a new version: in number and in the bytes of specifications.
//!
//! Invariants: a role gets at most as much as it leaves to others; the core forgets nothing if that would not be enough.

use std::collections::BTreeSet;
use std::time::Duration;

use super::input::Refusal;
use super::job::Job;
use super::roles::top_of;
use super::state::State;
use crate::spec::{JobSpec, Kind};

/// The age at which a complete batch is forgotten if room is needed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The excess of a role over its limit, including the new job.
#[derive(Clone, Copy, Debug, Default)]
struct Excess {
    jobs: usize,
    bytes: usize,
}

impl State {
    /// Makes room for a job, or for a new version: forgets complete batches of its role if necessary, the oldest first.
    pub(super) fn make_room(&mut self, name: &str, spec: &JobSpec) -> Result<(), Refusal> {
        let jobs = self.jobs_beyond(name, spec);
        let bytes = self.bytes_beyond(name, spec);
        let mut left = Excess {
            jobs: jobs.as_ref().map_or(0, |(beyond, _)| *beyond),
            bytes: bytes.as_ref().map_or(0, |(beyond, _)| *beyond),
        };
        if left.jobs == 0 && left.bytes == 0 {
            return Ok(());
        }
        let mut forgotten = Vec::new();
        for job in self.oldest_complete(name, spec) {
            if left.jobs == 0 && left.bytes == 0 {
                break;
            }
            left.jobs = left.jobs.saturating_sub(1);
            left.bytes = left.bytes.saturating_sub(job.spec_bytes());
            forgotten.push(job.name.clone());
        }
        if let Some((_, why)) = jobs.filter(|_| left.jobs > 0) {
            return Err(Refusal::Conflict(why));
        }
        if let Some((_, why)) = bytes.filter(|_| left.bytes > 0) {
            return Err(Refusal::Conflict(why));
        }
        for name in forgotten {
            let text = "forgotten: it is complete, and another job needs its room";
            self.event(&name, None, text);
            self.purge(&name);
        }
        Ok(())
    }

    /// Returns how many jobs too many the role has with a new job, and why it may have no more.
    fn jobs_beyond(&self, name: &str, spec: &JobSpec) -> Option<(usize, String)> {
        if self.jobs.contains_key(name) {
            return None;
        }
        let role = top_of(&spec.role);
        let in_role = |job: &&Job| top_of(job.role()) == role;
        let of_role = self.jobs.values().filter(in_role).count();
        let of_others = self.jobs.len() - of_role;
        let most = self.limits.jobs.saturating_sub(of_others) / 2;
        let beyond = (of_role + 1).saturating_sub(most);
        let why = || {
            format!(
                "role {role:?} has {of_role} jobs with the roles below it, and may have {most} at the moment: half of what other roles leave of \
                 {}; stop some with purge",
                self.limits.jobs
            )
        };
        (beyond > 0).then(|| (beyond, why()))
    }

    /// Returns how many bytes too many the specifications of the role have with a new job, and why they may have no more.
    fn bytes_beyond(&self, name: &str, spec: &JobSpec) -> Option<(usize, String)> {
        let role = top_of(&spec.role);
        let is_in_role = |job: &Job| top_of(job.role()) == role;
        let (mut of_role, mut of_others) = (spec.stored_bytes() + spec.pattern_bytes(), 0);
        for (key, job) in &self.jobs {
            let is_own = key == name;
            let bytes = match is_own {
                true => job.spec_bytes() - job.bytes_to_go(),
                false => job.spec_bytes(),
            };
            match is_own || is_in_role(job) {
                true => of_role += bytes,
                false => of_others += bytes,
            }
        }
        let most = self.limits.spec_bytes.saturating_sub(of_others) / 2;
        let beyond = of_role.saturating_sub(most);
        let why = || {
            format!(
                "the specifications of role {role:?} and the roles below it would have {of_role} bytes with their versions, \
                 and may have {most} at the moment: half of what other roles leave of {}; stop some jobs with purge, or \
                 fetch what is large with `uris`",
                self.limits.spec_bytes
            )
        };
        (beyond > 0).then(|| (beyond, why()))
    }

    /// Returns the role's other batches that completed some time ago, oldest first, and that neither the job nor another
    /// job starts after.
    fn oldest_complete(&self, name: &str, new: &JobSpec) -> impl Iterator<Item = &Job> {
        let specs = self.jobs.values().filter_map(Job::spec).map(|spec| &**spec);
        let specs = specs.chain([new]);
        let needed = specs.flat_map(|spec| {
            let before = spec.after.iter();
            before.filter_map(|name| self.job_before(spec, name))
        });
        let needed: BTreeSet<&String> = needed.map(|job| &job.name).collect();
        let complete = self.jobs.values().filter_map(|job| {
            let spec = job.spec().filter(|spec| spec.role == new.role)?;
            let is_batch = matches!(spec.kind, Kind::Batch(_)) && job.record.stop.is_none();
            let over = job.record.over.last()?;
            let is_old = over.ended.saturating_add(FORGOTTEN_AFTER) <= self.clock.unix();
            let is_complete = is_batch && job.is_satisfied(self.clock.at());
            let may_go = is_complete && is_old && job.name != name;
            (may_go && !needed.contains(&job.name)).then_some((over.ended, &job.name))
        });
        let complete: BTreeSet<_> = complete.collect();
        let jobs = complete.into_iter().map(|(_, name)| self.jobs.get(name));
        jobs.flatten()
    }
}
