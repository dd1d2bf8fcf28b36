//! Draining: the agent kills its tasks and accepts no new ones, as the master requested.
//!
//! The agent kills tasks with at most the grace period that the operator allows, and shuts down executors without
//! tasks. The updates of the tasks give the drain as the reason. New tasks are refused, also after a restart. The agent
//! forgets the drain when the end of the last task is acknowledged. So does the master, which repeats the drain at
//! every registration until then: an executor that ends slowly does not prevent the reactivation of the agent.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::Now;
use tracing::info;

use super::fields::duration;
use super::kill::{KILL_GRACE_DEFAULT, grace_of};
use super::tasks::Tasks;
use super::{Step, kill, reconcile};
use crate::checkpoint::Write;

/// The drain of this agent.
#[derive(Copy, Clone, Debug)]
pub struct Draining {
    pub config: pb::DrainConfig,
    /// The start of the drain, since the Unix epoch; after a restart of the agent the time of its recovery.
    pub since: Duration,
}

impl Draining {
    fn max_grace(&self) -> Option<Duration> {
        self.config.max_grace_period.as_ref().map(duration)
    }
}

/// The drain in progress, if any.
#[derive(Debug, Default)]
pub(super) struct Drain {
    current: Option<Draining>,
}

impl Drain {
    pub(super) fn current(&self) -> Option<Draining> {
        self.current
    }

    /// Restores a drain from the checkpoints.
    pub(super) fn recover(&mut self, now: Now, config: Option<pb::DrainConfig>) {
        let since = now.unix;
        self.current = config.map(|config| Draining { config, since });
    }

    /// Begins a drain, or continues the same one.
    fn begin(&mut self, step: &mut Step<'_>, config: pb::DrainConfig) -> Draining {
        let known = self.current.filter(|known| known.config == config);
        if known.is_none() {
            persist(step, Some(config));
        }
        let since = step.now.unix;
        *self
            .current
            .insert(known.unwrap_or(Draining { config, since }))
    }

    /// Forgets the drain once no task is left.
    pub(super) fn end_if_done(&mut self, step: &mut Step<'_>, has_tasks: impl FnOnce() -> bool) {
        if self.current.is_some() && !has_tasks() {
            info!("drained");
            self.current = None;
            persist(step, None);
        }
    }

    /// The refusal of a task during a drain.
    pub(super) fn refusal(&self) -> Option<(Reason, &'static str)> {
        self.current?;
        Some((Reason::AgentDraining, "the agent is being drained"))
    }

    /// Sets the reason for the end of a task, and marks it as permanent if the agent is to be marked gone.
    pub(super) fn explain(&self, is_partition_aware: bool, status: &mut pb::TaskStatus) {
        let Some(draining) = self.current else {
            return;
        };
        let state = status.state();
        if !matches!(
            state,
            pb::TaskState::TaskKilling | pb::TaskState::TaskKilled
        ) {
            return;
        }
        status.reason = Some(Reason::AgentDraining.into());
        if draining.config.mark_gone() && is_partition_aware && state == pb::TaskState::TaskKilled {
            status.state = pb::TaskState::TaskGoneByOperator.into();
        }
    }
}

fn persist(step: &mut Step<'_>, config: Option<pb::DrainConfig>) {
    if let Some(agent) = step.agent_id().cloned() {
        step.persist(Write::Drain { agent, config });
    }
}

/// Kills all tasks, and ends the executors without tasks.
pub(super) fn drain(tasks: &mut Tasks, step: &mut Step<'_>, drain: &wire::Drain) {
    let draining = tasks.drain.begin(step, drain.config);
    let live: Vec<_> = tasks
        .runs
        .all_executors()
        .flat_map(|executor| executor.tasks.values().cloned().collect::<Vec<_>>())
        .filter(|task| !task.is_terminal())
        .collect();
    info!(config = ?draining.config, tasks = live.len(), "draining");
    for task in live {
        let own = grace_of(task.info.kill_policy.as_ref()).unwrap_or(KILL_GRACE_DEFAULT);
        let grace = draining.max_grace().map_or(own, |max| own.min(max));
        let kill = wire::KillTask {
            framework_id: (&task.key.run.framework).into(),
            task_id: (&task.key.task).into(),
            kill_policy: Some(pb::KillPolicy {
                grace_period: Some(pb::DurationInfo {
                    nanoseconds: i64::try_from(grace.as_nanos()).unwrap_or(i64::MAX),
                }),
            }),
        };
        kill::kill_task(tasks, step, &kill);
    }
    for executor in tasks.runs.all_executors() {
        reconcile::end_if_idle(tasks, step, &executor.key);
    }
}
