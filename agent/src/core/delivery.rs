//! Delivers tasks to the executors of frameworks: in batches that fit a stream, and again if they were lost.
//!
//! An executor whose stream was ended names its known tasks when it subscribes again. The agent delivers the other
//! tasks of this agent process again. The fate of tasks that an earlier agent process delivered is unknown: they are
//! dropped, as in Mesos. Invariant: the size of a batch is bounded, except for a single task or group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Event, event};
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{ContainerId, Moment};
use prost::Message as _;
use tracing::info;

use super::executors::kill_event;
use super::fields::unix_ns;
use super::model::{Executor, Task, TaskRef};
use super::tasks::Tasks;
use super::{ConnectionId, Step, Timer, executors, kill, reconcile};
use crate::checkpoint::{LogEntry, Lsn, RunKey, Write};

/// Bytes of tasks in a batch: a third of the smallest buffer of an executor's stream.
const PORTION_BYTES: usize = 512 * 1024;
/// Events in a batch: a third of the smallest buffer of an executor's stream.
const PORTION_EVENTS: usize = 256;
/// The time that the stream gets to send a batch before the next batch.
const PORTION_PAUSE: Duration = Duration::from_millis(100);
/// Attempts to deliver a task to an executor that does not name it at its next subscription.
const ATTEMPTS_MAX: u32 = 8;

/// The message for a task that its executor may not know.
const NEVER_ARRIVED: &str = "Task launched during agent restart";
const DAMAGED: &str = "What the agent had written of the task is damaged; whether it ran is unknown, and it is killed";
const NOT_TAKEN: &str = "The executor was given the task several times and does not have it";

/// The progress of the deliveries to an executor.
#[derive(Clone, Debug, Default)]
pub(super) struct Deliveries {
    /// The start of the current batch.
    since: Option<Moment>,
    bytes: usize,
    events: usize,
    /// The first lost task at the last subscription, and how often in a row it was lost.
    lost: Option<(u64, u32)>,
}

impl Deliveries {
    /// Adds an event of this size to the current batch, or returns the start of the next batch.
    fn take(&mut self, now: Moment, bytes: usize) -> Result<(), Moment> {
        let end = self.since.map(|since| since + PORTION_PAUSE);
        let Some(end) = end.filter(|end| now < *end) else {
            (self.since, self.bytes, self.events) = (Some(now), bytes, 1);
            return Ok(());
        };
        let sum = self.bytes.saturating_add(bytes);
        if sum > PORTION_BYTES || self.events >= PORTION_EVENTS {
            return Err(end);
        }
        (self.bytes, self.events) = (sum, self.events + 1);
        Ok(())
    }

    /// The start of the next batch, if the current one is full.
    fn is_full_until(&self, now: Moment) -> Option<Moment> {
        let end = self.since.map(|since| since + PORTION_PAUSE);
        let is_full = self.bytes >= PORTION_BYTES || self.events >= PORTION_EVENTS;
        end.filter(|end| is_full && now < *end)
    }

    /// Counts how often in a row the task with this order number was the first lost task.
    fn count_lost(&mut self, first: Option<u64>) -> u32 {
        let before = self.lost.filter(|(order, _)| Some(*order) == first);
        let times = before.map_or(0, |(_, times)| times).saturating_add(1);
        self.lost = first.map(|first| (first, times));
        times
    }

    /// Whether any task was delivered.
    pub(super) fn has_begun(&self) -> bool {
        self.since.is_some()
    }
}

/// Delivers the undelivered tasks to an executor, as many as fit into a batch.
pub(super) fn deliver_tasks(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Arc<Executor>) {
    let Some(connection) = executor.link.connection() else {
        return;
    };
    let mut deliveries = executor.link.deliveries().clone();
    if let Some(next) = deliveries.is_full_until(step.now.moment) {
        step.set_timer(next, Timer::Deliveries(executor.container.id.clone()));
        return;
    }
    for batch in executor.batches() {
        let event = launch_event(&batch);
        if let Err(next) = deliveries.take(step.now.moment, event.encoded_len()) {
            step.set_timer(next, Timer::Deliveries(executor.container.id.clone()));
            break;
        }
        for task in &batch {
            step.persist(Write::Log {
                key: task.key.clone(),
                entry: Box::new(LogEntry::Delivered(unix_ns(step.now))),
            });
        }
        let delivered_after = step.lsn();
        for task in &batch {
            tasks.runs.change_task(&task.key, |task| {
                (task.delivered, task.delivered_after) = (true, delivered_after);
            });
        }
        executors::tell_executor(step, executor, connection, event);
    }
    tasks.runs.change_executor(&executor.key, |executor| {
        executor.link.note_deliveries(deliveries);
    });
}

