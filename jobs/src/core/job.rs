//! A job in the core's memory: its records, the slots of its runs, and its tasks that have not ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1::TaskState;
use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::commands::{VERSIONS_MAX, kept_versions};
use super::input::{Event, Record, Refusal};
use super::names::plain;
use super::records::{JobRecord, Key, Outcome, RunRecord, Slot, TaskRecord, VersionRecord};
use super::task_name::TaskName;
use super::tasks::Tasks;
use super::versions::WrittenVersions;
use super::volume::Volume;
use super::waiting::Waiting;
use crate::spec::{Batch, JobSpec, Kind};

#[cfg(test)]
thread_local! {
    /// Counts how often the size of a job was computed.
    pub(super) static SIZED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// Counts how often wanted instances were compared.
    pub(super) static KEYED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    /// Counts how often the waiting tasks of a job were counted.
    pub(super) static COUNTED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Events of a job that are remembered.
pub(super) const EVENTS_MAX: usize = 100;

/// The pause, beside the task's grace period, before an unanswered kill is repeated for the first time.
pub(super) const KILL_PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Job {
    /// The key of the job: see [`super::names`].
    pub(super) name: String,
    pub(super) record: JobRecord,
    /// The parts of each version that are written.
    written: WrittenVersions,
    pub(super) runs: BTreeMap<u64, Run>,
    /// The tasks that are not known to have ended, by task id.
    pub(super) tasks: Tasks,
    /// The volumes of the instances that have one, by index.
    pub(super) volumes: BTreeMap<u32, Volume>,
    /// The instances to launch as soon as an offer fits.
    pub(super) wanted: Vec<Wanted>,
    /// The number of wanted instances of a service that `wanted` does not list.
    pub(super) wanted_beyond: usize,
    /// Whether a batch waits for the jobs that it starts after.
    pub(super) is_held: bool,
    /// For a schedule: the version and the last time dealt with, and the following time, if any.
    pub(super) next_due: Option<((u64, Duration), Option<Duration>)>,
    /// The next run of the schedule, if that run has to wait.
    pub(super) put_off: Option<PutOff>,
    /// The last time that an update gained a healthy instance, and their number then.
    pub(super) progress: Progress,
    /// The last time that kills of this job left.
    pub(super) pressed: Duration,
    pub(super) events: VecDeque<Event>,
}

/// An index without a task that should have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) run: u64,
    pub(super) index: u32,
    pub(super) version: u64,
}

/// The tasks of one version to launch now.
#[derive(Clone, Debug)]
pub(super) struct WantedGroup {
    pub(super) version: u64,
    pub(super) tasks: Vec<Wanted>,
    /// Whether the tasks start all together or not at all.
    pub(super) is_gang: bool,
}

impl Wanted {
    pub(super) fn key(&self) -> (u64, u32, u64) {
        #[cfg(test)]
        KEYED.set(KEYED.get() + 1);
        (self.run, self.index, self.version)
    }
}

/// A scheduled time that is postponed until the end of the previous run is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct PutOff {
    pub(super) time: Duration,
    /// The time at which the run was found to be due.
    pub(super) since: Duration,
}

/// The progress of an update. It is not durable: after a restart the deadline of the update begins again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    pub(super) at: Duration,
    pub(super) healthy: usize,
    /// Failures of new instances since that progress.
    pub(super) failures: u32,
}

impl Progress {
    /// Notes that a healthy new instance is away, or was lost by no fault of its own: its replacement is progress again.
    fn lost_one(&mut self) {
        self.healthy = self.healthy.saturating_sub(1);
    }

    /// Excludes the time without a master from the time since the last progress.
    pub(super) fn pause(&mut self, since: Duration, until: Duration) {
        let from = self.at.max(since);
        self.at = self.at.saturating_add(until.saturating_sub(from));
    }
}

/// The slots of one run, by index, up to the last index that has had a task. A service has one run, number 0.
#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) slots: Vec<Slot>,
    /// Open slots of a batch without a task, by when they may start.
    pub(super) waiting: Waiting,
    pub(super) live: u32,
    pub(super) succeeded: u32,
    pub(super) failed: u32,
    /// The number of attempts of dropped slots; the attempts of new slots are higher.
    attempts: u32,
}

impl Run {
    /// Returns the run of a service whose dropped slots had this number of attempts.
    pub(super) fn after(attempts: u32) -> Self {
        Self {
            attempts,
            ..Self::default()
        }
    }

