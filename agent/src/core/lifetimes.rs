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

use super::ending::{exit_message, has_ended_itself, limited};
use super::executors::plain;
use super::fields::duration;
use super::model::{Executor, ExecutorKind, Phase, TaskRef};
use super::{Agent, Ending, Exit, Step, Timer};
use crate::checkpoint::{KillCause, RunKey};

impl Agent {
    pub(super) fn await_registration(&mut self, step: &mut Step<'_>, key: &RunKey) {
        step.set_timer(
            step.now.moment + step.options.executor_registration_timeout,
            Timer::ExecutorRegistration(key.container.clone()),
        );
    }

    pub(super) fn registration_timed_out(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        let Some(executor) = self.executor_of(container) else {
            return;
        };
        if executor.link.has_subscribed || !executor.is_live() {
            return;
        }
        step.counters.container_launch_errors += 1;
        let timeout = format_duration(step.options.executor_registration_timeout);
        self.terminate_executor(
            step,
            &executor,
            pb::TaskState::TaskFailed,
            Reason::ExecutorRegistrationTimeout,
            format!("Executor did not register within {timeout}"),
        );
    }

    /// Asks an executor to end, and ends it after its grace period.
    pub(super) fn shut_custom_down(&mut self, step: &mut Step<'_>, executor: &Executor) {
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
        self.mark_ending(step, executor, KillCause::Shutdown, grace);
        if executor.container.phase == Phase::Launching {
            return self.send_kill(step, &executor.container.id, Duration::ZERO);
        }
        // The executor needs its grace period for its shutdown, and frozen it would not receive the event.
        self.thaw(step, &executor.key.container);
        if let Some(connection) = executor.link.connection {
            self.tell_executor(step, executor, connection, plain(event::Type::Shutdown));
        }
        step.set_timer(
            step.now.moment + grace,
            Timer::ExecutorShutdown(executor.key.container.clone()),
        );
    }

    pub(super) fn shutdown_overdue(&mut self, step: &mut Step<'_>, container: &ContainerId) {
        let Some(executor) = self.executor_of(container) else {
            return;
        };
        if executor.is_live() {
            warn!(executor_id = %executor.key.executor, "an executor outlived its shutdown");
            self.send_kill(step, container, Duration::ZERO);
        }
    }

    pub(super) fn executor_not_launched(
        &mut self,
        step: &mut Step<'_>,
        executor: &Executor,
        message: String,
    ) {
        if executor.container.kill.is_none() {
            step.counters.container_launch_errors += 1;
            self.change_executor(&executor.key, |executor| {
                executor
                    .link
                    .termination_reason
                    .get_or_insert(super::TerminationReason {
                        state: pb::TaskState::TaskFailed,
                        reason: Reason::ContainerLaunchFailed,
                        message: message.clone(),
                    });
            });
        }
        let Some(executor) = self.executor_at(&executor.key) else {
            return;
        };
        let ending = Ending {
            exit: Exit::LaunchFailed(message),
            limitation: None,
            kill_requested: None,
        };
        self.executor_ended(step, &executor, ending);
    }

    /// Handles the end of an executor's own container, with everything in it.
    pub(super) fn executor_ended(
        &mut self,
        step: &mut Step<'_>,
        executor: &Arc<Executor>,
        ending: Ending,
    ) {
        if executor.container.phase == Phase::Ended {
            return;
        }
        let key = executor.key.clone();
        self.change_executor(&key, |executor| {
            executor.container.phase = Phase::Ended;
            executor.link.connection = None;
        });
        step.counters.executors_terminated += 1;
        info!(executor_id = %key.executor, container_id = %key.container, ?ending, "executor ended");
        // Updates that it sent before come first.
        self.reconcile_executor(step, &key);
        self.end_tasks_of(step, &key, &ending);
        if !executor.orphaned {
            let framework = pb::FrameworkId {
                value: key.framework.to_string(),
            };
            self.tell_exited(step, framework, &key.executor, exit_of(executor, &ending));
        }
        self.forget(step, &key.container);
        self.retire_if_over(step, &key);
        // The executor may be the last one that the registration waits for.
        self.registered_if_all_back(step);
    }

