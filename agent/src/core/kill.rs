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
use super::{Agent, ContainerAction, Destination, Step, Timer};
use crate::checkpoint::{KillCause, KillRequested, LogEntry, Lsn, Write};

/// Time between SIGTERM and SIGKILL if neither the kill nor the task sets it (Mesos's default).
pub(super) const KILL_GRACE_DEFAULT: Duration = Duration::from_secs(3);
/// Time after SIGKILL before the container is destroyed.
const KILL_OVERDUE: Duration = Duration::from_secs(1);
impl Agent {
    pub(super) fn kill_task(&mut self, step: &mut Step<'_>, kill: &wire::KillTask) {
        let Some(stream) = stream_key(&kill.framework_id, &kill.task_id) else {
            return;
        };
        let Some(task_ref) = self.find_task(&stream) else {
            // The master answers reconciliation for unknown tasks.
            warn!(
                framework_id = %stream.framework, task_id = %stream.task,
                "ignored the kill of a task that is not here"
            );
            return;
        };
        if task_ref.executor.kind != ExecutorKind::Command && !task_ref.task.delivered {
            return self.kill_undelivered(step, &task_ref);
        }
        if task_ref.executor.kind == ExecutorKind::Custom {
            return self.ask_for_kill(step, &task_ref, kill.kill_policy);
        }
        let grace = grace_of(kill.kill_policy.as_ref())
            .or_else(|| grace_of(task_ref.task.info.kill_policy.as_ref()))
            .unwrap_or(KILL_GRACE_DEFAULT);
        self.kill(step, &task_ref, KillCause::Framework, grace);
    }

    /// Kills a task that waits for its executor, together with its whole group, before they are delivered. The
    /// executor's container already includes their resources, or is launched with them: the terminal updates follow
    /// after a resize.
    pub(super) fn kill_undelivered(&mut self, step: &mut Step<'_>, task_ref: &TaskRef) {
        let key = task_ref.executor.key.clone();
        self.end_undelivered(step, task_ref);
        self.reconcile_executor(step, &key);
        self.end_if_idle(step, &key);
    }

    pub(super) fn end_undelivered(&mut self, step: &mut Step<'_>, task_ref: &TaskRef) {
        let group = task_ref.task.group.clone();
        let waiting = task_ref.executor.undelivered();
        let together = waiting.into_iter().filter(|task| {
            task.key == task_ref.task.key || (group.is_some() && task.group == group)
        });
        for task in together {
            let task_ref = TaskRef {
                executor: task_ref.executor.clone(),
                task,
            };
            // A restarted agent must not deliver it to the executor.
            self.log_kill(step, &task_ref, KillCause::Framework, Duration::ZERO);
            self.finish_killed_during_launch(step, &task_ref);
        }
    }

