//! The objects of the HTTP API: jobs as readers see them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::input::{Event, Refusal};
use super::job::{Job, Phase, Task};
use super::names::{self, NamedJob, plain};
use super::quotas::Quotas;
use super::spread::never_moves;
use super::state::State;
use super::tasks::TaskOrder;
use super::totals::{JobFailures, Totals};
use super::volume::Volume;
use crate::spec::{JobSpec, Kind};

/// The largest number of tasks for which a brief view names obstacles. The cost grows with the tasks, and clients that
/// follow a job read the view often.
const BRIEF_TASKS_MAX: usize = 1_000;

/// A job as lists show it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JobView {
    /// The key of the job in the core.
    #[serde(skip)]
    pub key: String,
    /// The name, unique in the job's role.
    pub name: String,
    pub kind: &'static str,
    pub role: String,
    pub version: u64,
    pub count: u32,
    pub running: usize,
    pub healthy: usize,
    pub pending: usize,
    pub failed: u32,
    pub succeeded: u32,
    pub state: &'static str,
    /// The reason why the job makes no progress; empty if there is none.
    pub why: String,
    /// The obstacles of its wanted tasks in the offers seen last, by agent; only in the view of a single job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub obstacles: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update: Option<UpdateView>,
    /// The version that the service reverted automatically, until a client requests another version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_update: Option<FailedUpdateView>,
    /// The last failure of the target version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<FailureView>,
    /// The next run of the schedule, in seconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_run: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskView>>,
    /// The volumes of its instances; only in the view of a single job.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeView>,
}

/// A failed task, with the time of its next attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailureView {
    pub task_id: String,
    pub agent_id: String,
    /// The time in seconds since the Unix epoch.
    pub time: u64,
    /// The failure in one line: the exit code or signal, lack of memory, or another reason.
    pub text: String,
    /// Failures of this version.
    pub failures: u64,
    /// The earliest start of the next attempt, in seconds since the Unix epoch; `None` while an attempt runs, or if none
    /// follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<u64>,
}

/// An update that is in progress.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UpdateView {
    pub from: u64,
    pub to: u64,
    /// The state: `rolling`, `canary`, `reverting` or `halted`.
    pub state: &'static str,
}

/// A version whose update failed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FailedUpdateView {
    pub version: u64,
    /// The reason in one line, with the last failure of its tasks.
    pub why: String,
}

/// A volume that is kept for an instance or waits for its release.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VolumeView {
    pub volume_id: String,
    /// The key of the job in the core.
    #[serde(skip)]
    pub key: String,
    pub job: String,
    pub role: String,
    pub index: u32,
    pub agent_id: String,
    pub hostname: String,
    pub size_mb: f64,
    pub path: String,
    /// The state: `creating`, `used`, `kept` while no task runs on it, or `releasing`.
    pub state: &'static str,
}

/// A task that has not ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TaskView {
    pub task_id: String,
    pub index: u32,
    pub attempt: u32,
    pub version: u64,
    pub run: u64,
    pub state: String,
    pub healthy: bool,
    pub agent_id: String,
    pub hostname: String,
    pub ports: BTreeMap<String, u16>,
    /// The seconds since 1970 at which the task started to run, or else was launched.
    pub since: u64,
    pub reason: String,
    pub message: String,
}

/// The earlier versions, runs and events of a job.
#[derive(Clone, Debug, Serialize)]
pub struct History {
    pub versions: Vec<VersionView>,
    pub events: Vec<Event>,
}

#[derive(Clone, Debug, Serialize)]
pub struct VersionView {
    pub version: u64,
    /// The time of the submission, in seconds since the Unix epoch.
    pub time: u64,
    pub count: u32,
    pub current: bool,
    /// The last version of which all instances were healthy.
    pub stable: bool,
}

/// The role and user that a version of a job runs as; they decide who may run it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    pub role: String,
    /// The user of the tasks; `None` for the user of the framework.
    pub user: Option<String>,
}

impl Authority {
    /// Returns the authority that a job would run with, submitted or not.
    #[must_use]
    pub fn from_spec(spec: &JobSpec) -> Self {
        Self {
            role: spec.role.clone(),
            user: spec.task.user.clone(),
        }
    }
}