    /// Reports the exit of an executor that was to be launched for refused tasks: the master has recorded it as
    /// launched.
    pub(super) fn tell_not_launched(
        &mut self,
        step: &mut Step<'_>,
        framework: &pb::FrameworkInfo,
        executor: Option<&pb::ExecutorInfo>,
        was_to_be_launched: bool,
    ) {
        let ids = framework.id.clone().zip(executor);
        let Some((framework, executor)) = ids.filter(|_| was_to_be_launched) else {
            return;
        };
        let Ok(id) = ExecutorId::new(&executor.executor_id.value) else {
            return;
        };
        // An ended executor may still have unacknowledged updates.
        let mut executors = self.all_executors().filter(|one| one.is_live());
        let is_here = executors
            .any(|one| one.key.executor == id && one.key.framework.as_str() == framework.value);
        if !is_here {
            self.tell_exited(step, framework, &id, None);
        }
    }

    pub(super) fn tell_exited(
        &mut self,
        step: &mut Step<'_>,
        framework_id: pb::FrameworkId,
        executor: &ExecutorId,
        status: Option<i32>,
    ) {
        let is_running = self.lifecycle.is_running();
        self.registration.report_exit(
            step,
            is_running,
            wire::ExecutorExited {
                framework_id,
                executor_id: pb::ExecutorId {
                    value: executor.to_string(),
                },
                status,
            },
        );
    }

    fn end_tasks_of(&mut self, step: &mut Step<'_>, key: &RunKey, ending: &Ending) {
        let Some(executor) = self.executor_at(key) else {
            return;
        };
        let termination_reason = executor.link.termination_reason.clone();
        let termination_reason = termination_reason.or_else(|| self.preemption_of(&executor));
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
                self.change_container(&id, |nested| nested.phase = Phase::Ended);
                self.forget(step, &id);
            }
            let mut status = self.executor_status(step, &task_ref, state, None);
            status.source = Some(Source::Agent.into());
            status.reason = Some(reason.into());
            status.message = Some(message.clone());
            status.limitation = ending.limitation.as_ref().and_then(limited);
            self.update_task(step, &task.key, status);
        }
    }

    /// Waits for the recovered executors after a restart, or registers at once if there are none.
    pub(super) fn await_executors(&mut self, step: &mut Step<'_>) {
        self.awaits_executors = true;
        let at = step.now.moment + step.options.executor_reregistration_timeout;
        step.set_timer(at, Timer::ExecutorsBack);
        self.registered_if_all_back(step);
    }

    fn missing(&self) -> Vec<Arc<Executor>> {
        let missing = self.all_executors().filter(|executor| {
            let is_custom = executor.kind == ExecutorKind::Custom;
            // An executor that was asked to end need not come back, and has only the rest of its grace period.
            let is_to_end = executor.container.kill.is_some();
            is_custom
                && executor.container.phase == Phase::Running
                && !is_to_end
                && !executor.link.has_subscribed
        });
        missing.collect()
    }

    pub(super) fn registered_if_all_back(&mut self, step: &mut Step<'_>) {
        if self.awaits_executors && self.missing().is_empty() {
            self.awaits_executors = false;
            self.connect_now(step);
        }
    }

    pub(super) fn executors_overdue(&mut self, step: &mut Step<'_>) {
        if !self.awaits_executors {
            return;
        }
        let timeout = format_duration(step.options.executor_reregistration_timeout);
        for executor in self.missing() {
            let state = self.gone_or_lost(&executor.key);
            self.terminate_executor(
                step,
                &executor,
                state,
                Reason::ExecutorReregistrationTimeout,
                format!("Executor did not reregister within {timeout}"),
            );
        }
        self.awaits_executors = false;
        self.connect_now(step);
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
