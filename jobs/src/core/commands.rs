//! The requests of clients: submitting, changing and stopping jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::changes::{concerns_no_task, update_of};
use super::dealt_times::Dealt;
use super::input::{Accepted, Refusal, Request};
use super::job::{Job, Progress};
use super::job_limits::find_jobs_to_forget;
use super::names::{check_name, plain};
use super::promotion::check_canaries;
use super::records::{JobRecord, Rollout, Stop, VersionRecord};
use super::runs::{forget_slots, start_run};
use super::sizes::Sizes;
use super::spread::never_moves;
use super::state::State;
use super::view::Authorities;
use crate::spec::{GANG_MAX, JobSpec, Kind};

/// Jobs that may exist, in any state.
pub(super) const JOBS_MAX: usize = 10_000;
/// Versions of a job that are remembered, besides those that run.
pub(super) const VERSIONS_MAX: usize = 10;
/// The most instances that a job may have.
const COUNT_MAX: u32 = 1_000_000;

impl State {
    pub(super) fn carry_out(&mut self, request: Request) -> Result<Accepted, Refusal> {
        self.carry_out_for(None, request)
    }

    /// Carries out a request of a principal, who becomes the submitter of the version that the request makes.
    fn carry_out_for(
        &mut self,
        principal: Option<String>,
        request: Request,
    ) -> Result<Accepted, Refusal> {
        let name = match request {
            Request::Submit(spec) => self.submit(&spec.name.clone(), *spec, principal)?,
            Request::Scale { name, count, purge } => self.scale(&name, count, purge)?,
            Request::Restart { name } => self.restart(&name, principal)?,
            Request::Stop { name, purge } => self.stop(&name, purge)?,
            Request::Revert { name, version } => self.revert(&name, version)?,
            Request::Promote { name } => self.promote(&name)?,
            Request::Rebalance { name } => self.rebalance(&name)?,
            Request::Release {
                name,
                index,
                volume_id,
            } => self.release_volume(&name, index, volume_id)?,
            Request::LookForOffers { role } => {
                let version = self.look_for_offers(&role);
                return Ok(Accepted {
                    name: String::new(),
                    role,
                    version,
                });
            }
            Request::Permitted {
                name,
                seen,
                principal,
                request,
            } => return self.permitted(&name, seen.as_ref(), principal, *request),
        };
        Ok(self.accepted(&name))
    }

    /// Returns the job as the client sees it after its change.
    fn accepted(&self, key: &str) -> Accepted {
        let job = self.jobs.get(key);
        Accepted {
            name: plain(key).to_owned(),
            role: job.map(|job| job.role().to_owned()).unwrap_or_default(),
            version: job.map(|job| job.record.target).unwrap_or_default(),
        }
    }

    fn permitted(
        &mut self,
        name: &str,
        seen: Option<&Authorities>,
        principal: Option<String>,
        request: Request,
    ) -> Result<Accepted, Refusal> {
        if self.authorities_of(name).as_ref() != seen {
            return Err(Refusal::Conflict(format!(
                "{:?} was submitted, purged, or changed in role or user at the same time: try again",
                plain(name)
            )));
        }
        match request {
            Request::Submit(spec) => {
                let key = self.submit(name, *spec, principal)?;
                Ok(self.accepted(&key))
            }
            other => self.carry_out_for(principal, other),
        }
    }

    pub(super) fn job_mut(&mut self, name: &str) -> Result<&mut Job, Refusal> {
        let job = self.jobs.get_mut(name);
        job.ok_or_else(|| Refusal::NotFound(plain(name).to_owned()))
    }

    fn submit(
        &mut self,
        name: &str,
        spec: JobSpec,
        submitter: Option<String>,
    ) -> Result<String, Refusal> {
        self.check_submission(name, &spec)?;
        let (at, now) = (self.clock.at(), self.clock.unix());
        let Some(job) = self.jobs.get_mut(name) else {
            return self.create(name, spec, submitter);
        };
        let was_stopped = job.record.stop.is_some();
        let has_run = !job.is_service() && job.active_runs().next().is_none();
        if let Some(present) = job.spec().cloned() {
            let is_same = *present == spec;
            let (update, is_kept) = (update_of(&spec), concerns_no_task(job, &spec));
            if is_same || is_kept {
                let (target, count) = (job.record.target, spec.count);
                job.record.stop = None;
                job.record.held |= was_stopped;
                job.record.failed = None;
                job.progress = Progress { at, ..job.progress };
                if was_stopped {
                    job.record.last_due = now;
                }
                if let Some(version) = job.record.versions.get_mut(&target) {
                    version.spec = Arc::new(spec);
                }
                if update != update_of(&present)
                    && let Some(rollout) = &mut job.record.rollout
                {
                    // The reason of the halt may be gone now.
                    rollout.halted = None;
                    job.progress.failures = 0;
                }
                if present.count != count {
                    set_count(job, count, at);
                }
                self.save(name);
                if !is_same {
                    self.event(name, None, "changed without replacing an instance");
                } else if has_run || was_stopped {
                    self.start_batch(name);
                }
                return Ok(name.to_owned());
            }
        }
        self.make_room(name, &spec)?;
        self.replace(name, spec, submitter);
        Ok(name.to_owned())
    }

