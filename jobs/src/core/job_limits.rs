//! The room for a new job, or a new version: in number and in the bytes of specifications.
//!
//! Invariants: a role gets at most as much as it leaves to others; the core forgets nothing if that would not be enough.

use std::collections::BTreeSet;
use std::time::Duration;

use super::clock::Clock;
use super::input::Refusal;
use super::job::Job;
use super::jobs::Jobs;
use super::names::job_before;
use super::roles::top_of;
use super::state::Limits;
use crate::spec::{JobSpec, Kind};

/// The age at which a complete batch is forgotten if room is needed.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// The excess of a role over its limit, including the new job.
#[derive(Clone, Copy, Debug, Default)]
struct Excess {
    jobs: usize,
    bytes: usize,
}

/// Returns the jobs that the core forgets to make room for a job, or for a new version: complete batches of its role, the
/// oldest first.
///
/// # Errors
///
/// Fails if that would not be enough.
pub(super) fn find_jobs_to_forget(
    (all, limits): (&Jobs, Limits),
    clock: &Clock,
    (name, spec): (&str, &JobSpec),
) -> Result<Vec<String>, Refusal> {
    let jobs = jobs_beyond(all, limits.jobs, (name, spec));
    let bytes = bytes_beyond(all, limits.spec_bytes, (name, spec));
    let mut left = Excess {
        jobs: jobs.as_ref().map_or(0, |(beyond, _)| *beyond),
        bytes: bytes.as_ref().map_or(0, |(beyond, _)| *beyond),
    };
    if left.jobs == 0 && left.bytes == 0 {
        return Ok(Vec::new());
    }
    let mut forgotten = Vec::new();
    for job in oldest_complete(all, clock, (name, spec)) {
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
    Ok(forgotten)
}

/// Returns how many jobs too many the role has with a new job, and why it may have no more.
fn jobs_beyond(
    jobs: &Jobs,
    limit: usize,
    (name, spec): (&str, &JobSpec),
) -> Option<(usize, String)> {
    if jobs.contains_key(name) {
        return None;
    }
    let role = top_of(&spec.role);
    let in_role = |job: &&Job| top_of(job.role()) == role;
    let of_role = jobs.values().filter(in_role).count();
    let of_others = jobs.len() - of_role;
    let most = limit.saturating_sub(of_others) / 2;
    let beyond = (of_role + 1).saturating_sub(most);
    let why = || {
        format!(
            "role {role:?} has {of_role} jobs with the roles below it, and may have {most} at the moment: half of what other roles leave of \
             {}; stop some with purge",
            limit
        )
    };
    (beyond > 0).then(|| (beyond, why()))
}

/// Returns how many bytes too many the specifications of the role have with a new job, and why they may have no more.
fn bytes_beyond(
    jobs: &Jobs,
    limit: usize,
    (name, spec): (&str, &JobSpec),
) -> Option<(usize, String)> {
    let role = top_of(&spec.role);
    let is_in_role = |job: &Job| top_of(job.role()) == role;
    let (mut of_role, mut of_others) = (spec.stored_bytes() + spec.pattern_bytes(), 0);
    for (key, job) in jobs {
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
    let most = limit.saturating_sub(of_others) / 2;
    let beyond = of_role.saturating_sub(most);
    let why = || {
        format!(
            "the specifications of role {role:?} and the roles below it would have {of_role} bytes with their versions, \
             and may have {most} at the moment: half of what other roles leave of {}; stop some jobs with purge, or \
             fetch what is large with `uris`",
            limit
        )
    };
    (beyond > 0).then(|| (beyond, why()))
}

/// Returns the role's other batches that completed some time ago, oldest first, and that neither the job nor another
/// job starts after.
fn oldest_complete<'a>(
    jobs: &'a Jobs,
    clock: &Clock,
    (name, new): (&str, &JobSpec),
) -> impl Iterator<Item = &'a Job> {
    let specs = jobs.values().filter_map(Job::spec).map(|spec| &**spec);
    let specs = specs.chain([new]);
    let needed = specs.flat_map(|spec| {
        let before = spec.after.iter();
        before.filter_map(|name| job_before(jobs, spec, name))
    });
    let needed: BTreeSet<&String> = needed.map(|job| &job.name).collect();
    let complete = jobs.values().filter_map(|job| {
        let spec = job.spec().filter(|spec| spec.role == new.role)?;
        let is_batch = matches!(spec.kind, Kind::Batch(_)) && job.record.stop.is_none();
        let over = job.record.over.last()?;
        let is_old = over.ended.saturating_add(FORGOTTEN_AFTER) <= clock.unix();
        let is_complete = is_batch && job.is_satisfied(clock.at());
        let may_go = is_complete && is_old && job.name != name;
        (may_go && !needed.contains(&job.name)).then_some((over.ended, &job.name))
    });
    let complete: BTreeSet<_> = complete.collect();
    let jobs = complete.into_iter().map(|(_, name)| jobs.get(name));
    jobs.flatten()
}