    /// Returns a run with all its slots waiting.
    pub(super) fn new(count: u32) -> Self {
        Self {
            waiting: Waiting::all(count),
            ..Self::default()
        }
    }

    /// Returns the slot of an index, and creates it if it is missing.
    pub(super) fn slot_mut(&mut self, index: u32) -> &mut Slot {
        let index = index as usize;
        if self.slots.len() <= index {
            self.slots.resize(index + 1, self.new_slot());
        }
        &mut self.slots[index]
    }

    pub(super) fn slot(&self, index: u32) -> Slot {
        let slot = self.slots.get(index as usize).copied();
        slot.unwrap_or_else(|| self.new_slot())
    }

    fn new_slot(&self) -> Slot {
        Slot {
            attempt: self.attempts,
            ..Slot::default()
        }
    }

    /// Returns the indexes with durable slots: their slots differ from new ones.
    pub(super) fn written(&self) -> impl Iterator<Item = u32> {
        let slots = (0_u32..).zip(&self.slots);
        let new = self.new_slot();
        let written = slots.filter(move |(_, slot)| **slot != new);
        written.map(|(index, _)| index)
    }

    /// Recounts the restored slots, and queues those without a task.
    pub(super) fn recount(&mut self, busy: &BTreeSet<u32>) {
        let count = |outcome| {
            self.slots
                .iter()
                .filter(|slot| slot.outcome == outcome)
                .count()
        };
        let (succeeded, failed) = (count(Outcome::Succeeded), count(Outcome::Failed));
        self.succeeded = u32::try_from(succeeded).unwrap_or(u32::MAX);
        self.failed = u32::try_from(failed).unwrap_or(u32::MAX);
        self.live = u32::try_from(busy.len()).unwrap_or(u32::MAX);
        let open = (0_u32..)
            .zip(&self.slots)
            .filter(|(index, slot)| slot.outcome == Outcome::Open && !busy.contains(index))
            .map(|(index, slot)| (slot.not_before, index));
        let known = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.waiting = self.waiting.restored(known, open);
        for index in busy.range(known..) {
            self.waiting.remove(&(Duration::ZERO, *index));
        }
    }
}

/// The progress of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The record of the launch is being written.
    Intended,
    /// ACCEPT was sent, or may have been sent before a restart.
    Launched,
    /// The master or the agent has reported this state.
    Known(TaskState),
}

/// The reason why a task is being killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KillReason {
    Stopped,
    Scaled,
    Updated,
    /// The task moves to another agent.
    Moved,
    TimedOut,
    /// Another task of the gang has ended.
    Gang,
    /// The run of the task was replaced or cancelled.
    Cancelled,
    /// An earlier attempt, which was given up, has succeeded.
    Superseded,
    /// The volume of the task is to be destroyed.
    Released,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Killing {
    pub(super) reason: KillReason,
    /// The time of the next kill, and the pause after that kill.
    pub(super) next: Duration,
    pub(super) pause: Duration,
    /// Whether the reason is durable: no kill is sent before.
    pub(super) is_durable: bool,
}

impl Killing {
    pub(super) fn begun(reason: KillReason, at: Duration) -> Self {
        Self {
            reason,
            next: at,
            pause: KILL_PAUSE,
            is_durable: false,
        }
    }

    /// Returns the kill that continues after a start of the scheduler.
    fn resumed(reason: KillReason, at: Duration) -> Self {
        Self {
            is_durable: true,
            ..Self::begun(reason, at)
        }
    }
}

/// A task that is not known to have ended.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) name: TaskName,
    pub(super) record: TaskRecord,
    pub(super) phase: Phase,
    /// The task existed before the scheduler started, and has sent no status since.
    pub(super) is_unheard: bool,
    /// The master of this stream has not yet reported the state of the task.
    pub(super) is_asked_for: bool,
    /// The result of the health checks; `None` without a check or before the first result.
    pub(super) checked: Option<bool>,
    /// The time since when the task is RUNNING without a failing check.
    pub(super) healthy_since: Option<Duration>,
    pub(super) killing: Option<Killing>,
    /// The kill from before the scheduler's start that the task has survived so far.
    pub(super) outlived: Option<KillReason>,
    pub(super) reason: String,
    pub(super) message: String,
}

impl Task {
    pub(super) fn new(name: TaskName, record: TaskRecord, phase: Phase) -> Self {
        Self {
            name,
            record,
            phase,
            is_unheard: false,
            is_asked_for: false,
            checked: None,
            healthy_since: None,
            killing: None,
            outlived: None,
            reason: String::new(),
            message: String::new(),
        }
    }