    /// # Errors
    /// Returns why the specification is refused, even with enough room.
    pub(super) fn check_submission(&self, name: &str, spec: &JobSpec) -> Result<(), Refusal> {
        check_name(&self.jobs, name, &spec.role)?;
        self.check_no_purge(name)?;
        self.check_same_volume(name, spec)
            .map_err(Refusal::Conflict)?;
        let present = self.jobs.get(name);
        if present.is_some_and(|job| same_kind(job, spec).is_none()) {
            return Err(Refusal::Conflict(format!(
                "{:?} is of another kind: stop it with purge first, or take another name",
                spec.name
            )));
        }
        self.check_count(name, spec)
    }

    /// Returns the first of these jobs that would be refused, by its key, and the reason.
    #[must_use]
    pub fn first_refusal(&self, specs: &[(String, JobSpec)]) -> Option<(String, Refusal)> {
        specs.iter().find_map(|(key, spec)| {
            let refusal = self.check_submission(key, spec).err()?;
            Some((spec.name.clone(), refusal))
        })
    }

    /// # Errors
    /// Returns a conflict if the job is to be purged once its tasks have ended: a promised purge of volumes is not taken
    /// back.
    fn check_no_purge(&self, name: &str) -> Result<(), Refusal> {
        let stop = self.jobs.get(name).and_then(|job| job.record.stop);
        match stop.is_some_and(|stop| stop.purge) {
            true => Err(Refusal::Conflict(format!(
                "{:?} is being purged, and is there until its tasks have ended: try again when it is gone",
                plain(name)
            ))),
            false => Ok(()),
        }
    }

    fn create(
        &mut self,
        name: &str,
        spec: JobSpec,
        submitter: Option<String>,
    ) -> Result<String, Refusal> {
        self.make_room(name, &spec)?;
        let target = 1;
        let version = VersionRecord {
            spec: Arc::new(spec),
            at: self.clock.unix(),
            submitter,
        };
        let record = JobRecord {
            target,
            versions: BTreeMap::from([(target, version)]),
            stable: None,
            rollout: None,
            failed: None,
            failed_update: None,
            failure: None,
            stop: None,
            held: true,
            broken: false,
            moving: BTreeSet::new(),
            attempts: 0,
            next_run: 1,
            runs: BTreeMap::new(),
            over: Vec::new(),
            sizes: BTreeMap::new(),
            last_due: self.clock.unix(),
            dealt: Dealt::default(),
            is_named_in_role: true,
            born: self.meta.generation,
        };
        let mut job = Job::new(name, record);
        job.progress.at = self.clock.at();
        job.begin_dealt();
        self.jobs.insert(name.to_owned(), job);
        self.save(name);
        self.event(name, None, format!("version {target} submitted"));
        self.start_batch(name);
        Ok(name.to_owned())
    }

    /// Replaces the specification with a new version, for which there is room.
    fn replace(&mut self, name: &str, spec: JobSpec, submitter: Option<String>) {
        let at = self.clock.unix();
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let version = job.record.versions.keys().max().map_or(1, |last| last + 1);
        let made = VersionRecord {
            spec: Arc::new(spec),
            at,
            submitter,
        };
        job.record.versions.insert(version, made);
        self.event(name, None, format!("version {version} submitted"));
        self.go_to(name, version, false);
    }

