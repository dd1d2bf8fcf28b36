//! Executes the decisions for each job, at present and when time passes.

use super::clock::Clock;
use super::consequence::Consequence;
use super::job::{Job, KillReason, Progress};
use super::names::{check_name, job_before};
use super::records::{FailedUpdate, Rollout};
use super::runs::{
    Firing, decide_runs, end_cancelled_runs, fire, follow_set_clock, forget_slots_beyond,
};
use super::service::{self, Plan};
use super::state::State;
use super::view::Authority;
use super::why_not::last_text;
use crate::spec::Kind;

/// Consecutive failures of new instances without a healthy one after which an update has failed.
const ILL_MAX: u32 = 3;

impl State {
    pub(super) fn decide(&mut self) {
        for name in self.jobs.take_dirty() {
            self.decide_job(&name);
        }
    }

    fn decide_job(&mut self, name: &str) {
        let Some(job) = self.jobs.get(name) else {
            return;
        };
        if job.record.stop.is_some() {
            self.stop_tasks(name);
        } else if job.is_service() {
            self.check_volumes(name);
            let Some(job) = self.jobs.get_mut(name) else {
                return;
            };
            if job.record.broken && job.tasks.is_empty() {
                job.record.broken = false;
                self.outbox.write_all(job.records());
            }
            let plan = service::plan(job, self.clock.at());
            let count = job.spec().map_or(0, |spec| spec.count);
            self.outbox.write_all(forget_slots_beyond(job, count));
            self.follow(name, plan);
        } else {
            self.decide_runs(name);
        }
    }

    /// Ends the runs of a job that are over.
    pub(super) fn decide_runs(&mut self, name: &str) {
        let may_start = self.may_start(name);
        if let Some(job) = self.jobs.get_mut(name) {
            let consequences = decide_runs(job, may_start, &self.clock);
            self.apply(name, consequences);
        }
    }

    fn stop_tasks(&mut self, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let is_over = job.tasks.is_empty();
        let is_purged = is_over && job.record.stop.is_some_and(|stop| stop.purge);
        let consequences = stop_tasks(job, &self.clock);
        self.apply(name, consequences);
        if is_purged {
            self.purge(name);
        }
    }

    /// Executes the plan of a service, and judges its update.
    fn follow(&mut self, name: &str, plan: Plan) {
        for (task, reason) in &plan.kills {
            self.ask_kill(task, *reason);
        }
        let may_start = self.may_start(name);
        let at = self.clock.at();
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let is_kept_waiting = job.is_before_its_start() && !may_start;
        (job.wanted, job.wanted_beyond) = match is_kept_waiting {
            true => (Vec::new(), 0),
            false => (plan.wanted, plan.wanted_beyond),
        };
        if plan.new_healthy > job.progress.healthy || plan.awaits_promotion {
            job.progress = Progress {
                at,
                healthy: plan.new_healthy,
                failures: 0,
            };
        }
        if is_kept_waiting || plan.waits_for_agent {
            // An instance cannot become healthy while it may not start, or while its agent is away.
            job.progress.at = at;
        }
        // The stopped tasks were not killed in time, and all of them run on.
        if plan.is_done && std::mem::take(&mut job.record.held) {
            self.outbox.write_all(job.records());
        }
        if plan.is_good {
            return self.settled(name);
        }
        let Some(update) = update_of(job) else {
            return;
        };
        let is_late = at.saturating_sub(job.progress.at) > update.progress_deadline;
        if is_late && !job.record.moving.is_empty() && job.record.rollout.is_none() {
            job.record.moving.clear();
            self.save(name);
            return self.event(
                name,
                None,
                "not all instances could move: they stay where they are",
            );
        }
        let failed = match &job.record.rollout {
            Some(Rollout {
                halted: Some(_), ..
            }) => None,
            // Every version after the first healthy version comes by an update.
            None if job.record.stable.is_some() || job.record.failed.is_some() => None,
            _ if job.progress.failures >= ILL_MAX => Some(format!(
                "its instances have ended {} times without one becoming healthy",
                job.progress.failures
            )),
            // No instance can become healthy without a master.
            _ if self.connection.is_open()
                && at.saturating_sub(job.progress.at) > update.progress_deadline =>
            {
                Some(format!(
                    "no instance has become healthy for {:?}",
                    update.progress_deadline
                ))
            }
            _ => None,
        };
        match failed {
            Some(why) if job.record.rollout.is_some() => self.update_failed(name, why),
            Some(why) => self.first_failed(name, why),
            None => {}
        }
    }

    /// Marks the target as good, since all instances have run it and been healthy for long enough: later updates revert to
    /// it.
    fn settled(&mut self, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let target = job.record.target;
        let rollout = job.record.rollout.take();
        if rollout.is_none() && job.record.stable == Some(target) {
            return;
        }
        job.record.stable = Some(target);
        job.record.failed = None;
        self.save(name);
        self.jobs.unmark_dirty(name);
        let text = match rollout {
            Some(_) => format!("all instances run version {target} and are healthy"),
            None => format!("healthy in version {target}"),
        };
        self.event(name, None, text);
    }

    /// Handles the failure of the first version of a service. There is no version to revert to, so the scheduler keeps
    /// trying: what the version needs may still appear.
    fn first_failed(&mut self, name: &str, why: String) {
        let Some(job) = self.jobs.get_mut(name) else {
            return;
        };
        let text = format!("version {} has failed: {why}", job.record.target);
        job.record.failed = Some(why);
        self.save(name);
        self.jobs.unmark_dirty(name);
        self.event(name, None, text);
    }

