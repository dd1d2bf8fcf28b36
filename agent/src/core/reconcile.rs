//! Reconciles an executor with its container: resizes, task deliveries, terminal updates.
//!
//! [`reconcile_executor`] inspects a default or custom executor and takes the steps that are possible now. A
//! container has the resources of a task before the task reaches it, and has lost them before the terminal update of
//! the task is sent.

use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::Demand;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::ContainerId;
use tracing::{error, info};

use super::demand::{combined, demand};
use super::fields::volumes_among;
use super::model::{Executor, ExecutorKind, Phase, Task, TaskRef, TerminationReason};
use super::parent_volumes::ParentVolumes;
use super::tasks::Tasks;
use super::{
    ContainerAction, Destination, Step, delivery, ending, executors, kill, launch, lifetimes,
    status_updates,
};
use crate::byte_semaphore::Permit;
use crate::checkpoint::{KillCause, RunKey, TaskKey};

/// Performs the pending steps of an executor.
pub(super) fn reconcile_executor(tasks: &mut Tasks, step: &mut Step<'_>, key: &RunKey) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return;
    };
    if executor.kind == ExecutorKind::Command {
        return;
    }
    match executor.container.phase {
        Phase::Launching => return,
        Phase::Ended => return send_delayed_updates(tasks, step, &executor),
        Phase::Running => {}
    }
    if executor.link.is_resizing() {
        return;
    }
    let is_ending = executor.container.kill.is_some() || executor.link.is_terminated();
    let required = required_demand(step, &executor);
    let volumes = match executor.kind {
        ExecutorKind::Custom => executor.volumes(|task| !executor.awaits_resize(task)),
        // Each task has its own container for them.
        ExecutorKind::Default | ExecutorKind::Command => Vec::new(),
    };
    let has_others = executor.kind == ExecutorKind::Custom && !executor.link.has_volumes(&volumes);
    if (required != executor.container.demand || has_others) && !is_ending {
        return resize(tasks, step, &executor, required, volumes);
    }
    send_delayed_updates(tasks, step, &executor);
    if is_ending {
        return;
    }
    match executor.kind {
        ExecutorKind::Custom => delivery::deliver_tasks(tasks, step, &executor),
        _ => launch_nested(tasks, step, &executor),
    }
    end_if_idle(tasks, step, key);
}

/// Requests and limits of the executor and its live tasks together.
fn required_demand(step: &Step<'_>, executor: &Executor) -> Demand {
    let own = executor.own_demand(step.options.enforceable);
    let tasks = executor.tasks.values();
    let live = tasks.filter(|task| !task.is_terminal() && !executor.awaits_resize(task));
    combined(std::iter::once(own).chain(live.map(|task| task.demand)))
}

fn resize(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Executor,
    required: Demand,
    volumes: Vec<pb::Resource>,
) {
    let container = executor.container.id.clone();
    tasks.runs.change_executor(&executor.key, |executor| {
        executor.container.demand = required;
        executor.link.begin_resize(volumes.clone());
    });
    step.output(
        Destination::Container(container.clone()),
        ContainerAction::Resize {
            container,
            demand: required,
            resources: executor.allocated_with(|task| !executor.awaits_resize(task)),
            volumes,
        },
    );
}

pub(super) fn resized(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    failed: Option<String>,
) {
    let Some(executor) = tasks.runs.executor_of(container) else {
        return;
    };
    let key = executor.key.clone();
    tasks.runs.change_executor(&key, |executor| {
        executor.link.end_resize();
    });
    if let Some(cause) = failed.filter(|_| executor.is_live()) {
        error!(container_id = %container, cause, "a container could not be resized");
        let message = format!("Failed to update resources for container: {cause}");
        terminate_executor(
            tasks,
            step,
            &executor,
            tasks.runs.gone_or_lost(&key),
            Reason::ContainerUpdateFailed,
            message,
        );
    }
    reconcile_executor(tasks, step, &key);
}

/// Sends the terminal updates that were delayed by a resize.
fn send_delayed_updates(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Executor) {
    let mut delayed = Vec::new();
    if executor.link.delays_any() {
        tasks.runs.change_executor(&executor.key, |executor| {
            delayed = executor.link.take_delayed();
        });
    }
    for (status, permit) in delayed {
        let task = executor.tasks.get(status.task_id.value.as_str());
        let Some(task) = task.cloned() else {
            continue;
        };
        send_terminal_update(tasks, step, &task.key, status, permit);
    }
}

/// Sends the terminal update of a task whose resources were taken back.
fn send_terminal_update(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    key: &TaskKey,
    status: pb::TaskStatus,
    permit: Arc<Permit>,
) {
    let Some(task_ref) = tasks.runs.task_at(key) else {
        return;
    };
    let uuid = status.uuid.clone().unwrap_or_default();
    let is_executors = status.source() == Source::Executor;
    let told = status_updates::update_task_in(tasks, step, key, status, permit);
    match &task_ref.task.nested {
        Some(nested) => ending::forget(tasks, step, &nested.id.clone()),
        None if is_executors => {
            executors::acknowledge_to_executor(tasks, step, &task_ref, uuid, told)
        }
        None => {}
    }
}

