//! The executors of frameworks: their subscriptions, and the messages from and to them.
//!
//! Events go to one stream per executor, the last one it opened. An executor's update is durable before the agent
//! acknowledges it, except for late updates of ended tasks. Invariant: an executor gets a task or a kill at least once,
//! and, except for kills, nothing before it is durable.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::meseta::v1::agent_frame::Message as ToMaster;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::{Event, call, event};
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ExecutorId, FrameworkId, TaskId};
use tracing::{info, warn};

use super::consequence::Consequence;
use super::model::{Executor, Phase, TaskRef};
use super::states::is_terminal;
use super::tasks::Tasks;
use super::update_streams::{Pushed, StreamKey};
use super::{
    ConnectionId, Destination, ExecutorAction, Step, delivery, executor_kills, launch, lifetimes,
    reconcile, status_updates,
};
use crate::byte_semaphore::Permit;
use crate::checkpoint::{LogEntry, RunKey, Write};

/// Connects an executor with its stream.
#[must_use]
pub(super) fn executor_subscribed(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    connection: ConnectionId,
    framework: &FrameworkId,
    executor: &ExecutorId,
    subscribe: call::Subscribe,
    permits: Vec<Option<Permit>>,
) -> Option<Consequence> {
    let Some(executor) = tasks.runs.custom(framework, executor.as_str()) else {
        step.output_now(Destination::Agent, ExecutorAction::Finish { connection });
        return None;
    };
    info!(
        framework_id = %executor.key.framework, executor_id = %executor.key.executor,
        "executor subscribed"
    );
    if let Some(earlier) = executor.link.connection().filter(|old| *old != connection) {
        let finish = ExecutorAction::Finish {
            connection: earlier,
        };
        step.output_now(
            Destination::Executor(executor.key.container.clone()),
            finish,
        );
    }
    tasks.runs.change_executor(&executor.key, |executor| {
        executor.link.connect(connection);
    });
    let is_ending = executor.container.kill.is_some() || executor.link.is_terminated();
    if !is_ending {
        let subscribed = subscribed_event(tasks, step, &executor);
        tell_executor(step, &executor, connection, subscribed);
        let after = step.lsn();
        tasks.runs.change_executor(&executor.key, |executor| {
            executor.link.note_subscribed(after);
        });
    }
    // Also for an ending executor: these may be the terminal updates of its tasks.
    for (update, permit) in subscribe.unacknowledged_updates.into_iter().zip(permits) {
        executor_update(
            tasks,
            step,
            &executor.key.framework,
            &executor.key.executor,
            update.status,
            permit,
        );
    }
    if is_ending {
        tell_executor(step, &executor, connection, plain(event::Type::Shutdown));
        return Some(Consequence::ExecutorBack);
    }
    delivery::settle_unknown(
        tasks,
        step,
        &executor.key,
        connection,
        &subscribe.unacknowledged_tasks,
    );
    executor_kills::repeat_kills(tasks, step, &executor.key, connection);
    reconcile::reconcile_executor(tasks, step, &executor.key);
    Some(Consequence::ExecutorBack)
}

fn subscribed_event(tasks: &Tasks, step: &Step<'_>, executor: &Executor) -> Event {
    let framework = tasks.runs.framework(&executor.key.framework);
    let mut agent_info = step.options.info.clone();
    agent_info.id = step.agent_id_message();
    Event {
        r#type: Some(event::Type::Subscribed.into()),
        subscribed: Some(event::Subscribed {
            executor_info: executor.describe(),
            framework_info: framework
                .map(|framework| (*framework.info).clone())
                .unwrap_or_default(),
            agent_info,
            container_id: Some((&executor.key.container).into()),
        }),
        ..Event::default()
    }
}

/// Sends an event to an executor, after all earlier writes.
pub(super) fn tell_executor(
    step: &mut Step<'_>,
    executor: &Executor,
    connection: ConnectionId,
    event: Event,
) {
    step.output(
        Destination::Executor(executor.key.container.clone()),
        ExecutorAction::Send {
            connection,
            event: Box::new(event),
        },
    );
}

pub(super) fn executor_gone(tasks: &mut Tasks, connection: ConnectionId) {
    let mut executors = tasks.runs.all_executors();
    let executor = executors.find(|one| one.link.connection() == Some(connection));
    if let Some(executor) = executor {
        info!(executor_id = %executor.key.executor, "an executor's stream ended");
        tasks
            .runs
            .change_executor(&executor.key, |executor| executor.link.disconnect());
    }
}