type Rules = dyn Fn(&str, &Authority) -> bool + Send + Sync;

/// Decides whether a principal may run tasks in a role and as a user, by the current rules.
#[derive(Clone)]
pub struct MayRun(Arc<Rules>);

impl MayRun {
    #[must_use]
    pub fn new(rules: impl Fn(&str, &Authority) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(rules))
    }

    pub(super) fn allows(&self, principal: &str, authority: &Authority) -> bool {
        (self.0)(principal, authority)
    }
}

impl fmt::Debug for MayRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MayRun")
    }
}

/// The authorities with which a change of a job can start tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// The authority of the present version.
    pub present: Authority,
    /// The authority of the last healthy version, to which a failed update goes back by itself.
    pub rollback: Option<Authority>,
}

impl State {
    /// Sets the rules that are evaluated before a job goes back to a version by itself.
    pub fn ask_rules(&mut self, may_run: MayRun) {
        self.may_run = Some(may_run);
    }

    /// Returns a job with all of its tasks, without known quotas.
    #[must_use]
    pub fn job(&self, name: &str) -> Option<JobView> {
        Some(JobView {
            tasks: Some(self.task_views((name, None), None, usize::MAX).0),
            ..self.job_alone(name, &Quotas::default())?
        })
    }

    /// Returns the view of a single job without its tasks, given these quotas.
    #[must_use]
    pub fn job_alone(&self, name: &str, quotas: &Quotas) -> Option<JobView> {
        let summary = self.summary(name, quotas)?;
        let mut obstacles = self.obstacles(self.jobs.get(name)?, quotas);
        obstacles.retain(|obstacle| !summary.why.ends_with(obstacle.as_str()));
        obstacles.extend(self.jobs.get(name).and_then(|job| self.spreads.uneven(job)));
        Some(JobView {
            obstacles,
            ..summary
        })
    }

    /// Returns a job without its tasks. The view names obstacles if the job has few tasks.
    #[must_use]
    pub fn brief(&self, name: &str, quotas: &Quotas) -> Option<JobView> {
        let tasks = self.jobs.get(name)?.tasks.len();
        match tasks <= BRIEF_TASKS_MAX {
            true => self.job_alone(name, quotas),
            false => self.summary(name, quotas),
        }
    }

    /// Returns the role of a job that waits for offers: its quota may be the obstacle.
    #[must_use]
    pub fn role_of_waiting(&self, name: &str) -> Option<&str> {
        let job = self.jobs.get(name).filter(|_| self.connection.is_open())?;
        (job.demand(self.clock.at()) > 0).then(|| job.role())
    }

    /// Returns the number of tasks of a job.
    #[must_use]
    pub fn task_count(&self, name: &str) -> usize {
        self.jobs.get(name).map_or(0, |job| job.tasks.len())
    }

    /// Returns the place of the last of the job's first `most` tasks, or `None` if there are none.
    #[must_use]
    pub fn task_place(&self, name: &str, most: usize) -> Option<TaskOrder> {
        self.jobs.get(name)?.tasks.last_of(most)
    }

    /// Returns up to `most` tasks of a job behind a place, and the place of the last if there are more. A job of this name
    /// in another role than the requested one counts as missing.
    #[must_use]
    pub fn task_views(
        &self,
        (name, role): (&str, Option<&str>),
        behind: Option<TaskOrder>,
        most: usize,
    ) -> (Vec<TaskView>, Option<TaskOrder>) {
        let is_asked_for = |job: &&Job| role.is_none_or(|role| job.role() == role);
        let Some(job) = self.jobs.get(name).filter(is_asked_for) else {
            return (Vec::new(), None);
        };
        let mut places = job.tasks.places_behind(behind);
        let shown: Vec<TaskOrder> = places.by_ref().take(most).collect();
        let last = shown.last().filter(|_| places.next().is_some()).copied();
        let views = shown.into_iter().filter_map(|place| {
            let (id, task) = job.tasks.at(name, place)?;
            Some(self.task_view(job, id, task))
        });
        (views.collect(), last)
    }

