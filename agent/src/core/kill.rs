//! Kills: requested by a framework, the completion time, a shutdown or the agent itself.
//!
//! The request is durable before the container gets SIGTERM, so that the reported end is correct even after a crash of
//! the agent. A slow disk delays the signal by at most [`RECORD_WAIT`], and a disk known to be silent does not delay
//! it. SIGKILL follows after the grace period: the supervisor keeps that time. If the supervisor fails, the core
//! destroys the container, even if the disk is silent. A later kill may shorten the grace period but never lengthens
//! it. A custom executor ends its tasks itself (`executor_kills.rs`). Invariant: a task that is reported as killed is
//! gone.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, FrameworkId};
use tracing::{info, warn};

use super::fields::{duration, unix_ns};
use super::model::{Executor, ExecutorKind, Kill, Phase, TaskRef, TerminationReason};
use super::registration::stream_key;
use super::tasks::Tasks;
use super::{
    ContainerAction, Destination, Step, Timer, corrections, ending, executor_kills, executors,
    launch, lifetimes, reconcile, status_updates,
};
use crate::checkpoint::{KillCause, KillRequested, LogEntry, Lsn, Write};

/// Time between SIGTERM and SIGKILL if neither the kill nor the task sets it (Mesos's default).
pub(super) const KILL_GRACE_DEFAULT: Duration = Duration::from_secs(3);
/// Time after SIGKILL before the container is destroyed.
const KILL_OVERDUE: Duration = Duration::from_secs(1);

/// Kills a task for its framework.
pub(super) fn kill_task(tasks: &mut Tasks, step: &mut Step<'_>, request: &wire::KillTask) {
    let Some(stream) = stream_key(&request.framework_id, &request.task_id) else {
        return;
    };
    let Some(task_ref) = tasks.runs.find_task(&stream) else {
        // The master answers reconciliation for unknown tasks.
        warn!(
            framework_id = %stream.framework, task_id = %stream.task,
            "ignored the kill of a task that is not here"
        );
        return;
    };
    if task_ref.executor.kind != ExecutorKind::Command && !task_ref.task.delivered {
        return kill_undelivered(tasks, step, &task_ref);
    }
    if task_ref.executor.kind == ExecutorKind::Custom {
        return executor_kills::ask_for_kill(tasks, step, &task_ref, request.kill_policy);
    }
    let grace = grace_of(request.kill_policy.as_ref())
        .or_else(|| grace_of(task_ref.task.info.kill_policy.as_ref()))
        .unwrap_or(KILL_GRACE_DEFAULT);
    kill(tasks, step, &task_ref, KillCause::Framework, grace);
}

/// Kills a task that waits for its executor, together with its whole group, before they are delivered. The
/// executor's container already includes their resources, or is launched with them: the terminal updates follow
/// after a resize.
pub(super) fn kill_undelivered(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    let key = task_ref.executor.key.clone();
    end_undelivered(tasks, step, task_ref);
    reconcile::reconcile_executor(tasks, step, &key);
    reconcile::end_if_idle(tasks, step, &key);
}

pub(super) fn end_undelivered(tasks: &mut Tasks, step: &mut Step<'_>, task_ref: &TaskRef) {
    let group = task_ref.task.group.clone();
    let waiting = task_ref.executor.undelivered();
    let together = waiting
        .into_iter()
        .filter(|task| task.key == task_ref.task.key || (group.is_some() && task.group == group));
    for task in together {
        let task_ref = TaskRef {
            executor: task_ref.executor.clone(),
            task,
        };
        // A restarted agent must not deliver it to the executor.
        log_kill(step, &task_ref, KillCause::Framework, Duration::ZERO);
        finish_killed_during_launch(tasks, step, &task_ref);
    }
}

/// Ends a task whose process is the main process of a container.
pub(super) fn kill(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    cause: KillCause,
    grace: Duration,
) {
    let container = task_ref.container();
    if container.phase == Phase::Ended {
        return;
    }
    if let Some(earlier) = container.kill {
        if let Some(deadline) = earlier.deadline
            && step.now.moment + grace < deadline
        {
            log_kill(step, task_ref, earlier.cause, grace);
            send_kill(tasks, step, &container.id, grace);
        }
        return;
    }
    info!(
        framework_id = %task_ref.executor.key.framework, task_id = %task_ref.task.key.task,
        container_id = %container.id, ?cause,
        grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX), "killing a task"
    );
    log_kill(step, task_ref, cause, grace);
    let during_launch = container.phase == Phase::Launching;
    tasks.runs.change_container(&container.id, |container| {
        container.kill = Some(Kill {
            cause,
            during_launch,
            deadline: during_launch.then(|| step.now.moment + grace),
            grace,
        });
    });
    if during_launch {
        // A queued launch is cancelled; a begun launch is killed once it has started. The task may have run for
        // long while the report of its start waited for the disk: then this is its kill, with its grace period.
        output_kill(tasks, step, &container.id, grace);
        return;
    }
    // The task ran, but the agent may have crashed before it sent that update.
    launch::tell_running(tasks, step, task_ref);
    let Some(task_ref) = &tasks.runs.task_at(&task_ref.task.key) else {
        return debug_assert!(false, "a running task is here");
    };
    let framework = tasks.runs.framework(&task_ref.executor.key.framework);
    let tell = framework.is_some_and(|framework| framework.has_killing_state());
    if tell && !matches!(cause, KillCause::CompletionTime | KillCause::Preempted) {
        let state = pb::TaskState::TaskKilling;
        let status = launch::executor_status(step, task_ref, state, task_ref.container().pid);
        status_updates::update_task(tasks, step, &task_ref.task.key, status);
    }
    send_kill(tasks, step, &task_ref.container().id, grace);
}

