//! Timeouts of executors: registration, re-registration, shutdown; and their termination.
//!
//! Invariant: an executor that was asked to end, or never subscribed, is gone after its grace period, and each of its
//! tasks gets a terminal update.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::executor::event;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, ExecutorId, format_duration};
use tracing::{info, warn};

use super::consequence::Consequence;
use super::ending::{exit_message, has_ended_itself, limited};
use super::executors::plain;
use super::fields::duration;
use super::model::{Executor, ExecutorKind, Phase, TaskRef};
use super::runs::Runs;
use super::tasks::Tasks;
use super::{
    Ending, Exit, Step, Timer, corrections, ending, executors, kill, launch, reconcile,
    status_updates,
};
use crate::checkpoint::{KillCause, RunKey};

pub(super) fn await_registration(step: &mut Step<'_>, key: &RunKey) {
    step.set_timer(
        step.now.moment + step.options.executor_registration_timeout,
        Timer::ExecutorRegistration(key.container.clone()),
    );
}

pub(super) fn registration_timed_out(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
) {
    let Some(executor) = tasks.runs.executor_of(container) else {
        return;
    };
    if executor.link.has_subscribed() || !executor.is_live() {
        return;
    }
    step.counters.container_launch_errors += 1;
    let timeout = format_duration(step.options.executor_registration_timeout);
    reconcile::terminate_executor(
        tasks,
        step,
        &executor,
        pb::TaskState::TaskFailed,
        Reason::ExecutorRegistrationTimeout,
        format!("Executor did not register within {timeout}"),
    );
}

/// Asks an executor to end, and ends it after its grace period.
pub(super) fn shut_custom_down(tasks: &mut Tasks, step: &mut Step<'_>, executor: &Executor) {
    if !executor.is_live() || executor.container.kill.is_some() {
        return;
    }
    info!(
        framework_id = %executor.key.framework, executor_id = %executor.key.executor,
        "shutting an executor down"
    );
    let info = executor.info.as_ref();
    let grace = info
        .and_then(|info| info.shutdown_grace_period.as_ref())
        .map_or(step.options.executor_shutdown_grace, duration);
    kill::mark_ending(tasks, step, executor, KillCause::Shutdown, grace);
    if executor.container.phase == Phase::Launching {
        return kill::send_kill(tasks, step, &executor.container.id, Duration::ZERO);
    }
    // The executor needs its grace period for its shutdown, and frozen it would not receive the event.
    corrections::thaw(tasks, step, &executor.key.container);
    if let Some(connection) = executor.link.connection() {
        executors::tell_executor(step, executor, connection, plain(event::Type::Shutdown));
    }
    step.set_timer(
        step.now.moment + grace,
        Timer::ExecutorShutdown(executor.key.container.clone()),
    );
}

pub(super) fn shutdown_overdue(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    let Some(executor) = tasks.runs.executor_of(container) else {
        return;
    };
    if executor.is_live() {
        warn!(executor_id = %executor.key.executor, "an executor outlived its shutdown");
        kill::send_kill(tasks, step, container, Duration::ZERO);
    }
}

/// Handles the failed launch of an executor's own container.
#[must_use]
pub(super) fn executor_not_launched(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Executor,
    message: String,
) -> Option<Consequence> {
    if executor.container.kill.is_none() {
        step.counters.container_launch_errors += 1;
        tasks.runs.change_executor(&executor.key, |executor| {
            executor.link.terminate(super::TerminationReason {
                state: pb::TaskState::TaskFailed,
                reason: Reason::ContainerLaunchFailed,
                message: message.clone(),
            });
        });
    }
    let executor = tasks.runs.executor_at(&executor.key)?;
    let ending = Ending {
        exit: Exit::LaunchFailed(message),
        limitation: None,
        kill_requested: None,
    };
    end_executor(tasks, step, &executor, &ending)
}

/// Ends the tasks of an executor whose container has ended. Returns the consequence for the master, after which
/// [`forget_executor`] follows.
#[must_use]
pub(super) fn end_executor(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    executor: &Executor,
    ending: &Ending,
) -> Option<Consequence> {
    if executor.container.phase == Phase::Ended {
        return None;
    }
    let key = executor.key.clone();
    tasks.runs.change_executor(&key, |executor| {
        executor.container.phase = Phase::Ended;
        executor.link.disconnect();
    });
    step.counters.executors_terminated += 1;
    info!(executor_id = %key.executor, container_id = %key.container, ?ending, "executor ended");
    // Updates that it sent before come first.
    reconcile::reconcile_executor(tasks, step, &key);
    end_tasks_of(tasks, step, &key, ending);
    let exited = (!executor.orphaned).then(|| {
        let framework = pb::FrameworkId {
            value: key.framework.to_string(),
        };
        exited(framework, &key.executor, exit_of(executor, ending))
    });
    Some(Consequence::ExecutorEnded { key, exited })
}

/// Forgets an executor whose end was reported.
pub(super) fn forget_executor(tasks: &mut Tasks, step: &mut Step<'_>, key: &RunKey) {
    ending::forget(tasks, step, &key.container);
    status_updates::retire_if_over(tasks, step, key);
}

