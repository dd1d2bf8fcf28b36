//! From the end of a container to the last update of its task.
//!
//! The shell says that a container ended only when its groups are verified empty and removed, so that
//! resources are free when the terminal update is seen. Invariant: success is told for an exit with
//! code 0 that somebody saw, and for nothing else.

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, Now};
use tracing::warn;

use super::model::{Executor, Phase};
use super::states::signal_name;
use super::{Action, AgentCore, Destination, Ending, Exit};
use crate::checkpoint::{KillCause, RunKey};

/// What a container's end means for its task.
#[derive(Debug, PartialEq)]
struct Verdict {
    state: pb::TaskState,
    source: Source,
    reason: Option<Reason>,
    message: String,
    limitation: Option<pb::TaskResourceLimitation>,
}

impl AgentCore {
    pub(super) fn ended(&mut self, now: Now, container: &ContainerId, ending: Ending) {
        let Some(executor) = self.executor_of(container) else {
            return;
        };
        if executor.phase == Phase::Ended {
            return;
        }
        if let Exit::Unknown(why) = &ending.exit {
            warn!(container_id = %container, why, "nobody saw how a container ended");
        }
        if executor.phase == Phase::Launching && executor.kill.is_some() {
            return self.finish_killed_during_launch(now, &executor);
        }
        if matches!(ending.exit, Exit::Code(_) | Exit::Signal(_)) && executor.kill.is_none() {
            // It ran, but the agent may have fallen before it could say so.
            self.tell_running(now, &executor.key);
        }
        let verdict = judge(&executor, ending);
        self.finish_task(
            now,
            &executor.key,
            verdict.state,
            verdict.source,
            verdict.reason,
            Some(verdict.message),
            verdict.limitation,
        );
    }

    /// Tells the end of a task whose container is gone.
    #[expect(
        clippy::too_many_arguments,
        reason = "the parts of one status, named at the call"
    )]
    pub(super) fn finish_task(
        &mut self,
        now: Now,
        key: &RunKey,
        state: pb::TaskState,
        source: Source,
        reason: Option<Reason>,
        message: Option<String>,
        limitation: Option<pb::TaskResourceLimitation>,
    ) {
        let Some(executor) = self.executor_of(&key.container) else {
            return;
        };
        self.change_executor(key, |executor| executor.phase = Phase::Ended);
        self.counters.executors_terminated += 1;
        let pid = executor.task_pid.filter(|_| source == Source::Executor);
        let mut status = self.executor_status(now, &executor, state, pid);
        status.source = Some(source.into());
        status.reason = reason.map(Into::into);
        status.message = message;
        status.limitation = limitation;
        if executor.phase == Phase::Launching {
            // There was no container to tell of.
            status.container_status = None;
        }
        self.update_task(now, key, status);
        let container = key.container.clone();
        self.show(
            Destination::Container(container.clone()),
            Action::Forget { container },
        );
        if executor.task.orphaned {
            self.updates.remove(&executor.task.stream());
            self.retire(&executor.key);
            self.retire_framework_if_idle(&key.framework);
        }
    }
}

fn judge(executor: &Executor, ending: Ending) -> Verdict {
    if let Some(limitation) = ending.limitation {
        return Verdict {
            state: pb::TaskState::TaskFailed,
            source: Source::Agent,
            reason: Some(limitation.reason),
            limitation: (!limitation.resources.is_empty()).then_some(pb::TaskResourceLimitation {
                resources: limitation.resources,
            }),
            message: limitation.message,
        };
    }
    let kill = executor.kill.map(|kill| (kill.cause, kill.during_launch));
    let message = exit_message(&ending.exit);
    let told = |state, source, reason, message| Verdict {
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
        (Some((_, true)), _) => told(
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

fn exit_message(exit: &Exit) -> String {
    match exit {
        Exit::Code(code) => format!("Command exited with status {code}"),
        Exit::Signal(number) => format!("Command terminated with signal {}", signal_name(*number)),
        Exit::LaunchFailed(cause) => format!("Command was not executed: {cause}"),
        Exit::Unknown(why) => format!("Command ended with unknown status: {why}"),
    }
}
