//! Taking up again after a restart: from what was checkpointed and what the machine still holds.
//!
//! The shell reads the checkpoints and looks for each container; the core rebuilds frameworks, tasks
//! and update streams from it. Invariants: a container that lives goes on untouched; one that is gone
//! becomes exactly one terminal update, never a success that nobody saw; recovering twice gives the
//! same.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::ProcessIdentity;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{ContainerId, Now, Resources};
use tracing::{info, warn};

use super::demand::demand;
use super::model::{Executor, Framework, Kill, Phase, Task};
use super::{Action, AgentCore, Destination, State};
use crate::checkpoint::{Image, KillCause, LogEntry, RunImage, TaskImage, Write};

/// What the shell found after a start.
#[derive(Debug, Default)]
pub struct Recovery {
    /// What was checkpointed.
    pub image: Image,
    /// Whether the machine was booted since.
    pub rebooted: bool,
    /// What became of each checkpointed container.
    pub containers: BTreeMap<ContainerId, Found>,
}

/// What became of a container while nobody looked.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// It runs, and the shell watches it.
    Alive(ProcessIdentity),
    /// It ended, or what is left of it is being taken apart; `ContainerEnded` follows.
    Ending,
}

impl AgentCore {
    pub(super) fn recovered(&mut self, now: Now, recovery: Recovery) {
        self.counters.recovery_errors += recovery.image.damages.len();
        if let Some(agent) = recovery.image.agent {
            info!(agent_id = %agent.id, "recovered the agent's identity");
            self.agent_id = Some(agent.id);
        }
        if let Some(record) = recovery.image.holdings {
            self.recover_holdings(now, record);
        }
        for image in recovery.image.frameworks {
            let info = Arc::new(image.info);
            let mut framework = Framework::new(image.id.clone(), info);
            for run in image.runs {
                let found = recovery.containers.get(&run.key.container);
                let executor = self.recover_run(now, &framework, run, found);
                if let Some(executor) = executor {
                    framework
                        .executors
                        .insert(executor.key.executor.clone(), Arc::new(executor));
                }
            }
            self.frameworks
                .insert(image.id.clone(), Arc::new(framework));
        }
        self.settle_recovered(now, recovery.rebooted, &recovery.containers);
        self.state = State::Disconnected;
        self.connect_now(now);
    }

    fn recover_run(
        &mut self,
        now: Now,
        framework: &Framework,
        run: RunImage,
        found: Option<&Found>,
    ) -> Option<Executor> {
        let key = Arc::new(run.key);
        // A command task is alone in its run.
        let image = run.tasks.into_iter().next()?;
        let started = image.log.iter().rev().find_map(|entry| match entry {
            LogEntry::Started(started) => Some(started.clone()),
            _ => None,
        });
        let supervisor = match found {
            Some(Found::Alive(identity)) => Some(identity.clone()),
            _ => None,
        };
        let kill = image.log.iter().rev().find_map(|entry| match entry {
            LogEntry::KillRequested(request) => Some(remaining_kill(now, request)),
            _ => None,
        });
        let task = self.recover_task(now, framework, &key, &image)?;
        let demand = demand(
            &task.resources,
            &image.record.info.limits,
            self.options.enforceable,
        )
        .unwrap_or_default();
        self.containers.insert(
            key.container.clone(),
            (key.framework.clone(), key.executor.clone()),
        );
        let phase = if task.is_terminal() {
            Phase::Ended
        } else if started.is_some() || supervisor.is_some() || !task.statuses.is_empty() {
            Phase::Running
        } else {
            Phase::Launching
        };
        Some(Executor {
            key,
            phase,
            supervisor,
            task_pid: started
                .map(|started| started.task_pid)
                .filter(|pid| *pid > 0),
            kill,
            demand,
            task,
        })
    }

    /// Rebuilds a task and its update stream; `None` if all of it is over and acknowledged.
    fn recover_task(
        &mut self,
        now: Now,
        framework: &Framework,
        run: &Arc<crate::checkpoint::RunKey>,
        image: &TaskImage,
    ) -> Option<Task> {
        let resources = convert::resources(&image.record.info.resources).unwrap_or_else(|error| {
            warn!(task_id = %image.id, %error, "a recovered task's resources cannot be read");
            Resources::default()
        });
        let mut task = Task {
            key: Arc::new(crate::checkpoint::TaskKey {
                run: (**run).clone(),
                task: image.id.clone(),
            }),
            user: super::launch::user_of(&image.record.info, &framework.info),
            role: super::launch::role_of(&resources),
            resources,
            info: Arc::new(image.record.info.clone()),
            state: pb::TaskState::TaskStaging,
            statuses: Vec::new(),
            sent: None,
            orphaned: false,
        };
        let stream = task.stream();
        for entry in &image.log {
            match entry {
                LogEntry::Update(status) => {
                    task.record(status);
                    task.sent
                        .get_or_insert((status.state, status.uuid.clone().unwrap_or_default()));
                    self.updates.push(now.moment, &stream, status.clone());
                }
                LogEntry::Acknowledged(uuid) => {
                    self.updates.acknowledge(now.moment, &stream, uuid);
                }
                LogEntry::Started(_) | LogEntry::KillRequested(_) => {}
            }
        }
        if let Some(head) = self.updates.head(&stream) {
            task.sent = Some((head.state, head.uuid.clone().unwrap_or_default()));
        } else if let Some(last) = task.statuses.last() {
            task.sent = Some((last.state, last.uuid.clone().unwrap_or_default()));
        }
        Some(task)
    }