pub(super) fn log_kill(step: &mut Step<'_>, task_ref: &TaskRef, cause: KillCause, grace: Duration) {
    step.persist(Write::Log {
        key: task_ref.task.key.clone(),
        entry: Box::new(kill_entry(step, cause, grace)),
    });
}

fn kill_entry(step: &Step<'_>, cause: KillCause, grace: Duration) -> LogEntry {
    let boot_clock = &step.options.boot_clock;
    LogEntry::KillRequested(KillRequested {
        grace_ns: u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX),
        at_unix_ns: unix_ns(step.now),
        cause: cause.into(),
        uptime_ns: Some(boot_clock.uptime_ns(step.now)),
        boot_id: Some(boot_clock.boot().as_str().to_owned()),
    })
}

/// Records that an executor must end, so that a restarted agent knows this.
pub(super) fn mark_ending(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Executor,
    cause: KillCause,
    grace: Duration,
) {
    step.persist(Write::ExecutorLog {
        key: executor.key.clone(),
        entry: Box::new(kill_entry(step, cause, grace)),
    });
    let during_launch = executor.container.phase == Phase::Launching;
    tasks.runs.change_executor(&executor.key, |executor| {
        executor.container.kill = Some(Kill {
            cause,
            during_launch,
            deadline: None,
            grace,
        });
    });
}

/// Sends the signal to a running container.
pub(super) fn send_kill(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    grace: Duration,
) {
    let deadline = step.now.moment + grace;
    tasks.runs.change_container(container, |container| {
        if let Some(kill) = &mut container.kill {
            kill.deadline = Some(deadline);
            kill.grace = grace;
        }
    });
    output_kill(tasks, step, container, grace);
    step.set_timer(
        deadline + KILL_OVERDUE,
        Timer::KillOverdue(container.clone()),
    );
}

fn output_kill(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId, grace: Duration) {
    corrections::thaw(tasks, step, container);
    let container = container.clone();
    step.output(
        Destination::Container(container.clone()),
        ContainerAction::Kill {
            container: container.clone(),
            grace,
        },
    );
    let unwritten = Timer::KillUnwritten(container, step.lsn());
    step.set_timer(step.now.moment + step.disk().record_wait(), unwritten);
}

/// Sends a signal whose record is late: a full disk does not keep a task alive, so the signal precedes the pending
/// writes.
pub(super) fn kill_unwritten(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    lsn: Lsn,
) {
    let executor = tasks.runs.executor_of(container);
    let of_executor = executor.as_ref().map(|executor| &executor.container);
    let task_ref = tasks.runs.task_of(container);
    let held = task_ref.as_ref().map(TaskRef::container).or(of_executor);
    let Some(kill) = held
        .and_then(|held| held.kill)
        .filter(|_| lsn > step.durable())
    else {
        return;
    };
    warn!(container_id = %container, "the disk takes too long; killing before that is written");
    let grace = kill.left(step.now.moment);
    corrections::thaw_overdue(tasks, step, container);
    step.output_now(
        Destination::Overdue(container.clone()),
        ContainerAction::Kill {
            container: container.clone(),
            grace,
        },
    );
}

pub(super) fn kill_overdue(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    let phase = match (
        tasks.runs.task_of(container),
        tasks.runs.executor_of(container),
    ) {
        (Some(task_ref), _) => task_ref.container().phase,
        (None, Some(executor)) => executor.container.phase,
        (None, None) => return,
    };
    if phase == Phase::Running {
        warn!(container_id = %container, "a container is still running after its kill; destroying it");
        // The kill of the container was sent, with or without a record: there is nothing left to wait for.
        step.output_now(
            Destination::Overdue(container.clone()),
            ContainerAction::Destroy {
                container: container.clone(),
            },
        );
    }
}

pub(super) fn completion_time_over(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
) {
    if let Some(task_ref) = tasks.runs.task_of(container) {
        kill(
            tasks,
            step,
            &task_ref,
            KillCause::CompletionTime,
            Duration::ZERO,
        );
    }
}

