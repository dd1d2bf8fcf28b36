//! The status updates of tasks, and their consequences for the slots.

use std::time::Duration;

use meseta_proto::mesos::v1::{AgentId, TaskId, TaskState, TaskStatus, task_status::Reason};

use super::clock::Clock;
use super::consequence::Consequence;
use super::failure::{self, Failure};
use super::input::Record;
use super::job::{Job, KillReason, Phase, Task};
use super::records::{Key, Outcome, Slot};
use super::task_name::TaskName;
use super::volumes::forget_unmade_volume;
use crate::spec::{Backoff, Kind};

/// The time after a launch during which the core ignores an answer that the task is unknown: the launch may still be under
/// way.
pub(super) const LAUNCH_GRACE: Duration = Duration::from_secs(5);
/// The pause before an index whose task was lost starts again.
const LOST_PAUSE: Duration = Duration::from_secs(1);
/// Larger jobs are not planned after each update at once: the next tick plans them, a moment later.
const PROMPT_TASKS_MAX: usize = 500;

/// The end of a task, from the view of its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeded,
    Failed,
    /// The task is not at fault: its agent is gone or drained, it was preempted, or it never ran.
    Lost,
}

/// A status of a task that the core has not ignored.
#[derive(Debug)]
pub(super) struct News {
    state: TaskState,
    healthy: Option<bool>,
    end: Option<End>,
    /// The agent of the task, if the agent is lost.
    pub(super) lost_agent: Option<String>,
}

/// Reads a status of a task, and notes its reason. Returns `None` for a status that the core ignores.
pub(super) fn read(
    job: &mut Job,
    name: &TaskName,
    (state, status): (TaskState, &TaskStatus),
    at: Duration,
) -> Option<News> {
    let task = job.tasks.get_mut(&name.to_string())?;
    if is_denial(state) && task.phase != Phase::Known(TaskState::TaskUnreachable) {
        let is_young = at < task.record.launched.saturating_add(LAUNCH_GRACE);
        if task.phase == Phase::Intended || (is_young && is_answer(status)) {
            return None;
        }
    }
    task.reason = match is_killed_for_its_checks(state, status, task) {
        true => "its health checks failed".to_owned(),
        false => reason_of(status),
    };
    task.message = status.message.clone().unwrap_or_default();
    let is_agent_lost = matches!(
        state,
        TaskState::TaskUnreachable | TaskState::TaskGoneByOperator
    );
    Some(News {
        state,
        healthy: status.healthy,
        end: end_of(state, status, task.record.running.is_some()),
        lost_agent: is_agent_lost.then(|| task.record.agent_id.clone()),
    })
}

/// Notes the news of a task.
pub(super) fn note(job: &mut Job, name: &TaskName, news: &News, clock: &Clock) -> Vec<Consequence> {
    let mut consequences = Vec::new();
    if is_prompt(job) {
        consequences.push(Consequence::Decide);
    }
    consequences.extend(match news.end {
        Some(end) => end_task(job, name, end, clock),
        None => go_on(job, name, news, clock),
    });
    consequences
}

/// Whether an update of a job's task deserves a decision of its own. Planning a service or stopping a job takes time in
/// proportion to its tasks; a batch's run only counts.
fn is_prompt(job: &Job) -> bool {
    let is_counted = !job.is_service() && job.record.stop.is_none();
    is_counted || job.tasks.len() <= PROMPT_TASKS_MAX
}

