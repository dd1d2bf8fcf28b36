//! Handles the end of a container, up to the last update of its task.
//!
//! The containerizer reports the end of a container only after its groups are verified empty and removed, so that the
//! resources are free when the terminal update arrives. Invariant: a task finishes only with an observed exit code 0.

use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::ContainerId;
use tracing::warn;

use super::consequence::Consequence;
use super::model::{Kill, Phase, TaskRef};
use super::states::signal_name;
use super::tasks::Tasks;
use super::{
    ContainerAction, Destination, Ending, Exit, Step, corrections, kill, launch, lifetimes,
    reconcile, status_updates,
};
use crate::checkpoint::{KillCause, Limitation};

pub(super) const NOT_LAUNCHED: &str = "The agent was restarted before the task could be launched";

/// The outcome of a container's end for its task.
#[derive(Debug, PartialEq)]
struct TaskOutcome {
    state: pb::TaskState,
    source: Source,
    reason: Option<Reason>,
    message: String,
    limitation: Option<pb::TaskResourceLimitation>,
}

/// Handles the end of a container.
#[must_use]
pub(super) fn ended(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    container: &ContainerId,
    ending: Ending,
) -> Option<Consequence> {
    let executor = tasks.runs.executor_of(container)?;
    let task_ref = tasks.runs.task_of(container);
    let of_task = task_ref.as_ref().map(TaskRef::container);
    let ending = unless_begun(of_task.unwrap_or(&executor.container).phase, ending);
    if let Exit::Unknown(why) = &ending.exit {
        warn!(container_id = %container, why, "a container's exit status is unknown");
    }
    let Some(task_ref) = task_ref else {
        return lifetimes::end_executor(tasks, step, &executor, &ending);
    };
    if task_ref.container().phase == Phase::Ended {
        return None;
    }
    let kill = effective_kill(task_ref.container().kill, &ending);
    let has_run = matches!(ending.exit, Exit::Code(_) | Exit::Signal(_));
    let ended_itself = matches!(ending.exit, Exit::Code(_));
    if task_ref.container().phase == Phase::Launching && kill.is_some() && !ended_itself {
        kill::finish_killed_during_launch(tasks, step, &task_ref);
        return None;
    }
    if has_run && kill.is_none() {
        // The container ran, but the agent may have crashed before it sent that update.
        launch::tell_running(tasks, step, &task_ref);
    }
    let preempted = corrections::preemption_of(tasks, &task_ref.executor);
    let preempted = preempted.filter(|_| !has_ended_itself(&ending));
    let mut outcome = task_outcome(kill, ending);
    if let Some(preempted) = preempted.filter(|_| outcome.limitation.is_none()) {
        outcome = TaskOutcome {
            state: preempted.state,
            source: Source::Agent,
            reason: Some(preempted.reason),
            message: preempted.message,
            limitation: None,
        };
    }
    finish_task(
        tasks,
        step,
        &task_ref,
        outcome.state,
        outcome.source,
        outcome.reason,
        Some(outcome.message),
        outcome.limitation,
    );
    None
}

/// Sends the terminal update of a task whose container is gone.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of one status, named at the call"
)]
pub(super) fn finish_task(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    state: pb::TaskState,
    source: Source,
    reason: Option<Reason>,
    message: Option<String>,
    limitation: Option<pb::TaskResourceLimitation>,
) {
    let container = task_ref.container().id.clone();
    let phase = task_ref.container().phase;
    tasks
        .runs
        .change_container(&container, |container| container.phase = Phase::Ended);
    step.remove_timers_of(&container);
    let pid = task_ref
        .container()
        .pid
        .filter(|_| source == Source::Executor);
    let mut status = launch::executor_status(step, task_ref, state, pid);
    status.source = Some(source.into());
    status.reason = reason.map(Into::into);
    status.message = message;
    status.limitation = limitation;
    if phase == Phase::Launching {
        // There was no container to report.
        status.container_status = None;
    }
    if task_ref.task.nested.is_some() {
        reconcile::send_after_resize(tasks, step, task_ref, status, Default::default());
        return kill::end_group_of(tasks, step, task_ref, state);
    }
    step.counters.executors_terminated += 1;
    status_updates::update_task(tasks, step, &task_ref.task.key, status);
    forget(tasks, step, &container);
}

