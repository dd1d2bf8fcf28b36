//! Kills of tasks that run in a framework's own executor: the agent sends the kill to the executor, which ends the
//! task.
//!
//! A kill is written, so that the agent can send it again to a returning executor, also after a restart. It is sent
//! after the earlier writes are durable. If the disk takes longer for that than [`RECORD_WAIT`], the kill is sent at
//! once, and again in its turn. Invariant: no executor gets a kill before its task, and no stream gets anything before
//! the subscription.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use tracing::warn;

use super::disk::RECORD_WAIT;
use super::executors::kill_event;
use super::fields::duration;
use super::model::{Executor, Task, TaskRef};
use super::tasks::Tasks;
use super::{ConnectionId, Destination, ExecutorAction, Step, Timer, corrections, executors, kill};
use crate::checkpoint::{KillCause, Lsn, RunKey, TaskKey};

/// Passes a kill on to the executor that runs the task, now or after its return.
pub(super) fn ask_for_kill(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    task_ref: &TaskRef,
    policy: Option<pb::KillPolicy>,
) {
    let TaskRef { executor, task } = task_ref;
    if task.is_terminal() {
        return;
    }
    if task.kill_asked != Some(policy) {
        let grace = policy.and_then(|policy| policy.grace_period);
        let grace = grace.map_or(Duration::ZERO, |grace| duration(&grace));
        kill::log_kill(step, task_ref, KillCause::Framework, grace);
        tasks
            .runs
            .change_task(&task.key, |task| task.kill_asked = Some(policy));
    }
    // A frozen executor would not receive it.
    corrections::thaw(tasks, step, &executor.key.container);
    if let Some(connection) = executor.link.connection() {
        tell_of_kill(step, executor, connection, task, policy);
    }
}

/// Sends a returning executor all kills requested meanwhile or earlier.
pub(super) fn repeat_kills(
    tasks: &mut Tasks,
    step: &mut Step<'_>,
    key: &RunKey,
    connection: ConnectionId,
) {
    let Some(executor) = tasks.runs.executor_at(key) else {
        return;
    };
    for task in executor.tasks.values() {
        if let Some(policy) = task.kill_asked
            && task.delivered
            && !task.is_terminal()
        {
            tell_of_kill(step, &executor, connection, task, policy);
        }
    }
}

fn tell_of_kill(
    step: &mut Step<'_>,
    executor: &Executor,
    connection: ConnectionId,
    task: &Task,
    policy: Option<pb::KillPolicy>,
) {
    executors::tell_executor(
        step,
        executor,
        connection,
        kill_event(&task.key.task, policy),
    );
    step.set_timer(
        step.now.moment + step.disk().record_wait(),
        Timer::KillUntold(task.key.clone(), step.lsn()),
    );
}

/// Sends a kill whose record is late: a full disk does not keep a task alive, so the kill precedes the pending
/// writes.
pub(super) fn kill_untold(tasks: &mut Tasks, step: &mut Step<'_>, key: &Arc<TaskKey>, lsn: Lsn) {
    if lsn <= step.durable() {
        return;
    }
    let Some(TaskRef { executor, task }) = tasks.runs.task_at(key) else {
        return;
    };
    let (Some(connection), Some(policy), false) = (
        executor.link.connection(),
        task.kill_asked,
        task.is_terminal(),
    ) else {
        return;
    };
    if executor.link.subscribed_after().max(task.delivered_after) > step.durable() {
        // The earlier writes may become durable soon, before the kill's.
        let again = Timer::KillUntold(key.clone(), lsn);
        return step.set_timer(step.now.moment + RECORD_WAIT, again);
    }
    warn!(
        framework_id = %key.run.framework, executor_id = %key.run.executor, task_id = %key.task,
        "the disk takes too long; telling the executor of a kill before that is written"
    );
    step.output_now(
        Destination::Overdue(executor.key.container.clone()),
        ExecutorAction::Send {
            connection,
            event: Box::new(kill_event(&key.task, policy)),
        },
    );
}