pub(super) fn deliver_next(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    if let Some(executor) = tasks.runs.executor_of(container) {
        reconcile::reconcile_executor(tasks, step, &executor.key);
    }
}

/// Settles delivered tasks that their executor does not name. A task with a damaged log may still run, with
/// acknowledged updates: it is killed.
pub(super) fn settle_unknown(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    key: &RunKey,
    connection: ConnectionId,
    known: &[pb::TaskInfo],
) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return;
    };
    let known: BTreeSet<&str> = known.iter().map(|task| &*task.task_id.value).collect();
    let unknown = executor.tasks.values().filter(|task| {
        (task.delivered || task.may_run_unknown)
            && !known.contains(task.key.task.as_str())
            && task.statuses.is_empty()
            && !executor.awaits_resize(task)
    });
    let (lost, dropped): (Vec<_>, Vec<_>) =
        unknown.partition(|task| task.delivered_after > Lsn::default());
    for task in dropped {
        let (state, why) = match task.may_run_unknown {
            true => (pb::TaskState::TaskFailed, DAMAGED),
            false => (tasks.runs.dropped_or_lost(key), NEVER_ARRIVED),
        };
        let task_ref = TaskRef {
            executor: executor.clone(),
            task: task.clone(),
        };
        let reason = Reason::AgentRestarted;
        executors::finish_unlaunched(tasks, step, &task_ref, state, reason, why.to_owned());
        if task.may_run_unknown {
            let kill = kill_event(&task.key.task, None);
            executors::tell_executor(step, &executor, connection, kill);
        }
    }
    give_again(tasks, step, &executor, lost);
}

/// Queues the tasks that did not reach an executor for delivery, except killed tasks. If the executor misses the first
/// of them more than [`ATTEMPTS_MAX`] times in a row, all of them are dropped: the event may be larger than a stream
/// allows.
fn give_again(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Arc<Executor>,
    lost: Vec<&Arc<Task>>,
) {
    let first = lost.iter().map(|task| task.order).min();
    let mut times = 0;
    tasks.runs.change_executor(&executor.key, |executor| {
        let mut deliveries = executor.link.deliveries().clone();
        times = deliveries.count_lost(first);
        executor.link.note_deliveries(deliveries);
    });
    if lost.is_empty() {
        return;
    }
    info!(
        executor_id = %executor.key.executor, tasks = lost.len(), times,
        "an executor does not have tasks that it was given"
    );
    for task in &lost {
        tasks.runs.change_task(&task.key, |task| {
            (task.delivered, task.delivered_after) = (false, Lsn::default());
        });
    }
    for task in lost {
        let Some(task_ref) = tasks.runs.task_at(&task.key) else {
            continue;
        };
        if times > ATTEMPTS_MAX {
            let state = tasks.runs.dropped_or_lost(&executor.key);
            let (reason, why) = (Reason::TaskUnknown, NOT_TAKEN.to_owned());
            executors::finish_unlaunched(tasks, step, &task_ref, state, reason, why);
        } else if task.kill_asked.is_some() {
            kill::end_undelivered(tasks, step, &task_ref);
        }
    }
}

/// The event for new tasks of a custom executor: a single task, or a group.
fn launch_event(batch: &[Arc<Task>]) -> Event {
    let mut tasks = batch.iter().map(|task| (*task.info).clone());
    if batch.iter().any(|task| task.group.is_some()) {
        let tasks = tasks.collect();
        return Event {
            r#type: Some(event::Type::LaunchGroup.into()),
            launch_group: Some(event::LaunchGroup {
                task_group: pb::TaskGroupInfo { tasks },
            }),
            ..Event::default()
        };
    }
    Event {
        r#type: Some(event::Type::Launch.into()),
        launch: tasks.next().map(|task| event::Launch { task }),
        ..Event::default()
    }
}

impl Executor {
    /// The tasks to deliver, in order of their acceptance; the tasks of a group stay together.
    fn batches(&self) -> Vec<Vec<Arc<Task>>> {
        let mut batches: Vec<Vec<Arc<Task>>> = Vec::new();
        let mut groups = BTreeMap::new();
        for task in self.undelivered() {
            let at = match &task.group {
                Some(group) => *groups.entry(group.clone()).or_insert(batches.len()),
                None => batches.len(),
            };
            match batches.get_mut(at) {
                Some(batch) => batch.push(task),
                None => batches.push(vec![task]),
            }
        }
        batches
    }
}
