//! Ending tasks on somebody's wish.
//!
//! The wish is written, and the container gets SIGTERM and after the grace SIGKILL; the
//! supervisor keeps that time, and the core sees to it that the container is taken apart should the
//! supervisor fail. A later kill may shorten the grace and never lengthens it. Invariant: a task that
//! is told killed is gone.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, FrameworkId, Now};
use tracing::{info, warn};

use super::launch::{duration, unix_ns};
use super::model::{Executor, Kill, Phase};
use super::registration::stream_key;
use super::{Action, AgentCore, Destination, ExitReason, State, Timer};
use crate::checkpoint::{KillCause, KillRequested, LogEntry, RunKey, Write};

/// Time between SIGTERM and SIGKILL when neither the kill nor the task says (Mesos's default).
const KILL_GRACE_DEFAULT: Duration = Duration::from_secs(3);
/// How long after the last signal the container is taken apart by force.
const KILL_OVERDUE: Duration = Duration::from_secs(1);

impl AgentCore {
    pub(super) fn kill_task(&mut self, now: Now, kill: &wire::KillTask) {
        let Some(stream) = stream_key(&kill.framework_id, &kill.task_id) else {
            return;
        };
        let Some(executor) = self.executor_of_task(&stream) else {
            // The master answers reconciliation for what we do not have.
            warn!(
                framework_id = %stream.framework, task_id = %stream.task,
                "ignored the kill of a task that is not here"
            );
            return;
        };
        let grace = grace_of(kill.kill_policy.as_ref())
            .or_else(|| grace_of(executor.task.info.kill_policy.as_ref()))
            .unwrap_or(KILL_GRACE_DEFAULT);
        self.kill(now, &executor, KillCause::Framework, grace);
    }

