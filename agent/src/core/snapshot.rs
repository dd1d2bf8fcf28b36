//! Snapshots of the core for readers: cheap copies of one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::{AgentId, ContainerId, FrameworkId, Resources, Role};

use super::{Draining, Framework, Oversubscription, State};
use crate::checkpoint::DiskCondition;

/// Counters of events since the agent's start.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Tasks that ended in each terminal state.
    pub tasks_finished: u64,
    /// See the description of [`Counters::tasks_finished`].
    pub tasks_failed: u64,
    /// See the description of [`Counters::tasks_finished`].
    pub tasks_killed: u64,
    /// Tasks that became LOST or DROPPED.
    pub tasks_lost: u64,
    pub tasks_gone: u64,
    /// Containers that could not be launched.
    pub container_launch_errors: u64,
    /// Executors that were evicted in favour of regular work.
    pub executors_preempted: u64,
    /// The number of executors that ended.
    pub executors_terminated: u64,
    /// The number of status updates that were accepted.
    pub valid_status_updates: u64,
    /// The number of status updates that were dropped.
    pub invalid_status_updates: u64,
    /// Messages between schedulers and executors that were passed on.
    pub valid_framework_messages: u64,
    /// Messages between schedulers and executors without a recipient.
    pub invalid_framework_messages: u64,
    /// Damaged checkpoints found at the start.
    pub recovery_errors: usize,
    /// Tasks that ended at a memory limit, by the role of their executor; tasks of roles beyond the limit count without
    /// a role.
    pub tasks_out_of_memory: Arc<BTreeMap<Option<Role>, u64>>,
}

/// Roles with their own counter of tasks out of memory: each is a series for as long as the agent runs.
const OUT_OF_MEMORY_ROLES_MAX: usize = 1_000;

impl Counters {
    /// Counts a task of this role that has ended at a memory limit.
    pub(super) fn count_out_of_memory(&mut self, role: Option<Role>) {
        let counts = Arc::make_mut(&mut self.tasks_out_of_memory);
        let is_full = counts.len() >= OUT_OF_MEMORY_ROLES_MAX;
        let role = role.filter(|role| !is_full || counts.contains_key(&Some(role.clone())));
        *counts.entry(role).or_default() += 1;
    }

    pub(super) fn count_terminal(&mut self, state: i32) {
        use pb::TaskState::{
            TaskDropped, TaskError, TaskFailed, TaskFinished, TaskGone, TaskGoneByOperator,
            TaskKilled, TaskLost,
        };
        let Ok(state) = pb::TaskState::try_from(state) else {
            return;
        };
        match state {
            TaskFinished => self.tasks_finished += 1,
            TaskFailed | TaskError => self.tasks_failed += 1,
            TaskKilled => self.tasks_killed += 1,
            TaskLost | TaskDropped => self.tasks_lost += 1,
            TaskGone | TaskGoneByOperator => self.tasks_gone += 1,
            _ => {}
        }
    }
}

/// The state of the core at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The number of the step; snapshots with the same number are equal.
    pub sequence: u64,
    /// The phase of the agent's life.
    pub state: State,
    /// The agent's id, once it has one.
    pub agent_id: Option<AgentId>,
    /// The agent's description for the master, without the id.
    pub info: pb::AgentInfo,
    /// The capabilities that the agent announces.
    pub capabilities: Vec<pb::agent_info::capability::Type>,
    pub resources: Resources,
    /// Operations with an unacknowledged result.
    pub operations: Vec<Arc<pb::Operation>>,
    /// The master of the current or the last registration.
    pub master: Option<Arc<pb::MasterInfo>>,
    /// The epoch of the last obeyed frame; absent before the first.
    pub master_epoch: Option<u64>,
    /// Frameworks with work here.
    pub frameworks: BTreeMap<FrameworkId, Arc<Framework>>,
    /// Completed frameworks, oldest first.
    pub completed_frameworks: Vec<Arc<Framework>>,
    pub counters: Counters,
    /// Set while the agent is draining.
    pub draining: Option<Draining>,
    /// Whether checkpoints can be written.
    pub disk: DiskCondition,
    /// The oversubscribed resources, and the treatment of revocable tasks.
    pub oversubscription: Oversubscription,
    /// The containers that are frozen.
    pub frozen: BTreeSet<ContainerId>,
}

impl Snapshot {
    /// All executors that are not completed.
    pub fn executors(&self) -> impl Iterator<Item = &Arc<super::Executor>> + Clone {
        let frameworks = self.frameworks.values();
        frameworks.flat_map(|framework| framework.executors.values())
    }

    /// All tasks of these executors.
    pub fn tasks(&self) -> impl Iterator<Item = &Arc<super::Task>> {
        self.executors()
            .flat_map(|executor| executor.tasks.values())
    }

    /// The executor of a container, and the container's task.
    pub fn container(
        &self,
        id: &ContainerId,
    ) -> Option<(&Arc<super::Executor>, Option<&Arc<super::Task>>)> {
        for executor in self.executors().filter(|executor| executor.is_live()) {
            if executor.container.id == *id {
                return Some((executor, executor.command_task()));
            }
            let mut tasks = executor.tasks.values();
            let task = tasks.find(|task| task.nested.as_ref().is_some_and(|one| one.id == *id));
            if task.is_some() {
                return Some((executor, task));
            }
        }
        None
    }

    /// The resources allocated to the live executors.
    pub fn allocated(&self) -> Resources {
        let mut sum = Resources::default();
        for executor in self.executors() {
            for resource in executor.allocated().iter() {
                sum.insert(resource.clone());
            }
        }
        sum
    }
}
