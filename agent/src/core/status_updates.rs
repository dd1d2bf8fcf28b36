//! Status updates: created, persisted, sent in order, acknowledged; completed runs are retired.
//!
//! An update is written before it is sent, and its acknowledgement is written before the next update is sent.
//! Invariant: a run is retired only after its container is gone and all its updates are acknowledged.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::FrameworkId;
use tracing::{info, warn};

use super::model::{Executor, ExecutorKind, TaskRef};
use super::registration::stream_key;
use super::states::{dropped_or_lost, is_terminal};
use super::tasks::Tasks;
use super::update_streams::{Acknowledged, Pushed, StreamKey, UNACKNOWLEDGED_UPDATES_MAX};
use super::{Destination, Output, Step};
use crate::byte_semaphore::Permit;
use crate::checkpoint::{LogEntry, RunKey, TaskKey, Write};

/// The time within which the tasks of a group that reached a common limit are all reported.
const GROUP_ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Makes a status update of a task of this agent: durable, then sent in its turn.
pub(super) fn update_task(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    key: &TaskKey,
    status: pb::TaskStatus,
) -> Option<Pushed> {
    update_task_in(tasks, step, key, status, Arc::default())
}

/// Makes a status update that holds a permit until it is acknowledged.
pub(super) fn update_task_in(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    key: &TaskKey,
    mut status: pb::TaskStatus,
    permit: Arc<Permit>,
) -> Option<Pushed> {
    let is_aware = tasks.runs.is_partition_aware(&key.run.framework);
    tasks.drain.explain(is_aware, &mut status);
    let task_ref = tasks.runs.task_at(key)?;
    if task_ref.executor.orphaned {
        // Nobody is left to acknowledge it.
        record(tasks, step, &task_ref, &status);
        if is_terminal(status.state) {
            task_over(tasks, step, &task_ref);
        }
        return None;
    }
    let stream = task_ref.task.stream();
    let pushed = match task_ref.executor.kind {
        ExecutorKind::Custom => {
            tasks
                .updates
                .push(step.now.moment, &stream, status.clone(), permit)
        }
        ExecutorKind::Command | ExecutorKind::Default => {
            tasks
                .updates
                .push_own(step.now.moment, &stream, status.clone())
        }
    };
    match pushed {
        Pushed::Send | Pushed::Waits => {}
        Pushed::Duplicate | Pushed::AfterTerminal | Pushed::Full | Pushed::Once => {
            step.counters.invalid_status_updates += 1;
            warn!(
                framework_id = %stream.framework, task_id = %stream.task, ?pushed,
                max = UNACKNOWLEDGED_UPDATES_MAX, "dropped a status update"
            );
            return Some(pushed);
        }
    }
    record(tasks, step, &task_ref, &status);
    if pushed == Pushed::Send {
        send_head(tasks, step, &stream);
    }
    Some(pushed)
}

/// Writes an update and counts it.
fn record(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef, status: &pb::TaskStatus) {
    info!(
        framework_id = %task_ref.executor.key.framework,
        task_id = %task_ref.task.key.task,
        container_id = %task_ref.container().id,
        state = state_name(status.state),
        message = status.message.as_deref().unwrap_or_default(),
        "status update"
    );
    step.counters.valid_status_updates += 1;
    step.counters.count_terminal(status.state);
    step.persist(Write::Log {
        key: task_ref.task.key.clone(),
        entry: Box::new(LogEntry::Update(status.clone())),
    });
    let had_ended = task_ref.task.is_terminal();
    tasks
        .runs
        .change_task(&task_ref.task.key, |task| task.record(status));
    if !had_ended && is_terminal(status.state) {
        if status.reason() == Reason::ContainerLimitationMemory {
            count_out_of_memory(tasks, step, &task_ref.executor);
        }
        tasks.runs.count_end(&task_ref.task.key);
    }
}

/// Counts a task out of memory. The tasks of a group that reached their common limit count as one.
fn count_out_of_memory(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Executor) {
    let mut is_first = false;
    tasks.runs.change_executor(&executor.key, |executor| {
        let now = step.now.moment;
        is_first = executor.link.note_out_of_memory(now, GROUP_ENDS_WITHIN);
    });
    if is_first {
        step.counters.count_out_of_memory(executor.role.clone());
    }
}

/// Answers for a task that the agent does not have. The update is sent until acknowledged, but is lost at a
/// restart, after which the master asks again. For a framework without acknowledgements the number of such updates
/// is bounded: further ones are sent only once.
pub(super) fn answer_for_absent(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    stream: &StreamKey,
    status: pb::TaskStatus,
    permit: Arc<Permit>,
) {
    info!(
        framework_id = %stream.framework,
        task_id = %stream.task,
        state = state_name(status.state),
        message = status.message.as_deref().unwrap_or_default(),
        "status update for a task that does not run here"
    );
    step.counters.valid_status_updates += 1;
    step.counters.count_terminal(status.state);
    let sent = status.clone();
    match tasks
        .updates
        .push_absent(step.now.moment, stream, status, permit)
    {
        Pushed::Send => send_head(tasks, step, stream),
        Pushed::Once if tasks.updates.is_flowing() => {
            let latest_state = sent.state;
            send_update(step, stream, sent, latest_state);
        }
        _ => {}
    }
}

