//! The promises of the job scheduler to its users, checked in each step.
//!
//! Invariants of these records: they outlive the processes of the scheduler, and use true time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_jobs::core::{Accept, Effect, Input, State, TaskName, TaskView};
use meseta_proto::mesos::v1::{self as pb, TaskState};

use super::specs::{
    ALLOWING, BATCH, COUNT, CRON, FRONT, FRONT_COUNT, GANG, MAX_UNAVAILABLE, MESH, MESH_COUNT,
    REPLACING, SERVICE, SURGE, TIMED, TIMEOUT,
};
use crate::checks::Broken;
use crate::cluster::SECOND;

/// The bound on clock drift, as a part of the time; milliseconds are rounded.
const DRIFT_PARTS: u32 = 100;

/// Returns the name of a task's job.
pub(super) fn job_of(task: &str) -> Option<String> {
    let name: TaskName = task.parse().ok()?;
    Some(name.job)
}

/// Returns the job, the run and the index of a task.
fn index_of(task: &str) -> Option<(String, u64, u32)> {
    let name: TaskName = task.parse().ok()?;
    Some((name.job, name.run, name.index))
}

/// Whether a task may run for [`TIMEOUT`].
fn has_timeout(task: &str) -> bool {
    job_of(task).is_some_and(|job| TIMED.contains(&job.as_str()))
}

/// The record of all actions of one framework's schedulers.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// The ids of all tasks that were launched.
    launched: BTreeSet<String>,
    /// The last launch of each job.
    launches: BTreeMap<String, u64>,
    /// The offers of the stream without a response that were not rescinded.
    offers: BTreeSet<String>,
    /// The time at which the scheduler first learned that a task with a timeout runs.
    running: BTreeMap<String, u64>,
    /// The indexes that have succeeded, by job and run: the scheduler kills their other tasks.
    finished: BTreeSet<(String, u64, u32)>,
    /// Tasks for which the scheduler has requested a kill.
    killed: BTreeSet<String>,
    /// The tasks of services after the previous step.
    services: BTreeMap<&'static str, Vec<TaskView>>,
    /// The number of failures before a step.
    failed: u64,
    /// The first update with the success of each index of a batch.
    successes: BTreeMap<(String, u64, u32), pb::TaskStatus>,
    /// The minutes since 1970 that the clocks of the schedulers have shown.
    minutes: BTreeSet<u64>,
    /// Whether a client has stopped jobs.
    pub(super) is_stopping: bool,
    pub(super) broken: Vec<Broken>,
}

impl Promises {
    fn broke(&mut self, rule: &'static str, what: String) {
        self.broken.push(Broken::new(rule, what));
    }

    /// Records input from the master before the scheduler sees it.
    pub(super) fn before(&mut self, time: u64, state: &State, input: &Input) {
        self.failed = state.totals().failed;
        match input {
            Input::Offers(offers) => {
                self.offers
                    .extend(offers.iter().map(|offer| offer.id.clone()));
            }
            Input::Rescinded(id) => {
                self.offers.remove(id);
            }
            Input::Disconnected | Input::Subscribed { .. } => self.offers.clear(),
            Input::Update(status) => {
                let id = &status.task_id.value;
                if status.state() == TaskState::TaskRunning && has_timeout(id) {
                    self.running.entry(id.clone()).or_insert(time);
                }
                if status.state() == TaskState::TaskFinished {
                    self.finished.extend(index_of(id));
                }
            }
            _ => {}
        }
    }

    /// Checks the effects of an input on the scheduler.
    pub(super) fn after(&mut self, time: u64, state: &State, told: &Told, effects: &[Effect]) {
        let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
        for effect in effects {
            match effect {
                Effect::Accept(accept) => self.accepts(time, accept, &mut sizes),
                Effect::Decline { offers, .. } => {
                    self.offers.retain(|id| !offers.contains(id));
                }
                Effect::Kill { task_id, .. } => {
                    self.killed.insert(task_id.clone());
                    self.kills_in_time(time, state, task_id);
                }
                _ => {}
            }
        }
        if let Some(size) = sizes.get(MESH)
            && *size != MESH_COUNT as usize
            && state.job(MESH).is_some_and(|job| job.update.is_none())
        {
            self.broke(
                "J8",
                format!("{size} of {MESH_COUNT} of the gang {MESH} start"),
            );
        }
        self.counts_no_failure(state, told);
        self.keeps_limits(state);
    }

    /// Checks an ACCEPT that is sent: each of its tasks has a new id, and its offer still exists.
    fn accepts(&mut self, time: u64, accept: &Accept, sizes: &mut BTreeMap<String, usize>) {
        if !self.offers.remove(&accept.offer.id) {
            let what = format!("offer {} was answered or rescinded before", accept.offer.id);
            self.broke("J5", what);
        }
        for task in &accept.tasks {
            if !self.launched.insert(task.task_id.clone()) {
                self.broke("J6", format!("the id {} is used again", task.task_id));
            }
            let Some(job) = job_of(&task.task_id) else {
                self.broke("J6", format!("{} is the id of no task", task.task_id));
                continue;
            };
            self.launches.insert(job.clone(), time);
            *sizes.entry(job).or_default() += 1;
        }
    }