    /// Makes a version the target of a job, and starts a stopped job again. A service makes a rolling update from the
    /// version that the target replaces, if there is one. A batch runs again with the target. A cron job uses the
    /// target from its next time on.
    pub(super) fn go_to(&mut self, name: &str, version: u64, reverting: bool) {
        let (at, now) = (self.clock.at(), self.clock.unix());
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let was_stopped = job.record.stop.take().is_some();
        job.record.held |= was_stopped;
        job.record.moving.clear();
        job.record.failed = None;
        if !reverting {
            job.record.failed_update = None;
        }
        job.record.failure = None;
        let role = job.role().to_owned();
        let from = std::mem::replace(&mut job.record.target, version);
        if job.role() != role {
            self.statistics.forget_job(name);
        }
        job.go_on_from(now, (from, was_stopped));
        if job.is_service() {
            let kept_up = job.record.rollout.take().map(|rollout| rollout.from);
            let from = replaced_by(job, version, (from, kept_up));
            // Versions that never ran or were stopped are not kept up meanwhile; instances that outlived the stop are.
            let has_run = job.record.stable.is_some() || !job.tasks.is_empty();
            let is_over = job.record.held && job.healthy(at) == 0;
            let from = from.filter(|_| has_run && !is_over);
            job.record.rollout = from.map(|from| Rollout {
                from,
                reverting,
                promoted: false,
                halted: None,
            });
            job.progress = Progress {
                at,
                ..Progress::default()
            };
        } else if !job.is_cron() {
            job.cancel_runs();
        }
        forget_versions(job);
        self.gangs.end_rest(name);
        self.forgive(name);
        self.start_batch(name);
        self.save(name);
    }

    /// Forgets the failures of the previous version: they do not concern the new version.
    fn forgive(&mut self, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let Some(run) = job.runs.get_mut(&0) else {
            return;
        };
        let mut changed = Vec::new();
        for (index, slot) in (0..).zip(&mut run.slots) {
            if slot.failures > 0 || slot.not_before > Duration::ZERO {
                slot.failures = 0;
                slot.not_before = Duration::ZERO;
                changed.push((index, *slot));
            }
        }
        for (index, slot) in changed {
            self.outbox.write(job.slot_key(0, index).put(&slot));
        }
    }

    fn scale(&mut self, name: &str, count: u32, purge: bool) -> Result<String, Refusal> {
        let at = self.clock.at();
        self.check_no_purge(name)?;
        let job = self.job_mut(name)?;
        if !job.is_service() {
            let name = plain(name);
            let text = format!("{name:?} is not a service: change its count in its file");
            return Err(Refusal::Conflict(text));
        }
        if !(1..=COUNT_MAX).contains(&count) {
            let text = format!("a service has 1 to {COUNT_MAX} instances; to have none, stop it");
            return Err(Refusal::Invalid(text));
        }
        if job.is_gang(job.record.target) && count > GANG_MAX {
            let text = format!("a gang has {GANG_MAX} instances at most");
            return Err(Refusal::Invalid(text));
        }
        let role = job.role().to_owned();
        Sizes::count(&self.jobs).check(&self.jobs, (name, &role), u64::from(count))?;
        let job = self.job_mut(name)?;
        set_count(job, count, at);
        self.save(name);
        self.event(name, None, format!("scaled to {count}"));
        if let Some(job) = self.jobs.get(name).filter(|_| purge) {
            let beyond = job.volumes.range(count..).map(|(index, _)| *index);
            let beyond = beyond.collect();
            self.release_volumes_of(name, &beyond);
        }
        Ok(name.to_owned())
    }

    /// Releases the volume of an instance. If `volume_id` is set, releases only the volume with this id.
    fn release_volume(
        &mut self,
        name: &str,
        index: u32,
        volume_id: Option<String>,
    ) -> Result<String, Refusal> {
        let job = self.job_mut(name)?;
        let Some(volume) = job.volumes.get(&index) else {
            let name = plain(name);
            let text = format!("instance {index} of {name:?} has no volume");
            return Err(Refusal::Conflict(text));
        };
        if let Some(other) = volume_id.filter(|id| *id != volume.id) {
            return Err(Refusal::Conflict(format!(
                "the volume of instance {index} of {:?} is {:?} by now, not {other:?}: it is left as it is",
                plain(name),
                volume.id
            )));
        }
        self.release_volumes_of(name, &BTreeSet::from([index]));
        self.jobs.mark_dirty(name);
        Ok(name.to_owned())
    }

    /// Promotes healthy canaries, so that the update continues.
    fn promote(&mut self, name: &str) -> Result<String, Refusal> {
        let at = self.clock.at();
        let job = self.job_mut(name)?;
        check_canaries(job, at)?;
        if let Some(rollout) = &mut job.record.rollout {
            rollout.promoted = true;
        }
        job.progress.at = at;
        self.save(name);
        self.event(name, None, "canaries promoted");
        Ok(name.to_owned())
    }