/// Answers for a task that the master assigned to this agent and that is unknown here: it never arrived.
pub(super) fn answer_unknown_task(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task: &wire::TaskToReconcile,
) {
    let Some(stream) = stream_key(&task.framework_id, &task.task_id) else {
        return;
    };
    if tasks.runs.find_task(&stream).is_some() || tasks.updates.has_unacknowledged(&stream) {
        return;
    }
    let status = status(
        step,
        task.task_id.clone(),
        dropped_or_lost(task.partition_aware),
        Source::Agent,
        Some(Reason::Reconciliation),
        Some("Reconciliation: the task is unknown to the agent".to_owned()),
    );
    answer_for_absent(tasks, step, &stream, status, Default::default());
}

pub(super) fn send_head(tasks: &mut Tasks, step: &mut Step<'_>, stream: &StreamKey) {
    let Some(status) = tasks.updates.head(stream).cloned() else {
        return;
    };
    let task_ref = tasks.runs.find_task(stream);
    let latest_state = task_ref
        .as_ref()
        .map_or(status.state, |task_ref| task_ref.task.state.into());
    if let Some(task_ref) = task_ref {
        let sent = (status.state, status.uuid.clone().unwrap_or_default());
        tasks
            .runs
            .change_task(&task_ref.task.key, |task| task.sent = Some(sent));
    }
    tasks.updates.sent(stream, step.lsn().0);
    send_update(step, stream, status, latest_state);
}

fn send_update(step: &mut Step<'_>, stream: &StreamKey, status: pb::TaskStatus, latest_state: i32) {
    step.send(ToMaster::StatusUpdate(wire::StatusUpdate {
        framework_id: pb::FrameworkId {
            value: stream.framework.to_string(),
        },
        status,
        latest_state: Some(latest_state),
    }));
}

pub(super) fn acknowledged(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    stream: &StreamKey,
    uuid: &[u8],
) {
    let task_ref = tasks.runs.find_task(stream);
    let outcome = tasks.updates.acknowledge(step.now.moment, stream, uuid);
    match outcome {
        Acknowledged::Next | Acknowledged::Closed => {}
        Acknowledged::Duplicate | Acknowledged::Unexpected | Acknowledged::Unknown => {
            warn!(
                framework_id = %stream.framework, task_id = %stream.task, ?outcome,
                "ignored an acknowledgement"
            );
            return;
        }
    }
    let log = match &task_ref {
        Some(task_ref) => Some(task_ref.task.key.clone()),
        // Of a completed task only a further terminal update was written.
        None if outcome == Acknowledged::Closed => tasks.runs.log_of_completed(stream),
        None => None,
    };
    if let Some(key) = log {
        step.persist(Write::Log {
            key,
            entry: Box::new(LogEntry::Acknowledged(uuid.to_vec())),
        });
    }
    if outcome == Acknowledged::Next {
        send_head(tasks, step, stream);
    } else if let Some(task_ref) = task_ref {
        task_over(tasks, step, &task_ref);
    }
}

/// Handles the end of a task whose updates are all acknowledged, and retires the oldest completed tasks.
pub(super) fn task_over(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    let updates = &tasks.updates;
    let forgotten = tasks
        .runs
        .complete_task(task_ref, |stream| updates.has_unacknowledged(stream));
    for key in forgotten {
        step.persist(Write::RetireTask { key });
    }
    retire_if_over(tasks, step, &task_ref.executor.key);
}

/// Retires a run without unacknowledged updates.
pub(super) fn retire_if_over(tasks: &mut Tasks, step: &mut Step<'_>, key: &RunKey) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return;
    };
    if executor.tasks.is_empty() && !executor.is_live() {
        retire(tasks, step, &executor.key);
        retire_framework_if_idle(tasks, step, &key.framework);
    }
}

/// Writes the retirement of a run and moves it to the completed runs.
pub(super) fn retire(tasks: &mut Tasks, step: &mut Step<'_>, key: &Arc<RunKey>) {
    step.persist(Write::Retire {
        key: (**key).clone(),
    });
    step.output(
        Destination::Container(key.container.clone()),
        Output::DiscardSandbox { run: key.clone() },
    );
    let kept = step.options.max_completed_executors_per_framework;
    tasks.runs.complete_executor(key, kept);
}

/// Writes the retirement of a framework without executors, and moves it to the completed frameworks.
pub(super) fn retire_framework_if_idle(tasks: &mut Tasks, step: &mut Step<'_>, id: &FrameworkId) {
    if !tasks.runs.is_idle(id) {
        return;
    }
    let Some(agent) = step.agent_id().cloned() else {
        return debug_assert!(false, "an agent with frameworks has an id");
    };
    step.persist(Write::RetireFramework {
        agent,
        framework: id.clone(),
    });
    tasks.runs.complete_framework(id);
}

/// A status of a task with the agent's own timestamp and source.
pub(super) fn status(
    step: &mut Step<'_>,
    task: pb::TaskId,
    state: pb::TaskState,
    source: Source,
    reason: Option<Reason>,
    message: Option<String>,
) -> pb::TaskStatus {
    pb::TaskStatus {
        task_id: task,
        state: state.into(),
        message,
        source: Some(source.into()),
        reason: reason.map(Into::into),
        agent_id: step.agent_id_message(),
        timestamp: Some(step.now.unix.as_secs_f64()),
        uuid: Some(step.new_uuid().into_bytes().to_vec()),
        ..pb::TaskStatus::default()
    }
}

fn state_name(state: i32) -> &'static str {
    pb::TaskState::try_from(state).map_or("unknown", |state| state.as_str_name())
}