    /// Whether the task has been healthy for `healthy_after`, and is not being killed.
    pub(super) fn is_healthy(&self, at: Duration, healthy_after: Duration) -> bool {
        self.killing.is_none()
            && self
                .healthy_since
                .is_some_and(|since| at >= since.saturating_add(healthy_after))
    }
}

impl Job {
    pub(super) fn new(name: &str, record: JobRecord) -> Self {
        Self {
            name: name.to_owned(),
            record,
            written: WrittenVersions::default(),
            runs: BTreeMap::new(),
            tasks: Tasks::default(),
            volumes: BTreeMap::new(),
            wanted: Vec::new(),
            wanted_beyond: 0,
            is_held: false,
            next_due: None,
            put_off: None,
            progress: Progress::default(),
            pressed: Duration::ZERO,
            events: VecDeque::new(),
        }
    }

    /// Adds a version that was stored under its own key.
    pub(super) fn restore_version(&mut self, number: u64, version: VersionRecord) {
        let size = self.record.sizes.remove(&number);
        let version = self.written.restore(number, version, size);
        self.record.versions.insert(number, version);
    }

    /// Measures the versions that were stored in the job's own record.
    pub(super) fn restore_inline(&mut self) {
        self.written.restore_inline(&self.record.versions);
    }

    /// Returns the records that make the job's present state durable.
    pub(super) fn records(&mut self) -> Vec<Record> {
        self.written.records(&self.name, &self.record)
    }

    /// Returns the records that delete the job.
    pub(super) fn deletions(&self) -> Vec<Record> {
        self.written.deletions(&self.name)
    }

    /// Returns the stored bytes of the job's specifications.
    pub(super) fn spec_bytes(&self) -> usize {
        self.written.bytes()
    }

    /// Returns the bytes of the versions that a new one removes.
    pub(super) fn bytes_to_go(&self) -> usize {
        let kept = kept_versions(self, VERSIONS_MAX - 1);
        self.written.bytes_without(&kept)
    }

    /// Returns the specification of a version, or of the target if the version is forgotten.
    pub(super) fn spec_of(&self, version: u64) -> Option<&Arc<JobSpec>> {
        let versions = &self.record.versions;
        let found = versions
            .get(&version)
            .or_else(|| versions.get(&self.record.target));
        found.map(|version| &version.spec)
    }

    /// Returns the target specification. It always exists: the record is made with it.
    pub(super) fn spec(&self) -> Option<&Arc<JobSpec>> {
        self.spec_of(self.record.target)
    }

    /// Returns the role in which the job's tasks run.
    pub(super) fn role(&self) -> &str {
        self.spec().map(|spec| &*spec.role).unwrap_or_default()
    }

    pub(super) fn is_service(&self) -> bool {
        self.spec()
            .is_some_and(|spec| matches!(spec.kind, Kind::Service(_)))
    }

    /// Returns the longest pause of an index after failures.
    pub(super) fn longest_pause(&self) -> Duration {
        let pause = |kind: &Kind| match kind {
            Kind::Service(service) => service.restart.longest,
            Kind::Batch(batch) => batch.backoff.longest,
            Kind::Cron(cron) => cron.batch.backoff.longest,
        };
        self.spec()
            .map(|spec| pause(&spec.kind))
            .unwrap_or_default()
    }

    /// Whether nothing of the job runs, so that it starts only once the jobs that it names are there.
    pub(super) fn is_before_its_start(&self) -> bool {
        let is_new = self.record.stable.is_none() && self.tasks.is_empty();
        match self.is_service() {
            true => self.record.held || is_new,
            false => self.tasks.is_empty(),
        }
    }

    pub(super) fn is_cron(&self) -> bool {
        self.spec()
            .is_some_and(|spec| matches!(spec.kind, Kind::Cron(_)))
    }

    /// Returns the retry rules of a run's tasks, for a batch or cron job.
    pub(super) fn batch_of(&self, version: u64) -> Option<&Batch> {
        match &self.spec_of(version)?.kind {
            Kind::Service(_) => None,
            Kind::Batch(batch) => Some(batch),
            Kind::Cron(cron) => Some(&cron.batch),
        }
    }