/// The report of an executor that was to be launched for refused tasks, unless the executor is here: the master has
/// recorded it as launched.
pub(super) fn not_launched(
    runs: &Runs,
    framework: &pb::FrameworkInfo,
    executor: Option<&pb::ExecutorInfo>,
    was_to_be_launched: bool,
) -> Option<wire::ExecutorExited> {
    let ids = framework.id.clone().zip(executor);
    let (framework, executor) = ids.filter(|_| was_to_be_launched)?;
    let id = ExecutorId::new(&executor.executor_id.value).ok()?;
    // An ended executor may still have unacknowledged updates.
    let mut executors = runs.all_executors().filter(|one| one.is_live());
    let is_here = executors
        .any(|one| one.key.executor == id && one.key.framework.as_str() == framework.value);
    (!is_here).then(|| exited(framework, &id, None))
}

/// The report of an executor's end.
pub(super) fn exited(
    framework_id: pb::FrameworkId,
    executor: &ExecutorId,
    status: Option<i32>,
) -> wire::ExecutorExited {
    wire::ExecutorExited {
        framework_id,
        executor_id: pb::ExecutorId {
            value: executor.to_string(),
        },
        status,
    }
}

fn end_tasks_of(tasks: &mut Tasks, step: &mut Step<'_>, key: &RunKey, ending: &Ending) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return;
    };
    let termination_reason = executor.link.termination_reason().cloned();
    let termination_reason =
        termination_reason.or_else(|| corrections::preemption_of(tasks, &executor));
    let termination_reason = termination_reason.filter(|termination_reason| {
        termination_reason.reason != Reason::ContainerPreempted || !has_ended_itself(ending)
    });
    let (state, reason, message) = match (&ending.limitation, termination_reason) {
        (Some(limitation), _) => (
            pb::TaskState::TaskFailed,
            limitation.reason,
            limitation.message.clone(),
        ),
        (None, Some(termination_reason)) => (
            termination_reason.state,
            termination_reason.reason,
            termination_reason.message,
        ),
        (None, None) if ending.exit == Exit::NeverBegun => (
            pb::TaskState::TaskFailed,
            Reason::AgentRestarted,
            exit_message(&ending.exit),
        ),
        (None, None) => (
            pb::TaskState::TaskFailed,
            Reason::ExecutorTerminated,
            format!("Executor terminated: {}", exit_message(&ending.exit)),
        ),
    };
    for task in executor.tasks.values().filter(|task| !task.is_terminal()) {
        let task_ref = TaskRef {
            executor: executor.clone(),
            task: task.clone(),
        };
        if let Some(nested) = &task.nested {
            let id = nested.id.clone();
            tasks
                .runs
                .change_container(&id, |nested| nested.phase = Phase::Ended);
            ending::forget(tasks, step, &id);
        }
        let mut status = launch::executor_status(step, &task_ref, state, None);
        status.source = Some(Source::Agent.into());
        status.reason = Some(reason.into());
        status.message = Some(message.clone());
        status.limitation = ending.limitation.as_ref().and_then(limited);
        status_updates::update_task(tasks, step, &task.key, status);
    }
}

/// The recovered executors that have not come back.
pub(super) fn missing_executors(runs: &Runs) -> Vec<Arc<Executor>> {
    let missing = runs.all_executors().filter(|executor| {
        let is_custom = executor.kind == ExecutorKind::Custom;
        // An executor that was asked to end need not come back, and has only the rest of its grace period.
        let is_to_end = executor.container.kill.is_some();
        is_custom
            && executor.container.phase == Phase::Running
            && !is_to_end
            && !executor.link.has_subscribed()
    });
    missing.collect()
}

/// Terminates the recovered executors that have not come back in time.
pub(super) fn terminate_missing(tasks: &mut Tasks, step: &mut Step<'_>) {
    let timeout = format_duration(step.options.executor_reregistration_timeout);
    for executor in missing_executors(&tasks.runs) {
        let state = tasks.runs.gone_or_lost(&executor.key);
        reconcile::terminate_executor(
            tasks,
            step,
            &executor,
            state,
            Reason::ExecutorReregistrationTimeout,
            format!("Executor did not reregister within {timeout}"),
        );
    }
}

/// The reported exit status of an executor, in the format of wait(2). The container that replaces Mesos's default
/// executor is killed once its tasks are over. Mesos's own default executor exits with 0, so the status is 0 here too.
fn exit_of(executor: &Executor, ending: &Ending) -> Option<i32> {
    let was_ended = executor.container.kill.is_some() && ending.limitation.is_none();
    match executor.kind {
        ExecutorKind::Default if was_ended => Some(0),
        _ => wait_status(&ending.exit),
    }
}

fn wait_status(exit: &Exit) -> Option<i32> {
    match exit {
        Exit::Code(code) => Some((code & 0xff) << 8),
        Exit::Signal(number) => Some(*number),
        Exit::LaunchFailed(_) | Exit::NeverBegun | Exit::Unknown(_) => None,
    }
}
