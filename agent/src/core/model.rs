//! What the core knows of frameworks, executors and tasks.
//!
//! Shared by `Arc` with snapshots; the core changes them copy-on-write, so that a reader never holds
//! the core up.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{Demand, ProcessIdentity};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_resources::{ExecutorId, FrameworkId, Moment, Resources, Role};

use super::states::{has_capability, is_terminal};
use super::updates::StreamKey;
use crate::checkpoint::{KillCause, RunKey, TaskKey};

/// A framework with work here, or with updates to be acknowledged.
#[derive(Clone, Debug)]
pub struct Framework {
    /// Its id.
    pub id: FrameworkId,
    /// The newest the master told.
    pub info: Arc<pb::FrameworkInfo>,
    /// Its executors that are not over.
    pub executors: BTreeMap<ExecutorId, Arc<Executor>>,
    /// Those that are, oldest first.
    pub completed: VecDeque<Arc<Executor>>,
}

impl Framework {
    /// Without executors.
    pub fn new(id: FrameworkId, info: Arc<pb::FrameworkInfo>) -> Self {
        Self {
            id,
            info,
            executors: BTreeMap::new(),
            completed: VecDeque::new(),
        }
    }

    /// Whether it wants DROPPED, GONE and UNREACHABLE told apart from LOST.
    pub fn is_partition_aware(&self) -> bool {
        has_capability(&self.info, FrameworkCapability::PartitionAware)
    }

    /// Whether it wants to be told of TASK_KILLING.
    pub fn wants_killing_state(&self) -> bool {
        has_capability(&self.info, FrameworkCapability::TaskKillingState)
    }
}

/// How far a container is.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Phase {
    /// It is to be launched, or is being launched.
    Launching,
    /// Its task was executed.
    Running,
    /// It is gone; the terminal update may still be unacknowledged.
    Ended,
}

/// A wish that a container end.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Kill {
    /// Why.
    pub cause: KillCause,
    /// Whether it had not been started when this came.
    pub during_launch: bool,
    /// When the last signal is due; `None` until the first one could be sent.
    pub deadline: Option<Moment>,
    /// Time between the two.
    pub grace: Duration,
}

/// One executor's run. For a command task it is the core itself that speaks for it.
#[derive(Clone, Debug)]
pub struct Executor {
    /// Which.
    pub key: Arc<RunKey>,
    /// How far its container is.
    pub phase: Phase,
    /// Who keeps its container.
    pub supervisor: Option<ProcessIdentity>,
    /// The main process.
    pub task_pid: Option<i32>,
    /// Whether it is to end.
    pub kill: Option<Kill>,
    /// Requests and limits of its container.
    pub demand: Demand,
    /// Its task.
    pub task: Task,
}

impl Executor {
    /// What Mesos calls an executor that is made up for a command task.
    pub fn name(&self) -> String {
        command_executor_name(&self.task.info)
    }

    /// Whether it holds resources.
    pub fn is_live(&self) -> bool {
        self.phase != Phase::Ended
    }
}

/// One task.
#[derive(Clone, Debug)]
pub struct Task {
    /// Its place in the checkpoints.
    pub key: Arc<TaskKey>,
    /// As the framework sent it.
    pub info: Arc<pb::TaskInfo>,
    /// Whom it runs as.
    pub user: String,
    /// What it was allocated.
    pub resources: Resources,
    /// The role it was allocated to.
    pub role: Option<Role>,
    /// The newest state.
    pub state: pb::TaskState,
    /// The last status of each state, oldest first.
    pub statuses: Vec<pb::TaskStatus>,
    /// State and uuid of the update that was sent last.
    pub sent: Option<(i32, Vec<u8>)>,
    /// Its framework is gone: nobody will acknowledge its updates.
    pub orphaned: bool,
}

impl Task {
    /// Whose updates its are.
    pub fn stream(&self) -> StreamKey {
        StreamKey {
            framework: self.key.run.framework.clone(),
            task: self.key.task.clone(),
        }
    }

    /// Whether it has ended.
    pub fn is_terminal(&self) -> bool {
        is_terminal(self.state.into())
    }

    /// Notes a new status.
    pub fn record(&mut self, status: &pb::TaskStatus) {
        if let Ok(state) = pb::TaskState::try_from(status.state) {
            self.state = state;
        }
        self.statuses.retain(|old| old.state != status.state);
        self.statuses.push(status.clone());
    }

    /// The user that its command names; without one it runs as its framework's.
    pub fn told_user(&self) -> Option<&str> {
        self.info.command.as_ref()?.user.as_deref()
    }

    /// As the master and the operators see it.
    pub fn to_message(&self) -> pb::Task {
        let info = &*self.info;
        let (sent_state, sent_uuid) = match &self.sent {
            Some((state, uuid)) => (Some(*state), Some(uuid.clone())),
            None => (None, None),
        };
        pb::Task {
            name: info.name.clone(),
            task_id: info.task_id.clone(),
            framework_id: pb::FrameworkId {
                value: self.key.run.framework.to_string(),
            },
            // Empty for command tasks: the executor is ours, not the framework's.
            executor_id: None,
            agent_id: pb::AgentId {
                value: self.key.run.agent.to_string(),
            },
            state: self.state.into(),
            resources: info.resources.clone(),
            statuses: self.statuses.clone(),
            status_update_state: sent_state,
            status_update_uuid: sent_uuid,
            labels: info.labels.clone(),
            discovery: info.discovery.clone(),
            container: info.container.clone(),
            health_check: info.health_check.clone(),
            kill_policy: info.kill_policy,
            user: self.told_user().map(str::to_owned),
            limits: info.limits.clone(),
        }
    }
}

/// How many characters of a command its executor's name shows.
const COMMAND_IN_NAME_CHARS: usize = 15;

/// The name Mesos gives to the executor of a command task.
pub fn command_executor_name(task: &pb::TaskInfo) -> String {
    let command = task.command.as_ref();
    let value = command
        .and_then(|command| command.value.as_deref())
        .unwrap_or_default();
    let is_shell = command.is_none_or(|command| command.shell.unwrap_or(true));
    let text = if is_shell {
        let mut shown: String = value.chars().take(COMMAND_IN_NAME_CHARS).collect();
        if shown.len() < value.len() {
            shown = value.chars().take(COMMAND_IN_NAME_CHARS - 3).collect();
            shown.push_str("...");
        }
        format!("sh -c '{shown}'")
    } else {
        let arguments = command.map(|command| command.arguments.join(", "));
        format!("{value}, [{}]", arguments.unwrap_or_default())
    };
    format!(
        "Command Executor (Task: {}) (Command: {text})",
        task.task_id.value
    )
}