/// Accepts an update, which keeps its permit until it is acknowledged. An update without a permit is neither
/// accepted nor acknowledged to the executor, unless the agent has it already.
pub(super) fn executor_update(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    framework: &FrameworkId,
    executor: &ExecutorId,
    mut status: pb::TaskStatus,
    permit: Option<Permit>,
) {
    let permit = permit.map(Arc::new);
    let Some(executor) = tasks.runs.custom(framework, executor.as_str()) else {
        step.counters.invalid_status_updates += 1;
        return;
    };
    let Ok(task) = TaskId::new(&status.task_id.value) else {
        step.counters.invalid_status_updates += 1;
        return;
    };
    if status.state() == pb::TaskState::TaskStaging {
        warn!(task_id = %task, "an executor told TASK_STAGING; shutting it down");
        return lifetimes::shut_custom_down(tasks, step, &executor);
    }
    complete_status(step, &executor, &mut status);
    let uuid = status.uuid.clone().unwrap_or_default();
    let Some(task) = executor.tasks.get(&task).cloned() else {
        return update_of_absent(tasks, step, &executor, task, status, permit);
    };
    let task_ref = TaskRef {
        executor: executor.clone(),
        task,
    };
    if task_ref.executor.link.delays_update(&uuid) {
        return;
    }
    let known = tasks.updates.knows(&task_ref.task.stream(), &uuid);
    if permit.is_none() && !known {
        return log_rejected_update(&executor.key, &task_ref.task.key.task);
    }
    let permit = permit.unwrap_or_default();
    if is_terminal(status.state) && !task_ref.task.is_terminal() && !known {
        return reconcile::send_after_resize(tasks, step, &task_ref, status, permit);
    }
    let told = status_updates::update_task_in(tasks, step, &task_ref.task.key, status, permit);
    acknowledge_to_executor(tasks, step, &task_ref, uuid, told);
}

/// Completes an executor's status with fields from the agent.
fn complete_status(step: &Step<'_>, executor: &Executor, status: &mut pb::TaskStatus) {
    status.source = Some(Source::Executor.into());
    status.executor_id = Some(pb::ExecutorId {
        value: executor.key.executor.to_string(),
    });
    status.agent_id = step.agent_id_message();
    status.timestamp = Some(believable_time(status.timestamp, step.now.unix));
    let ours = launch::container_status(step, &executor.container.id, executor.container.pid);
    let told = status.container_status.get_or_insert_default();
    if told.network_infos.is_empty() {
        told.network_infos = ours.network_infos;
    }
    told.container_id = ours.container_id;
    told.executor_pid = ours.executor_pid;
}

/// Forwards an update of an ended task, as Mesos does, and drops an update of an unknown task. A terminal update is
/// written; other updates of such a task are of no use after a restart.
fn update_of_absent(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Arc<Executor>,
    task: TaskId,
    status: pb::TaskStatus,
    permit: Option<Arc<Permit>>,
) {
    let known = executor.completed.iter().find(|old| old.key.task == task);
    let Some(known) = known.cloned() else {
        step.counters.invalid_status_updates += 1;
        warn!(
            task_id = %task, executor_id = %executor.key.executor,
            "dropped a status update of a task that the executor was not given"
        );
        return;
    };
    let uuid = status.uuid.clone().unwrap_or_default();
    let stream = StreamKey {
        framework: executor.key.framework.clone(),
        task,
    };
    let was_told = known
        .statuses
        .iter()
        .any(|old| old.uuid.as_deref() == Some(&uuid));
    if !was_told && !tasks.updates.knows(&stream, &uuid) {
        let Some(permit) = permit else {
            return log_rejected_update(&executor.key, &stream.task);
        };
        if is_terminal(status.state) {
            step.persist(Write::Log {
                key: known.key.clone(),
                entry: Box::new(LogEntry::Update(status.clone())),
            });
        }
        status_updates::answer_for_absent(tasks, step, &stream, status, permit);
    }
    let task_ref = TaskRef {
        executor: executor.clone(),
        task: known,
    };
    acknowledge_to_executor(tasks, step, &task_ref, uuid, Some(Pushed::Send));
}

/// Acknowledges an update to its executor, unless there was no room for the update.
pub(super) fn acknowledge_to_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    uuid: Vec<u8>,
    told: Option<Pushed>,
) {
    let Some(executor) = tasks.runs.executor_at(&task_ref.executor.key) else {
        return;
    };
    let Some(connection) = executor.link.connection() else {
        return;
    };
    if told == Some(Pushed::Full) {
        return;
    }
    let event = Event {
        r#type: Some(event::Type::Acknowledged.into()),
        acknowledged: Some(event::Acknowledged {
            task_id: task_ref.task.info.task_id.clone(),
            uuid,
        }),
        ..Event::default()
    };
    tell_executor(step, &executor, connection, event);
}