/// Counts the late success of a batch's task that was given up, if its replacement has not succeeded; kills the
/// replacement.
pub(super) fn credit(job: &mut Job, name: &TaskName, clock: &Clock) -> Vec<Consequence> {
    let record = job.record.runs.get(&name.run);
    let is_of_run = record.is_some_and(|run| run.version == name.version && name.index < run.count);
    let key = job.slot_key(name.run, name.index);
    let run = job.runs.get_mut(&name.run);
    let Some(run) = run.filter(|_| is_of_run) else {
        return Vec::new();
    };
    let slot = run.slot(name.index);
    if slot.outcome != Outcome::Open || name.attempt > slot.attempt {
        return Vec::new();
    }
    run.waiting.remove(&(slot.not_before, name.index));
    run.succeeded += 1;
    let slot = run.slot_mut(name.index);
    slot.outcome = Outcome::Succeeded;
    let record = key.put(slot);
    let of_slot = |other: &TaskName| (other.run, other.index) == (name.run, name.index);
    let mut tasks = job.tasks.iter();
    let later = tasks.find(|(_, task)| of_slot(&task.name));
    let later = later.map(|(id, _)| Consequence::Kill(id.clone(), KillReason::Superseded));
    let text = "finished, after it was given up";
    let event = job.add_event(clock.unix(), Some(&name.to_string()), text);
    let first = [
        Consequence::Write(record),
        Consequence::CountSuccess,
        Consequence::Decide,
        Consequence::Tell(event),
    ];
    first.into_iter().chain(later).collect()
}

/// Notes the state of a task that has not ended.
fn go_on(job: &mut Job, name: &TaskName, news: &News, clock: &Clock) -> Vec<Consequence> {
    let (at, unix, id) = (clock.at(), clock.unix(), name.to_string());
    let state = news.state;
    let has_check = job
        .spec_of(name.version)
        .is_some_and(|spec| spec.task.check.is_some());
    if state == TaskState::TaskUnreachable {
        job.note_loss(&id, at);
    }
    let Some(task) = job.tasks.get_mut(&id) else {
        debug_assert!(false, "the task {id} was found before");
        return Vec::new();
    };
    let before = task.record.clone();
    let (was_running, was_away) = (before.running.is_some(), before.unreachable.is_some());
    task.phase = Phase::Known(state);
    let was_unheard = std::mem::replace(&mut task.is_unheard, false);
    task.is_asked_for = false;
    match state {
        TaskState::TaskRunning => {
            task.record.unreachable = None;
            if !was_running {
                task.record.shown_since = Some(unix);
            }
            let since = *task.record.running.get_or_insert(at);
            // A status without a check result leaves the result unchanged.
            task.checked = news.healthy.or(task.checked);
            let is_well = task.checked.unwrap_or(!has_check);
            task.healthy_since = match is_well {
                // A task that is healthy after a start of the scheduler has been healthy since it ran.
                true if was_unheard && !was_away => Some(since),
                true => task.healthy_since.or(Some(at)),
                false => None,
            };
        }
        TaskState::TaskUnreachable => {
            task.record.unreachable.get_or_insert(at);
            task.healthy_since = None;
        }
        // The task's agent is back, even if the task does not run yet.
        _ => {
            task.record.unreachable = None;
            task.healthy_since = None;
        }
    }
    let mut consequences = Vec::new();
    if task.record != before {
        let record = Key::Task(id.clone()).put(&task.record);
        consequences.push(Consequence::Write(record));
    }
    if state == TaskState::TaskRunning && !was_running {
        consequences.extend(before.volume.map(Consequence::VolumeRuns));
        consequences.push(Consequence::CountStart);
        let event = job.add_event(unix, Some(&id), "running");
        consequences.push(Consequence::Tell(event));
    }
    if state == TaskState::TaskUnreachable && !was_away {
        let event = job.add_event(unix, Some(&id), "its agent is unreachable");
        consequences.push(Consequence::Tell(event));
    }
    consequences
}

/// Gives a task up. Returns a status of the loss, for the reconciler.
pub(super) fn lose(
    job: &mut Job,
    name: &TaskName,
    why: &str,
    clock: &Clock,
) -> (TaskStatus, Vec<Consequence>) {
    let id = name.to_string();
    let mut agent_id = None;
    if let Some(task) = job.tasks.get_mut(&id) {
        task.message = why.to_owned();
        agent_id = Some(AgentId {
            value: task.record.agent_id.clone(),
        });
    }
    let lost = TaskStatus {
        task_id: TaskId { value: id },
        agent_id,
        state: TaskState::TaskLost.into(),
        ..TaskStatus::default()
    };
    let mut consequences = vec![Consequence::Decide];
    consequences.extend(end_task(job, name, End::Lost, clock));
    (lost, consequences)
}