    /// Checks that a task killed for its timeout has run for that time.
    fn kills_in_time(&mut self, time: u64, state: &State, id: &str) {
        let job = job_of(id).unwrap_or_default();
        if self.is_stopping || !TIMED.contains(&job.as_str()) {
            return;
        }
        let (tasks, _) = state.task_views((&job, None), None, usize::MAX);
        let is_known = tasks.iter().any(|task| task.task_id == id);
        let has_succeeded = index_of(id).is_some_and(|index| self.finished.contains(&index));
        let ran = self
            .running
            .get(id)
            .map(|since| time.saturating_sub(*since));
        let ran = Duration::from_nanos(ran.unwrap_or_default());
        if is_known && !has_succeeded && ran < TIMEOUT - TIMEOUT / DRIFT_PARTS {
            let what = format!("{id} is killed after {ran:?} of {TIMEOUT:?}");
            self.broke("J7", what);
        }
    }

    /// Checks that no failure is counted for a task that ended with 0 or was killed by the scheduler.
    fn counts_no_failure(&mut self, state: &State, told: &Told) {
        if state.totals().failed <= self.failed {
            return;
        }
        let Some((id, ended)) = told else {
            return;
        };
        let is_own_kill =
            *ended == TaskState::TaskKilled && self.killed.contains(id) && !has_timeout(id);
        if *ended == TaskState::TaskFinished || is_own_kill {
            self.broke("J9", format!("{id} is {ended:?} and counts as failed"));
        }
    }

    /// Checks that a healthy instance of a service is killed only if enough healthy instances remain.
    fn keeps_limits(&mut self, state: &State) {
        for (job, count) in [(SERVICE, COUNT), (FRONT, FRONT_COUNT)] {
            let (tasks, _) = state.task_views((job, None), None, usize::MAX);
            let before = self.services.insert(job, tasks.clone()).unwrap_or_default();
            let was_healthy = |id: &str| before.iter().any(|one| one.task_id == id && one.healthy);
            let killing = tasks
                .iter()
                .find(|task| task.state == "TASK_KILLING" && was_healthy(&task.task_id));
            let Some(killing) = killing.filter(|_| !self.is_stopping) else {
                continue;
            };
            let healthy = tasks.iter().filter(|task| task.healthy).count();
            let least = (count - MAX_UNAVAILABLE) as usize;
            if healthy < least {
                let what = format!(
                    "{} is killed, and {healthy} of {job} are healthy, not {least}",
                    killing.task_id
                );
                self.broke("J10", what);
            }
        }
    }

    /// Handles the start of a scheduler process, with another one's store.
    pub(super) fn began(&mut self) {
        self.offers.clear();
        self.services.clear();
    }

    /// Handles an older store, or another scheduler's takeover: the scheduler does not know the recent actions.
    pub(super) fn forgot(&mut self) {
        self.began();
        self.killed.clear();
        self.successes.clear();
    }

    /// Records a time that the clock of the scheduler shows.
    pub(super) fn shown(&mut self, unix: Duration) {
        self.minutes.insert(unix.as_secs() / 60);
    }

    /// Whether a clock has shown a time that is later than `unix` by `most` or less.
    pub(super) fn was_ahead(&self, unix: Duration, most: Duration) -> bool {
        let minute = |time: Duration| time.as_secs() / 60;
        let later = minute(unix) + 1..=minute(unix + most);
        self.minutes.range(later).next().is_some()
    }

    /// Returns the last launch of a job.
    pub(super) fn last_launch(&self, job: &str) -> Option<u64> {
        self.launches.get(job).copied()
    }

    /// Records an agent's success of an own task: once for each index of a batch. The result of a task that was given up
    /// with its agent does not count.
    pub(super) fn succeeded(
        &mut self,
        status: &pb::TaskStatus,
        is_given_up: impl Fn(&pb::TaskStatus) -> bool,
    ) -> Option<String> {
        let name: TaskName = status.task_id.value.parse().ok()?;
        if name.job != BATCH && name.job != GANG {
            return None;
        }
        let first = self.successes.entry((name.job, name.run, name.index));
        let first = first.or_insert_with(|| status.clone());
        if is_given_up(first) {
            *first = status.clone();
            return None;
        }
        let is_again = first.uuid != status.uuid && !is_given_up(status);
        let task = &status.task_id.value;
        is_again.then(|| format!("task {task} of a batch succeeds, and its index had before"))
    }
}

/// A task that the master reported, and its state.
pub(super) type Told = Option<(String, TaskState)>;

/// Returns the task to which an input refers.
pub(super) fn told(input: &Input) -> Told {
    match input {
        Input::Update(status) => Some((status.task_id.value.clone(), status.state())),
        _ => None,
    }
}

/// Returns the reason why a job has too many live tasks, if it has.
pub(crate) fn too_many(living: &[String]) -> Option<String> {
    let jobs: Vec<_> = living.iter().filter_map(|task| job_of(task)).collect();
    let count = |job: &str| jobs.iter().filter(|one| *one == job).count();
    for (job, most) in [
        (SERVICE, COUNT + SURGE),
        (FRONT, FRONT_COUNT + SURGE),
        (MESH, MESH_COUNT + SURGE),
    ] {
        let living_now = count(job);
        if living_now > most as usize {
            return Some(format!("{living_now} instances of {job} live: {living:?}"));
        }
    }
    let overlapping = [CRON, REPLACING].into_iter().find(|job| count(job) > 1);
    overlapping.map(|job| format!("runs of {job} overlap: {living:?}"))
}

/// The schedules that start a run each minute, whatever the results of earlier runs.
pub(super) const UNBLOCKED: [&str; 2] = [REPLACING, ALLOWING];

/// Returns the seconds of true time since a time.
pub(super) fn seconds_since(time: u64, since: Option<u64>) -> u64 {
    since.map_or(u64::MAX, |since| time.saturating_sub(since) / SECOND)
}
