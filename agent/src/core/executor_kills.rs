//! Kills of tasks that an executor of a framework's own runs: it is told of them, and ends them itself.
//!
//! A kill is written, so that it is told again to an executor that comes back, in another life of the agent too. It is told
//! after what was written before; if the disk takes longer for that than [`RECORD_WAIT`] it is told at once, and once more
//! in its turn. Invariant: no executor is told of a kill before it was told of the task, and on a stream nothing before
//! that it is subscribed.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Now;
use tracing::warn;

use super::executors::kill_event;
use super::fields::duration;
use super::kill::RECORD_WAIT;
use super::model::{Executor, Task, TaskRef};
use super::{AgentCore, ConnectionId, Destination, ExecutorAction, Timer};
use crate::checkpoint::{KillCause, Lsn, RunKey, TaskKey};

impl AgentCore {
    /// Passes a kill on to the executor that runs the task, now or when it is back.
    pub(super) fn ask_for_kill(
        &mut self,
        now: Now,
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
            self.log_kill(now, task_ref, KillCause::Framework, grace);
            self.change_task(&task.key, |task| task.kill_asked = Some(policy));
        }
        // Frozen, it would not hear of it.
        self.thaw(&executor.key.container);
        if let Some(connection) = executor.link.connection {
            self.tell_of_kill(now, executor, connection, task, policy);
        }
    }

    /// Tells an executor that is back of all kills that were asked for meanwhile, or before.
    pub(super) fn repeat_kills(&mut self, now: Now, key: &RunKey, connection: ConnectionId) {
        let Some(executor) = self.executor_at(key) else {
            return;
        };
        for task in executor.tasks.values() {
            if let Some(policy) = task.kill_asked
                && task.delivered
                && !task.is_terminal()
            {
                self.tell_of_kill(now, &executor, connection, task, policy);
            }
        }
    }

    fn tell_of_kill(
        &mut self,
        now: Now,
        executor: &Executor,
        connection: ConnectionId,
        task: &Task,
        policy: Option<pb::KillPolicy>,
    ) {
        self.tell_executor(executor, connection, kill_event(&task.key.task, policy));
        self.set_timer(
            now.moment + self.record_wait(),
            Timer::KillUntold(task.key.clone(), self.lsn),
        );
    }

    /// A full disk keeps no task alive: its kill goes before what cannot be written.
    pub(super) fn kill_untold(&mut self, now: Now, key: &Arc<TaskKey>, lsn: Lsn) {
        if lsn <= self.durable {
            return;
        }
        let Some(TaskRef { executor, task }) = self.task_at(key) else {
            return;
        };
        let (Some(connection), Some(policy), false) = (
            executor.link.connection,
            task.kill_asked,
            task.is_terminal(),
        ) else {
            return;
        };
        if executor.link.subscribed_after.max(task.delivered_after) > self.durable {
            // It may be soon, before the kill is.
            let again = Timer::KillUntold(key.clone(), lsn);
            return self.set_timer(now.moment + RECORD_WAIT, again);
        }
        warn!(
            framework_id = %key.run.framework, executor_id = %key.run.executor, task_id = %key.task,
            "the disk takes too long; telling the executor of a kill before that is written"
        );
        self.output_now(
            Destination::Overdue(executor.key.container.clone()),
            ExecutorAction::Send {
                connection,
                event: Box::new(kill_event(&key.task, policy)),
            },
        );
    }
}