/// Delays a terminal update until the executor's container has been resized.
pub(super) fn send_after_resize(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    status: pb::TaskStatus,
    permit: Arc<Permit>,
) {
    tasks
        .runs
        .change_executor(&task_ref.executor.key, |executor| {
            executor.link.delay_update(status, permit);
        });
    reconcile_executor(tasks, step, &task_ref.executor.key);
}

/// Launches the tasks of a default executor that have not been launched.
fn launch_nested(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Arc<Executor>) {
    let volumes = executor.volumes(|_| true);
    let parent_volumes = ParentVolumes::from_volumes(&volumes);
    for task in executor.undelivered() {
        info!(task_id = %task.key.task, "launching a task of a group");
        tasks
            .runs
            .change_task(&task.key, |task| task.delivered = true);
        tasks
            .runs
            .change_executor(&executor.key, |executor| executor.link.note_given());
        launch::launch_inside(step, &executor.key, &task, &parent_volumes);
    }
}

/// Ends an executor that has no work and will get none. A default executor ends as soon as its tasks are over. A
/// custom executor ends only if all its first tasks were killed before their delivery, or if its agent is draining.
/// A running executor first waits until it has no delayed updates; an executor that is still being launched does
/// not wait for them.
pub(super) fn end_if_idle(tasks: &mut Tasks, step: &mut Step<'_>, key: &RunKey) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return;
    };
    let is_running = match executor.container.phase {
        _ if executor.container.kill.is_some() => return,
        Phase::Launching => false,
        Phase::Running => true,
        Phase::Ended => return,
    };
    let mut live = executor.tasks.values();
    let waits = |task: &Task| !task.is_terminal() && !executor.awaits_resize(task);
    if live.any(|task| waits(task)) || (is_running && executor.link.delays_any()) {
        return;
    }
    match executor.kind {
        ExecutorKind::Default => {
            kill::mark_ending(tasks, step, &executor, KillCause::Shutdown, Duration::ZERO);
            kill::send_kill(tasks, step, &executor.container.id, Duration::ZERO);
        }
        ExecutorKind::Custom if !executor.link.was_given() || tasks.drain.current().is_some() => {
            lifetimes::shut_custom_down(tasks, step, &executor);
        }
        ExecutorKind::Custom | ExecutorKind::Command => {}
    }
}

impl Executor {
    /// Undelivered tasks in order of their acceptance.
    pub(super) fn undelivered(&self) -> Vec<Arc<Task>> {
        let waiting = self
            .tasks
            .values()
            .filter(|task| !task.delivered && !task.is_terminal() && !self.awaits_resize(task));
        let mut waiting: Vec<_> = waiting.cloned().collect();
        waiting.sort_by_key(|task| task.order);
        waiting
    }

    /// Whether the terminal update of one of its tasks waits for a resize.
    pub(super) fn awaits_resize(&self, task: &Task) -> bool {
        self.link.delays(&task.key.task)
    }

    /// The persistent volumes of the executor and of its tasks for which `holds` is true.
    pub(crate) fn volumes(&self, holds: impl Fn(&Task) -> bool) -> Vec<pb::Resource> {
        let own = self.info.iter().flat_map(|info| &info.resources);
        let live = self.tasks.values();
        let live = live.filter(|task| !task.is_terminal() && holds(task));
        let of_tasks = live.flat_map(|task| &task.info.resources);
        volumes_among(own.chain(of_tasks))
    }

    /// The executor's own demand, without its tasks.
    pub(super) fn own_demand(&self, enforceable: super::Enforceable) -> Demand {
        demand(&self.resources, &Default::default(), enforceable).unwrap_or_default()
    }
}

/// Terminates an executor's container, with the reason for its tasks.
pub(super) fn terminate_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Executor,
    state: pb::TaskState,
    reason: Reason,
    message: String,
) {
    let kill = executor.container.kill;
    let is_evicted = kill.is_some_and(|kill| kill.cause == KillCause::Preempted);
    if !executor.is_live() || executor.link.is_terminated() || is_evicted {
        return;
    }
    info!(
        executor_id = %executor.key.executor, container_id = %executor.container.id, message,
        "terminating an executor"
    );
    tasks.runs.change_executor(&executor.key, |executor| {
        executor.link.terminate(TerminationReason {
            state,
            reason,
            message,
        });
    });
    // Only the cause survives a restart of the agent.
    let cause = match reason {
        Reason::ContainerPreempted => KillCause::Preempted,
        _ => KillCause::Shutdown,
    };
    kill::mark_ending(tasks, step, executor, cause, Duration::ZERO);
    kill::send_kill(tasks, step, &executor.container.id, Duration::ZERO);
}