    /// Returns the number of tasks with slots: instances of a service, or tasks of a batch's runs.
    pub(super) fn size(&self) -> u64 {
        #[cfg(test)]
        SIZED.set(SIZED.get() + 1);
        if !self.is_service() {
            let runs = self.active_runs().map(|(_, run)| u64::from(run.count));
            return runs.sum();
        }
        let slots = self.runs.get(&0).map_or(0, |run| run.slots.len());
        let count = self.spec().filter(|_| self.record.stop.is_none());
        let count = count.map_or(0, |spec| u64::from(spec.count));
        count.max(slots as u64)
    }

    /// Drops the slots of a service beyond its count and its last task; returns the indexes of the written ones.
    pub(super) fn drop_slots(&mut self, count: usize) -> Vec<u32> {
        let Some(run) = self.runs.get_mut(&0).filter(|run| run.slots.len() > count) else {
            return Vec::new();
        };
        let used = self.tasks.values().map(|task| task.name.index as usize + 1);
        let kept = used.max().unwrap_or_default().max(count);
        let kept_index = u32::try_from(kept).unwrap_or(u32::MAX);
        let written: Vec<u32> = run.written().filter(|index| *index >= kept_index).collect();
        let dropped = run.slots.drain(kept.min(run.slots.len())..);
        let attempts = dropped.map(|slot| slot.attempt).max().unwrap_or_default();
        run.attempts = run.attempts.max(attempts);
        self.record.attempts = run.attempts;
        written
    }

    /// The volume to which an instance returns, if it has one.
    pub(super) fn volume_of(&self, one: &Wanted) -> Option<&Volume> {
        let spec = self.spec_of(one.version);
        let volume = self.volumes.get(&one.index);
        volume.filter(|_| spec.is_some_and(|spec| spec.volume.is_some()))
    }

    /// Whether a task waits for its agent, however long that is away: it runs on the volume of a continuing instance.
    pub(super) fn is_bound(&self, task: &Task) -> bool {
        let count = self.spec().map_or(0, |spec| spec.count);
        let volume = self.volumes.get(&task.name.index);
        let is_own = volume.is_some_and(|volume| task.record.volume.as_ref() == Some(&volume.id));
        is_own && task.name.index < count && self.record.stop.is_none()
    }

    pub(super) fn slot_key(&self, run: u64, index: u32) -> Key {
        Key::Slot {
            job: self.name.clone(),
            run,
            index,
        }
    }

    /// Returns the time since when a task could have been launched: its index may start, and its run or version exists.
    pub(super) fn startable_since(&self, name: &TaskName, clock: &Clock) -> Duration {
        let slot = self.runs.get(&name.run).map(|run| run.slot(name.index));
        let run = self.record.runs.get(&name.run).map(|run| run.started);
        let version = self.record.versions.get(&name.version);
        let begun = run.or_else(|| version.map(|version| version.at));
        let not_before = slot.map(|slot| slot.not_before).unwrap_or_default();
        let begun = begun.map(|begun| clock.at_of(begun));
        not_before.max(begun.unwrap_or_default())
    }

    /// Returns the runs that are neither over nor cancelled.
    pub(super) fn active_runs(&self) -> impl Iterator<Item = (u64, &RunRecord)> {
        let runs = self.record.runs.iter();
        runs.filter(|(_, run)| !run.cancelled)
            .map(|(number, run)| (*number, run))
    }

    /// Lowers the mark of an update's progress where a new instance that counts as healthy is away or lost.
    pub(super) fn note_loss(&mut self, task_id: &str, at: Duration) {
        let is_updated = self.record.rollout.is_some();
        let task = self.tasks.get(task_id).filter(|_| is_updated);
        let is_counted = task.is_some_and(|task| {
            let healthy_after = self.healthy_after(task.name.version);
            task.name.version == self.record.target && task.is_healthy(at, healthy_after)
        });
        if is_counted {
            self.progress.lost_one();
        }
    }

    /// Returns the number of instances that count as healthy.
    pub(super) fn healthy(&self, at: Duration) -> usize {
        let tasks = self.tasks.values();
        tasks
            .filter(|task| task.is_healthy(at, self.healthy_after(task.name.version)))
            .count()
    }

    pub(super) fn healthy_after(&self, version: u64) -> Duration {
        match self.spec_of(version).map(|spec| &spec.kind) {
            Some(Kind::Service(service)) => service.update.healthy_after,
            _ => Duration::ZERO,
        }
    }

    /// Whether the target version has all its instances and all are healthy; for a batch, whether the last run succeeded.
    pub(super) fn is_satisfied(&self, at: Duration) -> bool {
        let Some(spec) = self.spec() else {
            return false;
        };
        if self.is_service() {
            return self.healthy(at) >= spec.count as usize;
        }
        let over = self.record.over.last();
        self.record.runs.is_empty() && over.is_some_and(|run| run.failed == 0 && !run.cancelled)
    }