    /// Returns a job as in the list, with its volumes; cheap even with very many tasks.
    #[must_use]
    pub fn summary(&self, name: &str, quotas: &Quotas) -> Option<JobView> {
        let job = self.jobs.get(name)?;
        Some(JobView {
            volumes: volumes_of(job),
            ..self.view(job, quotas)
        })
    }

    /// Returns the role of a job, which decides who may see and change it.
    #[must_use]
    pub fn role_of(&self, name: &str) -> Option<&str> {
        self.jobs.get(name).map(Job::role)
    }

    /// Returns the authorities of a job's present version and of its rollback.
    #[must_use]
    pub fn authorities_of(&self, name: &str) -> Option<Authorities> {
        let job = self.jobs.get(name)?;
        let stable = job.record.stable.and_then(|version| job.spec_of(version));
        Some(Authorities {
            present: Authority::from_spec(job.spec()?),
            rollback: stable.map(|spec| Authority::from_spec(spec)),
        })
    }

    /// Returns the version that a job would revert to, and its authority.
    ///
    /// # Errors
    ///
    /// As of [`Request::Revert`](super::Request::Revert): there is no such job or no such version.
    pub fn revert_target(
        &self,
        name: &str,
        version: Option<u64>,
    ) -> Result<(u64, Authority), Refusal> {
        let unknown = || Refusal::NotFound(plain(name).to_owned());
        let job = self.jobs.get(name).ok_or_else(unknown)?;
        let version = job.revert_version(version)?;
        let spec = job.spec_of(version).ok_or_else(unknown)?;
        Ok((version, Authority::from_spec(spec)))
    }

    /// Returns a version of a job; without a number the target.
    ///
    /// # Errors
    ///
    /// There is no such job, or the version is forgotten.
    pub fn version(
        &self,
        name: &str,
        version: Option<u64>,
    ) -> Result<(u64, Arc<JobSpec>), Refusal> {
        let unknown = || Refusal::NotFound(plain(name).to_owned());
        let job = self.jobs.get(name).ok_or_else(unknown)?;
        let number = version.unwrap_or(job.record.target);
        job.check_version(number)?;
        let spec = job.spec_of(number).ok_or_else(unknown)?;
        Ok((number, Arc::clone(spec)))
    }

    #[must_use]
    pub fn history(&self, name: &str) -> Option<History> {
        let job = self.jobs.get(name)?;
        let versions = job.record.versions.iter();
        let versions = versions.map(|(version, record)| VersionView {
            version: *version,
            time: record.at.as_secs(),
            count: record.spec.count,
            current: *version == job.record.target,
            stable: job.record.stable == Some(*version),
        });
        Some(History {
            versions: versions.collect(),
            events: job.events.iter().cloned().collect(),
        })
    }

    #[must_use]
    pub fn totals(&self) -> Totals {
        self.statistics.totals()
    }

    /// Returns the number of failures by job since the scheduler started.
    #[must_use]
    pub fn job_failures(&self) -> JobFailures {
        self.statistics.failures().clone()
    }