    /// Begins to move instances from fuller values to emptier ones, as far as known agents have room.
    fn rebalance(&mut self, name: &str) -> Result<String, Refusal> {
        let at = self.clock.at();
        let unknown = || Refusal::NotFound(plain(name).to_owned());
        let job = self.jobs.get(name).ok_or_else(unknown)?;
        let spec = job.spec().ok_or_else(unknown)?;
        let refused = |text: &str| Err(Refusal::Conflict(format!("{:?} {text}", plain(name))));
        if let Some(text) = never_moves(spec) {
            return refused(text);
        }
        if job.record.stop.is_some() || job.record.rollout.is_some() {
            return refused("is being stopped or updated: rebalance it once it is healthy");
        }
        let moving = self.spreads.to_move(job, spec);
        let text = match moving.len() {
            0 => "to be rebalanced: its instances are as even as the known agents allow".to_owned(),
            1 => "to be rebalanced: 1 instance moves".to_owned(),
            many => format!("to be rebalanced: {many} instances move"),
        };
        if let Some(job) = self.jobs.get_mut(name) {
            job.record.moving = moving;
            job.progress.at = at;
        }
        self.save(name);
        self.event(name, None, text);
        Ok(name.to_owned())
    }

    /// Requests the offers of a role for a moment, for a plan; returns the number of the last earlier offer.
    fn look_for_offers(&mut self, role: &str) -> u64 {
        let last = self.seen.last();
        if self.connection.is_open() && self.roles.look_for(self.clock.at(), role) {
            let held = &self.offers;
            self.seen.forget_answered(role, |id| held.contains(id));
        }
        last
    }

    /// Makes room for a job, or for a new version: forgets complete batches of its role if necessary.
    fn make_room(&mut self, name: &str, spec: &JobSpec) -> Result<(), Refusal> {
        let all = (&self.jobs, self.limits);
        for name in find_jobs_to_forget(all, &self.clock, (name, spec))? {
            let text = "forgotten: it is complete, and another job needs its room";
            self.event(&name, None, text);
            self.purge(&name);
        }
        Ok(())
    }

    fn restart(&mut self, name: &str, submitter: Option<String>) -> Result<String, Refusal> {
        self.check_no_purge(name)?;
        let job = self.job_mut(name)?;
        let Some(spec) = job.spec().map(|spec| JobSpec::clone(spec)) else {
            return Err(Refusal::NotFound(plain(name).to_owned()));
        };
        let is_running = job.is_cron() && job.active_runs().next().is_some();
        match is_running {
            true => Sizes::count(&self.jobs).check(
                &self.jobs,
                (name, &spec.role),
                u64::from(spec.count),
            )?,
            false => self.check_count(name, &spec)?,
        }
        self.make_room(name, &spec)?;
        if let Some(job) = self.jobs.get_mut(name).filter(|_| is_running) {
            job.cancel_runs();
            // The run that starts now replaces the postponed run.
            job.put_off = None;
        }
        self.replace(name, spec, submitter);
        if is_running {
            self.start_run(name);
        }
        Ok(name.to_owned())
    }

    fn stop(&mut self, name: &str, purge: bool) -> Result<String, Refusal> {
        let job = self.job_mut(name)?;
        let is_promised = job.record.stop.is_some_and(|stop| stop.purge);
        let purge = purge || is_promised;
        job.record.stop = Some(Stop { purge });
        job.record.rollout = None;
        job.record.moving.clear();
        job.cancel_runs();
        self.save(name);
        self.event(name, None, "to be stopped");
        Ok(name.to_owned())
    }

    fn revert(&mut self, name: &str, version: Option<u64>) -> Result<String, Refusal> {
        self.check_no_purge(name)?;
        let job = self.job_mut(name)?;
        let version = job.revert_version(version)?;
        // Reverting keeps the current number of instances: the service may carry more load now than when it had that
        // version.
        let count = job.spec().filter(|_| job.is_service());
        let count = count.map(|spec| spec.count);
        if let Some(spec) = job.spec_of(version) {
            let spec = Arc::new(with_count(spec, count.unwrap_or(spec.count)));
            check_name(&self.jobs, name, &spec.role)?;
            self.check_same_volume(name, &spec)
                .map_err(Refusal::Conflict)?;
            self.check_count(name, &spec)?;
            if let Some(version) = self.job_mut(name)?.record.versions.get_mut(&version)
                && version.spec.count != spec.count
            {
                version.spec = spec;
            }
        }
        self.event(name, None, format!("to go back to version {version}"));
        self.go_to(name, version, true);
        Ok(name.to_owned())
    }