    /// Returns the reason why a job must not go back by itself to a version, if there is a reason.
    fn may_not_return(&self, name: &str, version: u64) -> Option<String> {
        let record = self.jobs.get(name)?.record.versions.get(&version)?;
        if let Err(refusal) = check_name(&self.jobs, name, &record.spec.role) {
            return Some(refusal.to_string());
        }
        // No client requests the rollback: the job goes back with the present rights of its submitter.
        let (submitter, may_run) = record.submitter.as_ref().zip(self.may_run.as_ref())?;
        let authority = Authority::from_spec(&record.spec);
        (!may_run.allows(submitter, &authority)).then(|| {
            format!("{submitter:?}, who submitted version {version}, may no longer run it")
        })
    }

    fn update_failed(&mut self, name: &str, why: String) {
        let Some(job) = self.jobs.get(name) else {
            return;
        };
        let target = job.record.target;
        let reverts = update_of(job).is_some_and(|update| update.auto_revert);
        let stable = job.record.stable.filter(|stable| *stable != target);
        // No rollback is possible where the last good version itself fails.
        let back = stable.filter(|_| reverts);
        let prevented = back.and_then(|back| self.may_not_return(name, back));
        let back = back.filter(|_| prevented.is_none());
        let why = match prevented {
            Some(prevented) => format!("{why}; it is not taken back: {prevented}"),
            None => why,
        };
        let told = format!("{why}{}", last_text(job));
        let job = self.jobs.get_mut(name);
        let Some(rollout) = job.and_then(|job| job.record.rollout.as_mut()) else {
            return;
        };
        let text = format!("the update to version {target} has failed: {why}");
        if back.is_none() {
            rollout.halted = Some(why);
        }
        self.event(name, None, text);
        if let Some(back) = back {
            self.event(name, None, format!("goes back to version {back}"));
            self.go_to(name, back, true);
            if let Some(job) = self.jobs.get_mut(name) {
                job.record.failed_update = Some(FailedUpdate {
                    version: target,
                    why: told,
                });
            }
        }
        self.save(name);
    }

    /// Whether all jobs that a job starts after are ready.
    pub(super) fn may_start(&self, name: &str) -> bool {
        let Some(spec) = self.jobs.get(name).and_then(Job::spec) else {
            return true;
        };
        spec.after.iter().all(|other| {
            let other = job_before(&self.jobs, spec, other);
            other.is_some_and(|other| other.is_satisfied(self.clock.at()))
        })
    }

    pub(super) fn tick(&mut self, kills_waiting: usize) {
        let at = self.clock.at();
        let mut given_up = Vec::new();
        let mut timed_out = Vec::new();
        for job in self.jobs.values() {
            let is_short = job.is_service() || job.record.stop.is_some();
            for (id, task) in &job.tasks {
                // The outcome of a task that is being killed does not matter, and the job waits for its end.
                let patience = match is_short || task.killing.is_some() {
                    true => self.options.service_unreachable,
                    false => self.options.batch_unreachable,
                };
                // Remembered states are no reason to give up a task: its agent may have come back.
                let is_known = self.connection.is_open() && !task.is_asked_for;
                let away = task
                    .record
                    .unreachable
                    .filter(|_| is_known && !job.is_bound(task));
                if away.is_some_and(|since| at.saturating_sub(since) > patience) {
                    given_up.push(id.clone());
                }
                let timeout = job
                    .batch_of(task.name.version)
                    .and_then(|batch| batch.timeout);
                let ran = task.record.running.map(|since| at.saturating_sub(since));
                if ran.zip(timeout).is_some_and(|(ran, timeout)| ran > timeout) {
                    timed_out.push(id.clone());
                }
            }
        }
        for id in given_up {
            self.task_lost(&id, "its agent was unreachable for too long");
        }
        for id in timed_out {
            self.ask_kill(&id, KillReason::TimedOut);
        }
        self.save_clock();
        self.ask_for_volumes();
        let names: Vec<_> = self.jobs.keys().cloned().collect();
        if self.clock.take_set_back() {
            for name in &names {
                follow_set_clock(self, name);
            }
        }
        self.kills.allow(kills_waiting);
        if self.clock.may_fire() {
            let mut firing = Firing::default();
            for name in &names {
                fire(self, name, &mut firing);
            }
        }
        self.kills.add_jobs(names.iter());
        self.jobs.mark_all_dirty();
    }
}

/// Kills the tasks of a stopped job; once it has none, ends its runs.
fn stop_tasks(job: &mut Job, clock: &Clock) -> Vec<Consequence> {
    job.wanted.clear();
    job.wanted_beyond = 0;
    if !job.tasks.is_empty() {
        let kill = |id: &String| Consequence::Kill(id.clone(), KillReason::Stopped);
        return job.tasks.keys().map(kill).collect();
    }
    let mut consequences = end_cancelled_runs(job, clock);
    let records = forget_slots_beyond(job, 0);
    consequences.extend(records.into_iter().map(Consequence::Write));
    consequences
}

fn update_of(job: &Job) -> Option<crate::spec::Update> {
    match &job.spec()?.kind {
        Kind::Service(service) => Some(service.update),
        _ => None,
    }
}