    /// Whether the master answers.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_open()
    }

    /// Returns the roles of jobs that the master has accepted, with which the framework subscribes.
    #[must_use]
    pub fn roles(&self) -> BTreeSet<String> {
        self.roles.taken()
    }

    /// Returns the roles in which nothing waits for offers: a subscription suppresses them.
    #[must_use]
    pub fn idle_roles(&self) -> BTreeSet<String> {
        self.roles.idle()
    }

    /// Returns how many offers of a role came after the offer with this number; `None` if none can come.
    #[must_use]
    pub fn offers_since(&self, role: &str, number: u64) -> Option<usize> {
        let can_come = self.connection.is_open() && self.roles.refusal(role).is_none();
        can_come.then(|| self.seen.count_since(role, number))
    }

    /// Whether a job is spread, so that its placement needs the agents of the cluster.
    #[must_use]
    pub fn needs_agents(&self) -> bool {
        let mut specs = self.jobs.values().filter_map(Job::spec);
        specs.any(|spec| spec.is_spread())
    }

    /// Returns true if `rebalance` can move instances of the job.
    pub fn can_be_rebalanced(&self, name: &str) -> bool {
        let spec = self.jobs.get(name).and_then(Job::spec);
        spec.is_some_and(|spec| never_moves(spec).is_none())
    }

    /// Names of jobs with their roles. The role decides whether a reader may see the job.
    #[must_use]
    pub fn jobs_named(&self, name: &str) -> Vec<NamedJob> {
        names::jobs_named(&self.jobs, name)
    }

    /// Returns the key of the job of this name in a role.
    #[must_use]
    pub fn key_in(&self, role: &str, name: &str) -> Option<&str> {
        names::key_in(&self.jobs, role, name)
    }

    /// Returns the key of the submitted job: of the job in its role, else of the job that the submission moves from another
    /// role, else a new one.
    ///
    /// # Errors
    ///
    /// The role is too long for a new key.
    pub fn key_for(&self, spec: &JobSpec, moves_from: Option<&str>) -> Result<String, Refusal> {
        names::key_for(&self.jobs, spec, moves_from)
    }

    /// Returns the number of jobs.
    #[must_use]
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn view(&self, job: &Job, quotas: &Quotas) -> JobView {
        let at = self.clock.at();
        let (kind, role, count) = match job.spec() {
            Some(spec) => (kind_of(&spec.kind), spec.role.clone(), spec.count),
            None => ("", String::new(), 0),
        };
        let over = job.record.over.last();
        let (succeeded, failed) = match (job.runs.last_key_value(), over) {
            (Some((_, run)), _) => (run.succeeded, run.failed),
            (None, Some(run)) => (run.succeeded, run.failed),
            (None, None) => (0, 0),
        };
        let failing = job.runs.get(&0).map(|run| &run.slots);
        let failing = failing
            .into_iter()
            .flatten()
            .filter(|slot| slot.failures > 0 && !slot.has_finished);
        JobView {
            key: job.name.clone(),
            name: plain(&job.name).to_owned(),
            kind,
            role,
            version: job.record.target,
            count,
            running: running_of(job),
            healthy: job.healthy(at),
            pending: pending_of(job),
            failed: match job.is_service() {
                true => u32::try_from(failing.count()).unwrap_or(u32::MAX),
                false => failed,
            },
            succeeded,
            state: self.state_of(job),
            why: self.why(job, quotas),
            obstacles: Vec::new(),
            update: update_view(job),
            failed_update: job
                .record
                .failed_update
                .as_ref()
                .map(|failed| FailedUpdateView {
                    version: failed.version,
                    why: failed.why.clone(),
                }),
            last_failure: self.failure_view(job),
            next_run: self.next_run_of(job),
            tasks: None,
            volumes: Vec::new(),
        }
    }

    pub(super) fn state_of(&self, job: &Job) -> &'static str {
        if job.record.stop.is_some() {
            return if job.tasks.is_empty() {
                "stopped"
            } else {
                "stopping"
            };
        }
        if let Some(rollout) = &job.record.rollout {
            return match (rollout.halted.is_some(), rollout.reverting) {
                (true, _) => "failed",
                (false, true) => "reverting",
                (false, false) => "updating",
            };
        }
        let count = job.spec().map_or(0, |spec| spec.count as usize);
        if job.is_service() && job.healthy(self.clock.at()) >= count {
            return "healthy";
        }
        if job.record.failed.is_some() {
            return "failed";
        }
        if job.tasks.values().any(|task| task.record.running.is_some()) {
            return "running";
        }
        let has_run = job.record.runs.values().any(|run| !run.cancelled);
        match job.record.over.last() {
            Some(run) if !has_run && run.failed == 0 && !run.cancelled => "complete",
            Some(run) if !has_run && run.failed > 0 => "failed",
            _ => "pending",
        }
    }

    /// Returns the next time of a schedule that is not stopped.
    fn next_run_of(&self, job: &Job) -> Option<u64> {
        let spec = job.spec().filter(|_| job.record.stop.is_none())?;
        let Kind::Cron(cron) = &spec.kind else {
            return None;
        };
        let present = (job.record.target, job.record.last_due);
        let found = job.next_due.filter(|(found_for, _)| *found_for == present);
        let next = match found {
            Some((_, next)) => next,
            // The job was submitted a moment ago.
            None => (self.options.next_time)(cron, job.record.last_due),
        };
        next.map(|next| next.as_secs())
    }

    fn task_view(&self, job: &Job, id: &str, task: &Task) -> TaskView {
        let since = task.record.running.unwrap_or(task.record.launched);
        let shown = task.record.shown_since;
        let since = shown.unwrap_or_else(|| self.clock.unix_of(since));
        TaskView {
            task_id: id.to_owned(),
            index: task.name.index,
            attempt: task.name.attempt,
            version: task.name.version,
            run: task.name.run,
            state: state_text(task),
            healthy: task.is_healthy(self.clock.at(), job.healthy_after(task.name.version)),
            agent_id: task.record.agent_id.clone(),
            hostname: task.record.hostname.clone(),
            ports: task.record.ports.clone(),
            since: Duration::as_secs(&since),
            reason: task.reason.clone(),
            message: task.message.clone(),
        }
    }
}