pub(super) fn finish_killed_during_launch(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
) {
    let TerminationReason {
        state,
        reason,
        message,
    } = corrections::preemption_of(tasks, &task_ref.executor).unwrap_or(TerminationReason {
        state: pb::TaskState::TaskKilled,
        reason: Reason::TaskKilledDuringLaunch,
        message: "Task killed during launch".to_owned(),
    });
    let is_waiting = task_ref.executor.kind == ExecutorKind::Default && !task_ref.task.delivered;
    if task_ref.executor.kind == ExecutorKind::Custom || is_waiting {
        return executors::finish_unlaunched(tasks, step, task_ref, state, reason, message);
    }
    ending::finish_task(
        tasks,
        step,
        task_ref,
        state,
        Source::Agent,
        Some(reason),
        Some(message),
        None,
    );
}

/// Kills the other tasks of the group of a task that did not finish successfully.
pub(super) fn end_group_of(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    state: pb::TaskState,
) {
    let group = task_ref.task.group.clone();
    if state == pb::TaskState::TaskFinished || group.is_none() {
        return;
    }
    let Some(executor) = tasks.runs.executor_at(&task_ref.executor.key) else {
        return;
    };
    for task in executor.tasks.values() {
        if task.group != group || task.key == task_ref.task.key || !task.delivered {
            continue;
        }
        let other = TaskRef {
            executor: executor.clone(),
            task: task.clone(),
        };
        let grace = grace_of(task.info.kill_policy.as_ref()).unwrap_or(KILL_GRACE_DEFAULT);
        kill(tasks, step, &other, KillCause::Group, grace);
    }
}

pub(super) fn shutdown_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    shutdown: &wire::ShutdownExecutor,
) {
    let framework = FrameworkId::new(&shutdown.framework_id.value).ok();
    let executor = framework.and_then(|id| {
        tasks
            .runs
            .executor(&id, shutdown.executor_id.value.as_str())
    });
    match executor {
        Some(executor) => shut_executor_down(tasks, step, &executor, KillCause::Shutdown),
        None => warn!(
            framework_id = shutdown.framework_id.value,
            executor_id = shutdown.executor_id.value,
            "ignored the shutdown of an executor that is not here"
        ),
    }
}

pub(super) fn shut_executor_down(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Arc<Executor>,
    cause: KillCause,
) {
    if executor.kind == ExecutorKind::Custom {
        return lifetimes::shut_custom_down(tasks, step, executor);
    }
    for task in executor.tasks.values() {
        let task_ref = TaskRef {
            executor: executor.clone(),
            task: task.clone(),
        };
        let waits = executor.kind == ExecutorKind::Default && !task.delivered;
        if waits && !task.is_terminal() {
            finish_killed_during_launch(tasks, step, &task_ref);
        } else {
            let grace = grace_of(task.info.kill_policy.as_ref());
            kill(
                tasks,
                step,
                &task_ref,
                cause,
                grace.unwrap_or(KILL_GRACE_DEFAULT),
            );
        }
    }
    reconcile::end_if_idle(tasks, step, &executor.key);
}

pub(super) fn shutdown_framework(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    shutdown: &wire::ShutdownFramework,
) {
    let Ok(id) = FrameworkId::new(&shutdown.framework_id.value) else {
        return;
    };
    // Also for a framework without anything here except refused tasks.
    tasks.updates.remove_framework(&id);
    let executors: Vec<Arc<Executor>> = match tasks.runs.framework(&id) {
        Some(framework) => framework.executors.values().cloned().collect(),
        None => return,
    };
    info!(framework_id = %id, executors = executors.len(), "shutting a framework down");
    for executor in executors {
        if executor.is_live() {
            tasks
                .runs
                .change_executor(&executor.key, |executor| executor.orphaned = true);
            if let Some(executor) = tasks.runs.executor_at(&executor.key) {
                drop_ended_tasks(tasks, step, &executor);
                shut_executor_down(tasks, step, &executor, KillCause::Shutdown);
            }
        } else {
            // Nobody is left to acknowledge the executor's updates.
            status_updates::retire(tasks, step, &executor.key);
        }
    }
    status_updates::retire_framework_if_idle(tasks, step, &id);
}

/// Drops the ended tasks: their acknowledgements will not come.
fn drop_ended_tasks(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Arc<Executor>) {
    for task in executor.tasks.values().filter(|task| task.is_terminal()) {
        status_updates::task_over(
            tasks,
            step,
            &TaskRef {
                executor: executor.clone(),
                task: task.clone(),
            },
        );
    }
}

/// Ends all executors.
pub(super) fn kill_everything(tasks: &mut Tasks, step: &mut Step<'_>, cause: KillCause) {
    let executors: Vec<_> = tasks.runs.all_executors().collect();
    for executor in executors {
        shut_executor_down(tasks, step, &executor, cause);
    }
}

/// The grace period of a task, or the default.
pub(super) fn grace_of_task(task_ref: &TaskRef) -> Duration {
    grace_of(task_ref.task.info.kill_policy.as_ref()).unwrap_or(KILL_GRACE_DEFAULT)
}

pub(super) fn grace_of(policy: Option<&pb::KillPolicy>) -> Option<Duration> {
    policy?.grace_period.as_ref().map(duration)
}
