//! Draining: the agent kills its tasks and accepts no new ones, as the master requested.
//!
//! The agent kills tasks with at most the grace period that the operator allows, and shuts down executors without
//! tasks. The updates of the tasks give the drain as the reason. New tasks are refused, also after a restart. The agent
//! forgets the drain when the end of the last task is acknowledged. So does the master, which repeats the drain at
//! every registration until then: an executor that ends slowly does not prevent the reactivation of the agent.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::FrameworkId;
use tracing::info;

use super::fields::duration;
use super::kill::{KILL_GRACE_DEFAULT, grace_of};
use super::model::Executor;
use super::states::has_capability;
use super::{Agent, Step};
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

impl Agent {
    pub(super) fn drain(&mut self, step: &mut Step<'_>, drain: &wire::Drain) {
        let config = drain.config;
        let known = self.draining.filter(|known| known.config == config);
        if known.is_none() {
            self.persist_drain(step, Some(config));
        }
        let since = step.now.unix;
        let draining = known.unwrap_or(Draining { config, since });
        let live: Vec<_> = self
            .all_executors()
            .flat_map(|executor| executor.tasks.values().cloned().collect::<Vec<_>>())
            .filter(|task| !task.is_terminal())
            .collect();
        info!(config = ?draining.config, tasks = live.len(), "draining");
        self.draining = Some(draining);
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
            self.kill_task(step, &kill);
        }
        let executors: Vec<_> = self.all_executors().map(|one| one.key.clone()).collect();
        for key in executors {
            self.end_if_idle(step, &key);
        }
    }

    /// Forgets the drain once no task is left.
    pub(super) fn end_draining(&mut self, step: &mut Step<'_>) {
        let has_tasks = |executor: Arc<Executor>| !executor.tasks.is_empty();
        if self.draining.is_some() && !self.all_executors().any(has_tasks) {
            info!("drained");
            self.draining = None;
            self.persist_drain(step, None);
        }
    }

    fn persist_drain(&mut self, step: &mut Step<'_>, config: Option<pb::DrainConfig>) {
        if let Some(agent) = step.agent_id().cloned() {
            step.persist(Write::Drain { agent, config });
        }
    }

    /// The refusal of a task during a drain.
    pub(super) fn drain_refusal(&self) -> Option<(Reason, &'static str)> {
        self.draining?;
        Some((Reason::AgentDraining, "the agent is being drained"))
    }

    /// Sets the reason for the end of a task, and marks it as permanent if the agent is to be marked gone.
    pub(super) fn explain_draining(&self, framework: &FrameworkId, status: &mut pb::TaskStatus) {
        let Some(draining) = self.draining else {
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
        let framework = self.frameworks.get(framework);
        let is_aware =
            framework.is_some_and(|f| has_capability(&f.info, FrameworkCapability::PartitionAware));
        if draining.config.mark_gone() && is_aware && state == pb::TaskState::TaskKilled {
            status.state = pb::TaskState::TaskGoneByOperator.into();
        }
    }
}