/// Returns the number of running tasks whose agents are reachable.
pub(super) fn running_of(job: &Job) -> usize {
    let runs = |task: &&Task| task.record.running.is_some() && task.record.unreachable.is_none();
    job.tasks.values().filter(runs).count()
}

/// Returns the number of tasks to be launched.
pub(super) fn pending_of(job: &Job) -> usize {
    if job.record.stop.is_some() {
        return 0;
    }
    if !job.is_service() {
        return job.runs.values().map(|run| run.waiting.len()).sum();
    }
    let count = job.spec().map_or(0, |spec| spec.count as usize);
    count.saturating_sub(job.tasks.len())
}

fn volumes_of(job: &Job) -> Vec<VolumeView> {
    let volumes = job.volumes.values();
    let views = volumes.map(|volume| view_of(volume, volume_state(job, volume)));
    views.collect()
}

/// Returns the state of an instance's volume, in one word.
pub(super) fn volume_state(job: &Job, volume: &Volume) -> &'static str {
    let mut tasks = job.tasks.of_index(&job.name, 0, volume.record.index);
    let is_used = tasks.any(|task| task.record.volume.as_ref() == Some(&volume.id));
    match (volume.record.is_unsettled(), is_used) {
        (true, _) => "creating",
        (false, true) => "used",
        (false, false) => "kept",
    }
}

pub(super) fn view_of(volume: &Volume, state: &'static str) -> VolumeView {
    let record = &volume.record;
    VolumeView {
        volume_id: volume.id.clone(),
        key: record.job.clone(),
        job: plain(&record.job).to_owned(),
        role: record.role.clone(),
        index: record.index,
        agent_id: record.agent_id.clone(),
        hostname: record.hostname.clone(),
        size_mb: record.size_mb,
        path: record.path.clone(),
        state,
    }
}

fn state_text(task: &Task) -> String {
    match (task.killing.is_some(), task.phase) {
        (true, _) => "TASK_KILLING".to_owned(),
        (false, Phase::Known(state)) => state.as_str_name().to_owned(),
        (false, Phase::Intended | Phase::Launched) => "TASK_STAGING".to_owned(),
    }
}

fn kind_of(kind: &Kind) -> &'static str {
    match kind {
        Kind::Service(_) => "service",
        Kind::Batch(_) => "batch",
        Kind::Cron(_) => "cron",
    }
}

fn update_view(job: &Job) -> Option<UpdateView> {
    let rollout = job.record.rollout.as_ref()?;
    let canaries = match &job.spec()?.kind {
        Kind::Service(service) => service.update.canary,
        _ => 0,
    };
    let state = match (rollout.halted.is_some(), rollout.reverting) {
        (true, _) => "halted",
        (false, true) => "reverting",
        (false, false) if canaries > 0 && !rollout.promoted => "canary",
        (false, false) => "rolling",
    };
    Some(UpdateView {
        from: rollout.from,
        to: job.record.target,
        state,
    })
}