/// Forwards a message from an executor to its scheduler. Messages are not kept, and no connection begins with one.
pub(super) fn executor_message(
    step: &mut Step<'_>,
    is_running: bool,
    framework: &FrameworkId,
    executor: &ExecutorId,
    data: Vec<u8>,
) {
    if !is_running {
        step.counters.invalid_framework_messages += 1;
        return warn!(
            framework_id = %framework, executor_id = %executor,
            "dropped a message of an executor: the agent is not registered with a master"
        );
    }
    step.counters.valid_framework_messages += 1;
    step.send(ToMaster::ExecutorMessage(wire::ExecutorMessage {
        framework_id: pb::FrameworkId {
            value: framework.to_string(),
        },
        executor_id: pb::ExecutorId {
            value: executor.to_string(),
        },
        data,
    }));
}

/// Forwards a message from a scheduler to its executor.
pub(super) fn message_for_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    message: wire::ExecutorMessage,
) {
    let ids = FrameworkId::new(&message.framework_id.value)
        .ok()
        .zip(ExecutorId::new(&message.executor_id.value).ok());
    let executor =
        ids.and_then(|(framework, executor)| tasks.runs.custom(&framework, executor.as_str()));
    let to = executor.and_then(|executor| {
        let connection = executor.link.connection()?;
        Some((executor, connection))
    });
    let Some((executor, connection)) = to else {
        step.counters.invalid_framework_messages += 1;
        return warn!(
            framework_id = message.framework_id.value,
            executor_id = message.executor_id.value,
            "dropped a message to an executor that is not connected here"
        );
    };
    step.counters.valid_framework_messages += 1;
    let event = Event {
        r#type: Some(event::Type::Message.into()),
        message: Some(event::Message { data: message.data }),
        ..Event::default()
    };
    tell_executor(step, &executor, connection, event);
}

/// Sends the terminal update of a task that its executor never received, once the executor's container no longer
/// includes the task's resources.
pub(super) fn finish_unlaunched(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    state: pb::TaskState,
    reason: Reason,
    message: String,
) {
    let executor = tasks.runs.executor_at(&task_ref.executor.key);
    if executor.is_some_and(|executor| executor.awaits_resize(&task_ref.task)) {
        return;
    }
    let mut status = launch::executor_status(step, task_ref, state, None);
    status.source = Some(Source::Agent.into());
    status.reason = Some(reason.into());
    status.message = Some(message);
    status.container_status = None;
    if let Some(nested) = &task_ref.task.nested {
        let id = nested.id.clone();
        tasks
            .runs
            .change_container(&id, |nested| nested.phase = Phase::Ended);
    }
    reconcile::send_after_resize(tasks, step, task_ref, status, Default::default());
}

fn log_rejected_update(run: &RunKey, task: &TaskId) {
    warn!(
        framework_id = %run.framework, executor_id = %run.executor, task_id = %task,
        "an executor that subscribed has more unacknowledged updates than the limit; this one stays with the executor"
    );
}

pub(super) fn plain(kind: event::Type) -> Event {
    Event {
        r#type: Some(kind.into()),
        ..Event::default()
    }
}

pub(super) fn kill_event(task: &TaskId, kill_policy: Option<pb::KillPolicy>) -> Event {
    Event {
        r#type: Some(event::Type::Kill.into()),
        kill: Some(event::Kill {
            task_id: pb::TaskId {
                value: task.to_string(),
            },
            kill_policy,
        }),
        ..Event::default()
    }
}

/// The longest time by which an update may be ahead of the clock. An executor has the same clock, which may be set back
/// between an update and its arrival.
const AHEAD_MAX: Duration = Duration::from_secs(60);

/// The time of a status, in seconds since the Unix epoch: the executor's value if it is plausible. Lists of tasks are
/// sorted by it.
fn believable_time(told: Option<f64>, now: Duration) -> f64 {
    let latest = now.saturating_add(AHEAD_MAX).as_secs_f64();
    let told = told.filter(|told| (0.0..=latest).contains(told));
    told.unwrap_or(now.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn update_times_are_not_future() {
        let now = Duration::from_secs(1_795_226_383);
        let at = now.as_secs_f64();
        for believed in [0.0, 1.5, at - 86_400.0, at, at + 59.0] {
            assert_eq!(believable_time(Some(believed), now), believed);
        }
        let never = [1e300, f64::INFINITY, f64::NAN, -1.0, -1e300, at + 61.0];
        for told in never.map(Some).into_iter().chain([None]) {
            assert_eq!(believable_time(told, now), at, "{told:?}");
        }
    }
}