    /// Whether each index of a service has a task. During an update the answer is no: an index may have two.
    pub(super) fn is_whole(&self) -> bool {
        let count = self.spec().map_or(0, |spec| spec.count);
        let indexes = self.tasks.values().map(|task| task.name.index);
        let indexes: BTreeSet<u32> = indexes.filter(|index| *index < count).collect();
        self.record.rollout.is_none() && indexes.len() == count as usize
    }

    /// Returns the runs of gangs that lost a task: the others end before all start again.
    pub(super) fn broken_runs(&self) -> impl Iterator<Item = u64> {
        let broken = self.active_runs().filter(|(number, record)| {
            let run = self.runs.get(number);
            self.is_gang(record.version)
                && run.is_some_and(|run| run.live > 0 && !run.waiting.is_empty())
        });
        broken.map(|(number, _)| number)
    }

    /// Resumes the kills that were under way before the scheduler started or had not left yet: of tasks whose index has
    /// succeeded, and of gangs that lost a member.
    pub(super) fn resume_kills(&mut self, at: Duration) {
        let broken: BTreeSet<u64> = self.broken_runs().collect();
        for task in self.tasks.values_mut() {
            let goes_on = |reason: KillReason| {
                // A task that outlived a stop runs on if the job was started again; if the earlier kill ends it, that is no
                // failure.
                reason != KillReason::Stopped || self.record.stop.is_some()
            };
            match task.record.killing {
                Some(reason) if goes_on(reason) => {
                    task.killing = Some(Killing::resumed(reason, at));
                    continue;
                }
                outlived => {
                    task.outlived = outlived;
                    task.record.killing = None;
                }
            }
            let run = self.runs.get(&task.name.run);
            let reason = match run.map(|run| run.slot(task.name.index).outcome) {
                Some(Outcome::Succeeded) => KillReason::Superseded,
                Some(_) if broken.contains(&task.name.run) => KillReason::Gang,
                _ => continue,
            };
            task.killing = Some(Killing::begun(reason, at));
        }
    }

    /// Returns the version to revert to: the requested one, else the last healthy one, else the one before.
    pub(super) fn revert_version(&self, version: Option<u64>) -> Result<u64, Refusal> {
        let record = &self.record;
        let earlier = || {
            record
                .versions
                .keys()
                .rev()
                .find(|known| **known < record.target)
        };
        let stable = record.stable.filter(|stable| *stable != record.target);
        let Some(version) = version.or(stable).or_else(|| earlier().copied()) else {
            let name = plain(&self.name);
            let text = format!("{name:?} has no version before {}", record.target);
            return Err(Refusal::Conflict(text));
        };
        self.check_version(version)?;
        Ok(version)
    }

    /// # Errors
    /// The job has no such version, or not any more.
    pub(super) fn check_version(&self, version: u64) -> Result<(), Refusal> {
        let versions = &self.record.versions;
        if versions.contains_key(&version) {
            return Ok(());
        }
        let known: Vec<_> = versions.keys().map(u64::to_string).collect();
        let text = format!(
            "{:?} has no version {version}; known are {}",
            plain(&self.name),
            known.join(", ")
        );
        Err(Refusal::Invalid(text))
    }

    /// Adds an event of the job or of one of its tasks to the history, and returns it for the followers.
    pub(super) fn add_event(
        &mut self,
        unix: Duration,
        task_id: Option<&str>,
        text: impl Into<String>,
    ) -> Event {
        let task = task_id.and_then(|id| self.tasks.get(id));
        let event = Event {
            time: unix.as_secs(),
            job: plain(&self.name).to_owned(),
            role: Some(self.role().to_owned()),
            task_id: task_id.map(str::to_owned),
            agent_id: task.map(|task| task.record.agent_id.clone()),
            text: text.into(),
        };
        self.remember(event.clone());
        event
    }

    fn remember(&mut self, event: Event) {
        if self.events.len() == EVENTS_MAX {
            // Events of very many tasks leave room for events of the job itself.
            let of_job = self.events.iter().filter(|old| old.task_id.is_none());
            let is_job_to_go = of_job.count() > EVENTS_MAX / 2;
            let mut events = self.events.iter();
            let oldest = events.position(|old| old.task_id.is_none() == is_job_to_go);
            self.events.remove(oldest.unwrap_or_default());
        }
        self.events.push_back(event);
    }
}