    /// Checks the number of tasks that a job needs at its submission: tasks of a schedule count when its runs start.
    fn check_count(&self, name: &str, spec: &JobSpec) -> Result<(), Refusal> {
        match &spec.kind {
            Kind::Service(_) | Kind::Batch(_) => {
                let job = (name, &*spec.role);
                Sizes::count(&self.jobs).check(&self.jobs, job, u64::from(spec.count))
            }
            Kind::Cron(_) => Ok(()),
        }
    }

    /// Starts a run of a batch; does nothing for jobs of other kinds.
    fn start_batch(&mut self, name: &str) {
        let job = self.jobs.get(name);
        let kind = job.and_then(|job| job.spec()).map(|spec| &spec.kind);
        if matches!(kind, Some(Kind::Batch(_))) {
            self.start_run(name);
        }
    }

    pub(super) fn start_run(&mut self, name: &str) {
        if let Some(job) = self.jobs.get_mut(name) {
            let consequences = start_run(job, &self.clock);
            self.apply(name, consequences);
        }
    }

    /// Removes a job that has no tasks left.
    pub(super) fn purge(&mut self, name: &str) {
        let volumes = self.jobs.get(name).map(|job| job.volumes.keys().copied());
        let volumes = volumes.into_iter().flatten().collect();
        self.release_volumes_of(name, &volumes);
        // The event comes while the job exists, so that it belongs to the job's role.
        self.event(name, None, "purged");
        let Some(job) = self.jobs.remove(name) else {
            return;
        };
        // A later job of the same name begins with version 1; the new generation keeps its task ids distinct.
        self.meta
            .begin_generation(self.clock.unix(), self.options.drawn);
        self.save_meta();
        for (number, run) in &job.runs {
            self.outbox.write_all(forget_slots(name, *number, run));
        }
        self.outbox.write_all(job.deletions());
        self.statistics.forget_job(name);
        self.kills.remove_job(name);
        self.gangs.end_rest(name);
    }
}

fn same_kind(job: &Job, spec: &JobSpec) -> Option<()> {
    let present = job.spec()?;
    (std::mem::discriminant(&present.kind) == std::mem::discriminant(&spec.kind)).then_some(())
}

/// Returns the version of the present instances that a new target replaces: the version that an update has kept up until
/// now if its target was not healthy yet, else that target. A second roll to the same target leaves the same version to
/// replace.
fn replaced_by(job: &Job, version: u64, (target, kept_up): (u64, Option<u64>)) -> Option<u64> {
    let kept_up = kept_up.filter(|from| *from != version);
    let is_proven = job.record.stable == Some(target);
    let target = Some(target).filter(|target| *target != version);
    match is_proven {
        true => target.or(kept_up),
        false => kept_up.or(target),
    }
}

/// Sets the number of instances of a service, for any later version too. The progress of an update starts again.
fn set_count(job: &mut Job, count: u32, at: Duration) {
    job.progress = Progress {
        at,
        healthy: 0,
        ..job.progress
    };
    let record = &mut job.record;
    let from = record.rollout.as_ref().map(|rollout| rollout.from);
    let versions = [Some(record.target), from, record.stable];
    for version in BTreeSet::from(versions).into_iter().flatten() {
        if let Some(version) = record.versions.get_mut(&version) {
            version.spec = Arc::new(with_count(&version.spec, count));
        }
    }
}

/// Returns the specification with `count` instances, limited to the maximum of a gang.
fn with_count(spec: &JobSpec, count: u32) -> JobSpec {
    let most = spec.gang.map_or(count, |_| GANG_MAX);
    JobSpec {
        count: count.min(most),
        ..spec.clone()
    }
}

/// Removes the oldest versions that no task runs and to which the job may not go back.
fn forget_versions(job: &mut Job) {
    let kept = kept_versions(job, VERSIONS_MAX);
    let versions = &mut job.record.versions;
    versions.retain(|version, _| kept.contains(version));
}

/// Returns the versions that run or that the job may revert to, and the newest ones.
pub(super) fn kept_versions(job: &Job, newest: usize) -> BTreeSet<u64> {
    let record = &job.record;
    let mut needed: BTreeSet<u64> = job.tasks.values().map(|task| task.name.version).collect();
    needed.extend(record.runs.values().map(|run| run.version));
    needed.extend(record.stable);
    needed.insert(record.target);
    needed.extend(record.rollout.as_ref().map(|rollout| rollout.from));
    needed.extend(record.versions.keys().rev().take(newest));
    needed
}