    /// Decides for every recovered run what its container's fate means.
    fn settle_recovered(
        &mut self,
        now: Now,
        rebooted: bool,
        containers: &BTreeMap<ContainerId, Found>,
    ) {
        let all: Vec<_> = self.all_executors().collect();
        for executor in all {
            let container = executor.key.container.clone();
            if executor.task.is_terminal() {
                self.show(
                    Destination::Container(container.clone()),
                    Action::Forget { container },
                );
                if !self.updates.has_unacknowledged(&executor.task.stream()) {
                    self.retire(&executor.key);
                }
                continue;
            }
            match containers.get(&container) {
                _ if rebooted => self.end_unseen(
                    now,
                    &executor,
                    Reason::AgentRestarted,
                    "The machine was booted anew while the task was running; how it ended is unknown",
                ),
                Some(Found::Alive(_)) => self.resume_running(now, &executor),
                // The shell takes it apart and then says how it ended.
                Some(Found::Ending) => {}
                None if executor.phase == Phase::Launching => self.end_unseen(
                    now,
                    &executor,
                    Reason::AgentRestarted,
                    "The agent was restarted before the task could be launched",
                ),
                None => self.end_unseen(
                    now,
                    &executor,
                    Reason::AgentRestarted,
                    "The task was gone when the agent came back; how it ended is unknown",
                ),
            }
        }
        let idle: Vec<_> = self
            .frameworks
            .iter()
            .filter(|(_, framework)| framework.executors.is_empty())
            .map(|(id, _)| id.clone())
            .collect();
        for id in idle {
            self.retire_framework_if_idle(&id);
        }
    }

    fn end_unseen(&mut self, now: Now, executor: &Executor, reason: Reason, message: &str) {
        self.finish_task(
            now,
            &executor.key,
            pb::TaskState::TaskFailed,
            Source::Agent,
            Some(reason),
            Some(message.to_owned()),
            None,
        );
    }

    fn resume_running(&mut self, now: Now, executor: &Executor) {
        info!(
            framework_id = %executor.key.framework,
            task_id = %executor.task.key.task,
            container_id = %executor.key.container,
            "the task goes on"
        );
        let key = executor.key.clone();
        if executor.kill.is_none() {
            // It was executed, but the agent may have fallen before it could say so.
            if executor.task.statuses.is_empty()
                && let Some(supervisor) = &executor.supervisor
            {
                let pid = executor.task_pid.unwrap_or_default();
                self.log_start(now, executor, supervisor, pid);
            }
            self.tell_running(now, &key);
        }
        if let Some(kill) = executor.kill {
            self.send_kill(now, &key, kill.grace);
        } else {
            self.arm_completion_time(now, &key);
        }
    }

    pub(super) fn all_executors(&self) -> impl Iterator<Item = Arc<Executor>> + use<> {
        let executors: Vec<_> = self
            .frameworks
            .values()
            .flat_map(|framework| framework.executors.values().cloned())
            .collect();
        executors.into_iter()
    }

    /// Writes the retirement of a run and forgets it, keeping it among the completed.
    pub(super) fn retire(&mut self, key: &Arc<crate::checkpoint::RunKey>) {
        self.persist(Write::Retire {
            key: (**key).clone(),
        });
        self.complete(key);
    }
}

/// What is left of a kill that was asked for before the restart.
fn remaining_kill(now: Now, request: &crate::checkpoint::KillRequested) -> Kill {
    let asked_at = Duration::from_nanos(request.at_unix_ns);
    let gone = now.unix.saturating_sub(asked_at);
    Kill {
        cause: KillCause::try_from(request.cause).unwrap_or(KillCause::Unknown),
        during_launch: false,
        deadline: None,
        grace: Duration::from_nanos(request.grace_ns).saturating_sub(gone),
    }
}