    /// Ends a task whose process is the main process of a container.
    pub(super) fn kill(
        &mut self,
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
                self.log_kill(step, task_ref, earlier.cause, grace);
                self.send_kill(step, &container.id, grace);
            }
            return;
        }
        info!(
            framework_id = %task_ref.executor.key.framework, task_id = %task_ref.task.key.task,
            container_id = %container.id, ?cause,
            grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX), "killing a task"
        );
        self.log_kill(step, task_ref, cause, grace);
        let during_launch = container.phase == Phase::Launching;
        self.change_container(&container.id, |container| {
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
            self.output_kill(step, &container.id, grace);
            return;
        }
        // The task ran, but the agent may have crashed before it sent that update.
        self.tell_running(step, task_ref);
        let Some(task_ref) = &self.task_at(&task_ref.task.key) else {
            return;
        };
        let framework = self.frameworks.get(&task_ref.executor.key.framework);
        let tell = framework.is_some_and(|framework| framework.has_killing_state());
        if tell && !matches!(cause, KillCause::CompletionTime | KillCause::Preempted) {
            let state = pb::TaskState::TaskKilling;
            let status = self.executor_status(step, task_ref, state, task_ref.container().pid);
            self.update_task(step, &task_ref.task.key, status);
        }
        self.send_kill(step, &task_ref.container().id, grace);
    }

    pub(super) fn log_kill(
        &mut self,
        step: &mut Step<'_>,
        task_ref: &TaskRef,
        cause: KillCause,
        grace: Duration,
    ) {
        step.persist(Write::Log {
            key: task_ref.task.key.clone(),
            entry: Box::new(self.kill_entry(step, cause, grace)),
        });
    }

    fn kill_entry(&self, step: &Step<'_>, cause: KillCause, grace: Duration) -> LogEntry {
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
        &mut self,
        step: &mut Step<'_>,
        executor: &Executor,
        cause: KillCause,
        grace: Duration,
    ) {
        step.persist(Write::ExecutorLog {
            key: executor.key.clone(),
            entry: Box::new(self.kill_entry(step, cause, grace)),
        });
        let during_launch = executor.container.phase == Phase::Launching;
        self.change_executor(&executor.key, |executor| {
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
        &mut self,
        step: &mut Step<'_>,
        container: &ContainerId,
        grace: Duration,
    ) {
        let deadline = step.now.moment + grace;
        self.change_container(container, |container| {
            if let Some(kill) = &mut container.kill {
                kill.deadline = Some(deadline);
                kill.grace = grace;
            }
        });
        self.output_kill(step, container, grace);
        step.set_timer(
            deadline + KILL_OVERDUE,
            Timer::KillOverdue(container.clone()),
        );
    }

    fn output_kill(&mut self, step: &mut Step<'_>, container: &ContainerId, grace: Duration) {
        self.thaw(step, container);
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
        &mut self,
        step: &mut Step<'_>,
        container: &ContainerId,
        lsn: Lsn,
    ) {
        let executor = self.executor_of(container);
        let of_executor = executor.as_ref().map(|executor| &executor.container);
        let task_ref = self.task_of(container);
        let held = task_ref.as_ref().map(TaskRef::container).or(of_executor);
        let Some(kill) = held
            .and_then(|held| held.kill)
            .filter(|_| lsn > step.durable())
        else {
            return;
        };
        warn!(container_id = %container, "the disk takes too long; killing before that is written");
        let grace = kill.left(step.now.moment);
        self.thaw_overdue(step, container);
        step.output_now(
            Destination::Overdue(container.clone()),
            ContainerAction::Kill {
                container: container.clone(),
                grace,
            },
        );
    }

    pub(super) fn kill_overdue(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        let phase = match (self.task_of(container), self.executor_of(container)) {
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

    pub(super) fn completion_time_over(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        if let Some(task_ref) = self.task_of(container) {
            self.kill(step, &task_ref, KillCause::CompletionTime, Duration::ZERO);
        }
    }

    pub(super) fn finish_killed_during_launch(&mut self, step: &mut Step<'_>, task_ref: &TaskRef) {
        let TerminationReason {
            state,
            reason,
            message,
        } = self
            .preemption_of(&task_ref.executor)
            .unwrap_or(TerminationReason {
                state: pb::TaskState::TaskKilled,
                reason: Reason::TaskKilledDuringLaunch,
                message: "Task killed during launch".to_owned(),
            });
        let is_waiting =
            task_ref.executor.kind == ExecutorKind::Default && !task_ref.task.delivered;
        if task_ref.executor.kind == ExecutorKind::Custom || is_waiting {
            return self.finish_unlaunched(step, task_ref, state, reason, message);
        }
        self.finish_task(
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
        &mut self,
        step: &mut Step<'_>,
        task_ref: &TaskRef,
        state: pb::TaskState,
    ) {
        let group = task_ref.task.group.clone();
        if state == pb::TaskState::TaskFinished || group.is_none() {
            return;
        }
        let Some(executor) = self.executor_at(&task_ref.executor.key) else {
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
            self.kill(step, &other, KillCause::Group, grace);
        }
    }

    pub(super) fn shutdown_executor(
        &mut self,
        step: &mut Step<'_>,
        shutdown: &wire::ShutdownExecutor,
    ) {
        let framework = FrameworkId::new(&shutdown.framework_id.value).ok();
        let executor = framework
            .and_then(|id| self.frameworks.get(&id))
            .and_then(|framework| framework.executors.get(shutdown.executor_id.value.as_str()))
            .cloned();
        match executor {
            Some(executor) => self.shut_executor_down(step, &executor, KillCause::Shutdown),
            None => warn!(
                framework_id = shutdown.framework_id.value,
                executor_id = shutdown.executor_id.value,
                "ignored the shutdown of an executor that is not here"
            ),
        }
    }

    pub(super) fn shut_executor_down(
        &mut self,
        step: &mut Step<'_>,
        executor: &Arc<Executor>,
        cause: KillCause,
    ) {
        if executor.kind == ExecutorKind::Custom {
            return self.shut_custom_down(step, executor);
        }
        for task in executor.tasks.values() {
            let task_ref = TaskRef {
                executor: executor.clone(),
                task: task.clone(),
            };
            let waits = executor.kind == ExecutorKind::Default && !task.delivered;
            if waits && !task.is_terminal() {
                self.finish_killed_during_launch(step, &task_ref);
            } else {
                let grace = grace_of(task.info.kill_policy.as_ref());
                self.kill(step, &task_ref, cause, grace.unwrap_or(KILL_GRACE_DEFAULT));
            }
        }
        self.end_if_idle(step, &executor.key);
    }

    pub(super) fn shutdown_framework(
        &mut self,
        step: &mut Step<'_>,
        shutdown: &wire::ShutdownFramework,
    ) {
        let Ok(id) = FrameworkId::new(&shutdown.framework_id.value) else {
            return;
        };
        // Also for a framework without anything here except refused tasks.
        self.updates.remove_framework(&id);
        let executors: Vec<Arc<Executor>> = match self.frameworks.get(&id) {
            Some(framework) => framework.executors.values().cloned().collect(),
            None => return,
        };
        info!(framework_id = %id, executors = executors.len(), "shutting a framework down");
        for executor in executors {
            if executor.is_live() {
                self.change_executor(&executor.key, |executor| executor.orphaned = true);
                if let Some(executor) = self.executor_at(&executor.key) {
                    self.drop_ended_tasks(step, &executor);
                    self.shut_executor_down(step, &executor, KillCause::Shutdown);
                }
            } else {
                // Nobody is left to acknowledge the executor's updates.
                self.retire(step, &executor.key);
            }
        }
        self.retire_framework_if_idle(step, &id);
    }

    /// Drops the ended tasks: their acknowledgements will not come.
    fn drop_ended_tasks(&mut self, step: &mut Step<'_>, executor: &Arc<Executor>) {
        for task in executor.tasks.values().filter(|task| task.is_terminal()) {
            self.task_over(
                step,
                &TaskRef {
                    executor: executor.clone(),
                    task: task.clone(),
                },
            );
        }
    }

    /// Ends all executors.
    pub(super) fn kill_everything(&mut self, step: &mut Step<'_>, cause: KillCause) {
        let executors: Vec<_> = self.all_executors().collect();
        for executor in executors {
            self.shut_executor_down(step, &executor, cause);
        }
    }
}

/// The grace period of a task, or the default.
pub(super) fn grace_of_task(task_ref: &TaskRef) -> Duration {
    grace_of(task_ref.task.info.kill_policy.as_ref()).unwrap_or(KILL_GRACE_DEFAULT)
}

pub(super) fn grace_of(policy: Option<&pb::KillPolicy>) -> Option<Duration> {
    policy?.grace_period.as_ref().map(duration)
}
