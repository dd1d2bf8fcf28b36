//! Draining: the agent kills its tasks and accepts no new ones, as the master requested.
//!
//! Tasks are killed, with no more grace than the operator allows, and executors that have no more tasks are shut down;
//! what is told of the tasks' ends says why, and what comes meanwhile is refused, by later lives of the agent too. The
//! agent forgets it when the end of the last task is acknowledged, as the master does, which says it again at every
//! registration until then: an executor that takes its time to end keeps nobody from reactivating the agent.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{FrameworkId, Now};
use tracing::info;

use super::AgentCore;
use super::fields::duration;
use super::kill::{KILL_GRACE_DEFAULT, grace_of};
use super::model::Executor;
use super::states::has_capability;
use crate::checkpoint::Write;

/// How this agent is drained.
#[derive(Copy, Clone, Debug)]
pub struct Draining {
    pub config: pb::DrainConfig,
    /// When that began, since the Unix epoch; after a restart of the agent that of its recovery.
    pub since: Duration,
}

impl Draining {
    fn max_grace(&self) -> Option<Duration> {
        self.config.max_grace_period.as_ref().map(duration)
    }
}

impl AgentCore {
    pub(super) fn drain(&mut self, now: Now, drain: &wire::Drain) {
        let config = drain.config;
        let known = self.draining.filter(|known| known.config == config);
        if known.is_none() {
            self.persist_drain(Some(config));
        }
        let since = now.unix;
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
            self.kill_task(now, &kill);
        }
        let executors: Vec<_> = self.all_executors().map(|one| one.key.clone()).collect();
        for key in executors {
            self.end_if_idle(now, &key);
        }
    }

    /// Forgets that it was drained once no task is left.
    pub(super) fn end_draining(&mut self) {
        let has_tasks = |executor: Arc<Executor>| !executor.tasks.is_empty();
        if self.draining.is_some() && !self.all_executors().any(has_tasks) {
            info!("drained");
            self.draining = None;
            self.persist_drain(None);
        }
    }

    fn persist_drain(&mut self, config: Option<pb::DrainConfig>) {
        if let Some(agent) = self.agent_id.clone() {
            self.persist(Write::Drain { agent, config });
        }
    }

    /// What is told of a task that came too late.
    pub(super) fn drain_refusal(&self) -> Option<(Reason, &'static str)> {
        self.draining?;
        Some((Reason::AgentDraining, "the agent is being drained"))
    }

    /// Says why a task ends, and that it ends for good if its agent does.
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