/// Undoes a launch that was not sent: forgets the task, and the volume that the launch would have made.
pub(super) fn abandon(job: &mut Job, name: &TaskName, at: Duration) -> Vec<Consequence> {
    let mut consequences = vec![Consequence::Decide];
    let volume = forget_unmade_volume(job, &name.to_string());
    consequences.extend(volume.map(Consequence::Write));
    let records = remove_task(job, name, |slot| slot.not_before = at);
    consequences.extend(records.into_iter().map(Consequence::Write));
    consequences
}

fn end_task(job: &mut Job, name: &TaskName, end: End, clock: &Clock) -> Vec<Consequence> {
    let (at, id) = (clock.at(), name.to_string());
    let Some(task) = job.tasks.get(&id) else {
        debug_assert!(false, "the task {id} was found before");
        return Vec::new();
    };
    let mut consequences = Vec::new();
    let agent_id = task.record.agent_id.clone();
    let killed = task.killing.map(|killing| killing.reason);
    let killed = killed.or(task.outlived.filter(|_| end == End::Failed));
    let text = ending_text(end, killed, &task.reason, &task.message);
    let details = failure::text_of(&task.reason, &task.message);
    let healthy_for = task.healthy_since.map(|since| at.saturating_sub(since));
    let is_proven = job.record.rollout.is_none() && job.record.stable.is_some();
    let is_new = !is_proven && name.version == job.record.target;
    let rules = Rules::from_job(job, name.version);
    let is_fault = match (end, killed) {
        (End::Failed, None | Some(KillReason::TimedOut)) => true,
        (End::Succeeded, None) => rules.retries.is_none(),
        _ => false,
    };
    if is_fault && is_new {
        job.progress.failures += 1;
    }
    if is_fault && end == End::Failed && name.version == job.record.target {
        let text = match killed {
            Some(reason) => format!("killed: {}", reason.text()),
            None if details.is_empty() => "failed, without a reason".to_owned(),
            None => details,
        };
        let before = job.record.failure.as_ref();
        let count = before.map_or(0, |failure| failure.count);
        job.record.failure = Some(Failure {
            task_id: id.clone(),
            agent_id: agent_id.clone(),
            time: clock.unix(),
            text,
            count: count + 1,
        });
        consequences.push(Consequence::SaveFailure);
    }
    if end == End::Lost {
        job.note_loss(&id, at);
    }
    let others = match rules.breaks_gang(end, killed) {
        true => others_of(job, name),
        false => Vec::new(),
    };
    consequences.extend(match end {
        End::Succeeded => Some(Consequence::CountSuccess),
        End::Failed => is_fault.then(|| Consequence::CountFailure(job.role().to_owned())),
        End::Lost => Some(Consequence::CountLoss),
    });
    let event = job.add_event(clock.unix(), Some(&id), text);
    consequences.push(Consequence::Tell(event));
    let spec = job.spec_of(name.version).cloned();
    let freed = spec.filter(|spec| spec.volume.is_none());
    consequences.extend(freed.map(|spec| Consequence::Freed { spec, agent_id }));
    let mut is_repeated = false;
    let records = remove_task(job, name, |slot| {
        if end == End::Succeeded && rules.retries.is_some() {
            slot.outcome = Outcome::Succeeded;
        } else if is_fault {
            rules.punish(slot, at, (end, healthy_for));
        } else if end == End::Lost {
            slot.not_before = at.saturating_add(LOST_PAUSE);
        } else {
            slot.not_before = at;
        }
        is_repeated = killed.is_none() && slot.outcome == Outcome::Open;
    });
    consequences.extend(records.into_iter().map(Consequence::Write));
    consequences.extend(is_repeated.then_some(Consequence::CountRestart));
    if !others.is_empty() {
        let kills = others.into_iter();
        consequences.extend(kills.map(|other| Consequence::Kill(other, KillReason::Gang)));
        let records = break_gang(job).into_iter();
        consequences.extend(records.map(Consequence::Write));
    }
    consequences
}

/// Records that the gang of a service ends. For a batch, the slots of the run show this.
fn break_gang(job: &mut Job) -> Vec<Record> {
    if !job.is_service() || std::mem::replace(&mut job.record.broken, true) {
        return Vec::new();
    }
    job.records()
}