    fn kill(&mut self, now: Now, executor: &Executor, cause: KillCause, grace: Duration) {
        if executor.phase == Phase::Ended {
            return;
        }
        let key = executor.key.clone();
        if let Some(earlier) = executor.kill {
            if let Some(deadline) = earlier.deadline
                && now.moment + grace < deadline
            {
                self.log_kill(now, executor, earlier.cause, grace);
                self.send_kill(now, &key, grace);
            }
            return;
        }
        info!(
            framework_id = %key.framework, task_id = %executor.task.key.task,
            container_id = %key.container, ?cause,
            grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX), "killing a task"
        );
        self.log_kill(now, executor, cause, grace);
        let during_launch = executor.phase == Phase::Launching;
        self.change_executor(&key, |executor| {
            executor.kill = Some(Kill {
                cause,
                during_launch,
                deadline: None,
                grace,
            });
        });
        if during_launch {
            // Not launched any more if it has not begun; else killed as soon as it has.
            self.show_kill(&key.container, Duration::ZERO);
            return;
        }
        let framework = self.frameworks.get(&key.framework);
        let tell = framework.is_some_and(|framework| framework.wants_killing_state());
        if tell && cause != KillCause::CompletionTime {
            let state = pb::TaskState::TaskKilling;
            let status = self.executor_status(now, executor, state, executor.task_pid);
            self.update_task(now, &key, status);
        }
        self.send_kill(now, &key, grace);
    }

    fn log_kill(&mut self, now: Now, executor: &Executor, cause: KillCause, grace: Duration) {
        self.persist(Write::Log {
            key: executor.task.key.clone(),
            entry: Box::new(LogEntry::KillRequested(KillRequested {
                grace_ns: u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX),
                at_unix_ns: unix_ns(now),
                cause: cause.into(),
            })),
        });
    }

    /// Sends the signal to a container that runs.
    pub(super) fn send_kill(&mut self, now: Now, key: &RunKey, grace: Duration) {
        let deadline = now.moment + grace;
        self.change_executor(key, |executor| {
            if let Some(kill) = &mut executor.kill {
                kill.deadline = Some(deadline);
                kill.grace = grace;
            }
        });
        self.show_kill(&key.container, grace);
        self.set_timer(
            deadline + KILL_OVERDUE,
            Timer::KillOverdue(key.container.clone()),
        );
    }

    /// Waits for no disk: a full one must not keep a task alive. Should the agent fall before the
    /// wish is durable, the task is told failed instead of killed.
    fn show_kill(&mut self, container: &ContainerId, grace: Duration) {
        self.show_now(
            Destination::Container(container.clone()),
            Action::Kill {
                container: container.clone(),
                grace,
            },
        );
    }

    pub(super) fn kill_overdue(&mut self, container: &ContainerId) {
        let Some(executor) = self.executor_of(container) else {
            return;
        };
        if executor.phase == Phase::Running {
            warn!(container_id = %container, "a container outlived its kill; taking it apart");
            self.show(
                Destination::Container(container.clone()),
                Action::Destroy {
                    container: container.clone(),
                },
            );
        }
    }

    pub(super) fn completion_time_over(&mut self, now: Now, container: &ContainerId) {
        if let Some(executor) = self.executor_of(container) {
            self.kill(now, &executor, KillCause::CompletionTime, Duration::ZERO);
        }
    }

    pub(super) fn finish_killed_during_launch(&mut self, now: Now, executor: &Executor) {
        self.finish_task(
            now,
            &executor.key,
            pb::TaskState::TaskKilled,
            Source::Agent,
            Some(Reason::TaskKilledDuringLaunch),
            Some("Task killed during launch".to_owned()),
            None,
        );
    }

    pub(super) fn shutdown_executor(&mut self, now: Now, shutdown: &wire::ShutdownExecutor) {
        let framework = FrameworkId::new(&shutdown.framework_id.value).ok();
        let executor = framework
            .and_then(|id| self.frameworks.get(&id))
            .and_then(|framework| framework.executors.get(shutdown.executor_id.value.as_str()))
            .cloned();
        match executor {
            Some(executor) => self.shut_executor_down(now, &executor),
            None => warn!(
                framework_id = shutdown.framework_id.value,
                executor_id = shutdown.executor_id.value,
                "ignored the shutdown of an executor that is not here"
            ),
        }
    }

    fn shut_executor_down(&mut self, now: Now, executor: &Executor) {
        let grace = grace_of(executor.task.info.kill_policy.as_ref()).unwrap_or(KILL_GRACE_DEFAULT);
        self.kill(now, executor, KillCause::Shutdown, grace);
    }

    pub(super) fn shutdown_framework(&mut self, now: Now, shutdown: &wire::ShutdownFramework) {
        let Ok(id) = FrameworkId::new(&shutdown.framework_id.value) else {
            return;
        };
        let executors: Vec<Arc<Executor>> = match self.frameworks.get(&id) {
            Some(framework) => framework.executors.values().cloned().collect(),
            None => return,
        };
        info!(framework_id = %id, executors = executors.len(), "shutting a framework down");
        self.updates.remove_framework(&id);
        for executor in executors {
            if executor.is_live() {
                self.change_executor(&executor.key, |executor| executor.task.orphaned = true);
                self.shut_executor_down(now, &executor);
            } else {
                // Nobody is left to acknowledge its updates.
                self.retire(&executor.key);
            }
        }
        self.retire_framework_if_idle(&id);
    }

    pub(super) fn shut_down(&mut self, now: Now, reason: String) {
        info!(reason, "the master asked for a shutdown");
        self.kill_everything(now, KillCause::Shutdown);
        self.begin_exit(ExitReason::Shutdown(reason));
    }

    pub(super) fn stop(&mut self, now: Now, kill_tasks: bool) {
        if kill_tasks {
            self.kill_everything(now, KillCause::AgentExit);
            self.begin_exit(ExitReason::Stopped);
        } else {
            self.leave(ExitReason::Stopped);
        }
    }

    fn kill_everything(&mut self, now: Now, cause: KillCause) {
        let executors: Vec<_> = self.all_executors().collect();
        for executor in executors {
            let grace =
                grace_of(executor.task.info.kill_policy.as_ref()).unwrap_or(KILL_GRACE_DEFAULT);
            self.kill(now, &executor, cause, grace);
        }
    }

    fn begin_exit(&mut self, reason: ExitReason) {
        if self.state != State::Terminating {
            self.state = State::Terminating;
            self.exit = Some(reason);
        }
    }

    /// Once no container is left of those that were to end with the agent.
    pub(super) fn exit_if_idle(&mut self) {
        if self.exit.is_none() || self.all_executors().any(|executor| executor.is_live()) {
            return;
        }
        if let Some(reason) = self.exit.take() {
            self.show(Destination::Agent, Action::Exit(reason));
        }
    }
}

fn grace_of(policy: Option<&pb::KillPolicy>) -> Option<Duration> {
    policy?.grace_period.as_ref().map(duration)
}