/// Forgets a container whose end is written, so that the machine's records of it may be removed.
pub(super) fn forget(tasks: &mut Tasks, step: &mut Step<'_>, container: &ContainerId) {
    tasks.corrections.forget(container);
    step.remove_timers_of(container);
    let container = container.clone();
    step.output(
        Destination::Container(container.clone()),
        ContainerAction::Forget { container },
    );
}

/// Corrects the exit of a container that is known to have run: a missing note of its supervisor then means that the
/// note was lost.
fn unless_begun(phase: Phase, mut ending: Ending) -> Ending {
    if ending.exit == Exit::NeverBegun && phase != Phase::Launching {
        ending.exit = Exit::Unknown("the record of who kept it is lost".to_owned());
    }
    ending
}

/// Whether a command exited before any request to kill it reached its supervisor.
pub(super) fn has_ended_itself(ending: &Ending) -> bool {
    ending.kill_requested == Some(false) && matches!(ending.exit, Exit::Code(_))
}

/// The kill that decides the reported state. The supervisor's record counts: a kill that reached the supervisor counts
/// even if the agent lost its own record. A command that exited before any kill reached its supervisor ended by itself.
fn effective_kill(asked: Option<Kill>, ending: &Ending) -> Option<Kill> {
    match (asked, ending.kill_requested, &ending.exit) {
        (None, Some(true), _) => Some(Kill {
            cause: KillCause::Unknown,
            during_launch: false,
            deadline: None,
            grace: Duration::ZERO,
        }),
        (_, Some(false), Exit::Code(_)) => None,
        (asked, _, _) => asked,
    }
}

fn task_outcome(kill: Option<Kill>, ending: Ending) -> TaskOutcome {
    if let Some(limitation) = ending.limitation {
        return TaskOutcome {
            state: pb::TaskState::TaskFailed,
            source: Source::Agent,
            reason: Some(limitation.reason),
            limitation: limited(&limitation),
            message: limitation.message,
        };
    }
    let kill = kill.map(|kill| (kill.cause, kill.during_launch));
    let message = exit_message(&ending.exit);
    let told = |state, source, reason, message| TaskOutcome {
        state,
        source,
        reason,
        message,
        limitation: None,
    };
    match (kill, &ending.exit) {
        (Some((KillCause::CompletionTime, _)), _) => told(
            pb::TaskState::TaskFailed,
            Source::Executor,
            Some(Reason::MaxCompletionTimeReached),
            format!("{message}: it had reached its maximum completion time"),
        ),
        (Some((_, true)), exit) if !matches!(exit, Exit::Code(_)) => told(
            pb::TaskState::TaskKilled,
            Source::Agent,
            Some(Reason::TaskKilledDuringLaunch),
            "Task killed during launch".to_owned(),
        ),
        (Some(_), _) => told(pb::TaskState::TaskKilled, Source::Executor, None, message),
        (None, Exit::Code(0)) => told(pb::TaskState::TaskFinished, Source::Executor, None, message),
        (None, Exit::LaunchFailed(cause)) => told(
            pb::TaskState::TaskFailed,
            Source::Agent,
            Some(Reason::ContainerLaunchFailed),
            format!("Failed to launch container: {cause}"),
        ),
        (None, Exit::NeverBegun) => told(
            pb::TaskState::TaskFailed,
            Source::Agent,
            Some(Reason::AgentRestarted),
            message,
        ),
        (None, Exit::Unknown(_)) => told(
            pb::TaskState::TaskFailed,
            Source::Agent,
            Some(Reason::ExecutorTerminated),
            message,
        ),
        (None, Exit::Code(_) | Exit::Signal(_)) => {
            told(pb::TaskState::TaskFailed, Source::Executor, None, message)
        }
    }
}

pub(super) fn exit_message(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("Command exited with status {code}"),
        Exit::Signal(number) => format!("Command terminated with signal {}", signal_name(*number)),
        Exit::LaunchFailed(cause) => format!("Command was not executed: {cause}"),
        Exit::NeverBegun => NOT_LAUNCHED.to_owned(),
        Exit::Unknown(why) => format!("Command ended with unknown status: {why}"),
    }
}

/// The usage beyond a limit, if it is known.
pub(super) fn limited(limitation: &Limitation) -> Option<pb::TaskResourceLimitation> {
    (!limitation.resources.is_empty()).then(|| pb::TaskResourceLimitation {
        resources: limitation.resources.clone(),
    })
}