/// Removes a task and changes its slot. Returns the records of both, which become durable together.
fn remove_task(job: &mut Job, name: &TaskName, change: impl FnOnce(&mut Slot)) -> Vec<Record> {
    let id = name.to_string();
    let mut records = Vec::new();
    if job.tasks.remove(&id).is_none() {
        return records;
    }
    if job.record.moving.remove(&id) {
        records.extend(job.records());
    }
    records.push(Key::Task(id).delete());
    let is_batch = !job.is_service();
    let key = job.slot_key(name.run, name.index);
    let Some(run) = job.runs.get_mut(&name.run) else {
        return records;
    };
    run.live = run.live.saturating_sub(1);
    let slot = run.slot_mut(name.index);
    if slot.outcome != Outcome::Open {
        return records;
    }
    change(slot);
    let slot = *slot;
    records.push(key.put(&slot));
    if is_batch {
        match slot.outcome {
            Outcome::Succeeded => run.succeeded += 1,
            Outcome::Failed => run.failed += 1,
            Outcome::Open => run.waiting.insert((slot.not_before, name.index)),
        }
    }
    records
}

/// The rules of a job for the end of a task.
#[derive(Clone, Copy, Debug)]
struct Rules {
    backoff: Backoff,
    /// The number of retries of a batch; a service repeats for ever.
    retries: Option<u32>,
    is_gang: bool,
}

impl Rules {
    fn from_job(job: &Job, version: u64) -> Self {
        let spec = job.spec_of(version);
        let (backoff, retries) = match spec.map(|spec| &spec.kind) {
            Some(Kind::Service(service)) => (service.restart, None),
            Some(Kind::Batch(batch)) => (batch.backoff, Some(batch.retries)),
            Some(Kind::Cron(cron)) => (cron.batch.backoff, Some(cron.batch.retries)),
            // A job always has a version.
            None => (
                Backoff {
                    first: LOST_PAUSE,
                    longest: LOST_PAUSE,
                    reset_after: LOST_PAUSE,
                },
                None,
            ),
        };
        Self {
            backoff,
            retries,
            is_gang: spec.is_some_and(|spec| spec.gang.is_some()),
        }
    }

    /// Whether the end of a task ends its gang. A success is the proper end of a batch's task; a service has no such end. A
    /// kill that concerns all tasks, or an update, leaves the gang as it is.
    fn breaks_gang(&self, end: End, killed: Option<KillReason>) -> bool {
        let is_success = end == End::Succeeded && self.retries.is_some();
        let concerns_it_alone = matches!(
            killed,
            None | Some(KillReason::TimedOut | KillReason::Released)
        );
        self.is_gang && concerns_it_alone && !is_success
    }

    fn punish(&self, slot: &mut Slot, at: Duration, (end, healthy_for): (End, Option<Duration>)) {
        slot.has_finished = end == End::Succeeded;
        if healthy_for.is_some_and(|lasted| lasted >= self.backoff.reset_after) {
            slot.failures = 0;
        }
        let doubled = self
            .backoff
            .first
            .saturating_mul(1 << slot.failures.min(20));
        slot.failures = slot.failures.saturating_add(1);
        slot.not_before = at.saturating_add(doubled.min(self.backoff.longest));
        if self.retries.is_some_and(|retries| slot.failures > retries) {
            slot.outcome = Outcome::Failed;
        }
    }
}

/// Returns the other tasks of the same run.
fn others_of(job: &Job, name: &TaskName) -> Vec<String> {
    let of_run = job
        .tasks
        .iter()
        .filter(|(_, task)| task.name.run == name.run);
    of_run
        .filter(|(_, task)| task.name != *name)
        .map(|(id, _)| id.clone())
        .collect()
}

/// Whether the master reports that it has no such task.
fn is_denial(state: TaskState) -> bool {
    matches!(
        state,
        TaskState::TaskUnknown | TaskState::TaskLost | TaskState::TaskGone | TaskState::TaskDropped
    )
}

/// Whether a status answers a query, which may have been sent before a launch. An agent's report about a task that it never
/// had has the same reason, but needs an acknowledgement.
fn is_answer(status: &TaskStatus) -> bool {
    status.reason == Some(Reason::Reconciliation.into()) && status.uuid.is_none()
}

fn end_of(state: TaskState, status: &TaskStatus, has_run: bool) -> Option<End> {
    let has_reason = |reason: Reason| status.reason == Some(reason.into());
    match state {
        TaskState::TaskFinished => Some(End::Succeeded),
        TaskState::TaskFailed | TaskState::TaskKilled | TaskState::TaskError => {
            // The end of a task that ran before its agent's restart is unknown: the task may have brought its machine down,
            // and would do so for ever if that did not count.
            let is_kept_from_running = has_reason(Reason::AgentRestarted) && !has_run;
            let is_taken_away = [Reason::ContainerPreempted, Reason::AgentDraining]
                .into_iter()
                .any(has_reason);
            Some(if is_taken_away || is_kept_from_running {
                End::Lost
            } else {
                End::Failed
            })
        }
        TaskState::TaskLost
        | TaskState::TaskDropped
        | TaskState::TaskGone
        | TaskState::TaskGoneByOperator
        | TaskState::TaskUnknown => Some(End::Lost),
        TaskState::TaskStaging
        | TaskState::TaskStarting
        | TaskState::TaskRunning
        | TaskState::TaskKilling
        | TaskState::TaskUnreachable => None,
    }
}

/// Whether the agent has killed an unhealthy task: the scheduler sent no kill, and the update names no other reason.
fn is_killed_for_its_checks(state: TaskState, status: &TaskStatus, task: &Task) -> bool {
    state == TaskState::TaskKilled
        && status.reason.is_none()
        && task.killing.is_none()
        && status.healthy.or(task.checked) == Some(false)
}

fn reason_of(status: &TaskStatus) -> String {
    let reason = status
        .reason
        .and_then(|reason| Reason::try_from(reason).ok());
    let name = reason.map(|reason| reason.as_str_name());
    name.map(|name| name.trim_start_matches("REASON_").to_lowercase())
        .unwrap_or_default()
}

fn ending_text(end: End, killed: Option<KillReason>, reason: &str, message: &str) -> String {
    let what = match (end, killed) {
        (End::Succeeded, _) => "finished".to_owned(),
        (_, Some(KillReason::TimedOut)) => "killed: its run took too long".to_owned(),
        (_, Some(reason)) => format!("killed: {}", reason.text()),
        (End::Failed, None) => "failed".to_owned(),
        (End::Lost, None) => "lost".to_owned(),
    };
    match failure::text_of(reason, message) {
        details if details.is_empty() => what,
        details => format!("{what} ({details})"),
    }
}

impl KillReason {
    fn text(self) -> &'static str {
        match self {
            Self::Stopped => "the job is stopped",
            Self::Scaled => "fewer instances are wanted",
            Self::Updated => "replaced by another version",
            Self::Moved => "moved to another agent",
            Self::TimedOut => "its run took too long",
            Self::Gang => "another task of its gang has ended",
            Self::Cancelled => "its run was cancelled",
            Self::Superseded => "an earlier attempt has succeeded",
            Self::Released => "its volume is to be destroyed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taken_away_task_counts_as_lost() {
        let end_of_task = |reason: Option<Reason>, has_run| {
            let status = TaskStatus {
                reason: reason.map(Into::into),
                ..TaskStatus::default()
            };
            end_of(TaskState::TaskKilled, &status, has_run)
        };
        let end = |reason| end_of_task(reason, false);
        assert_eq!(end(Some(Reason::AgentDraining)), Some(End::Lost));
        assert_eq!(end(Some(Reason::ContainerPreempted)), Some(End::Lost));
        assert_eq!(end(Some(Reason::AgentRestarted)), Some(End::Lost));
        // A task that crashes its machine is not repeated forever without a pause.
        let ran = end_of_task(Some(Reason::AgentRestarted), true);
        assert_eq!(ran, Some(End::Failed));
        let drained = end_of_task(Some(Reason::AgentDraining), true);
        assert_eq!(drained, Some(End::Lost));
        assert_eq!(
            end(Some(Reason::ContainerLimitationMemory)),
            Some(End::Failed)
        );
        assert_eq!(end(None), Some(End::Failed));
    }
}
