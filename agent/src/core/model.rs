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
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::schema;
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Moment, Resources, Role, TaskId};

use super::delivery::Deliveries;
use super::ids::ConnectionId;
use super::probe::CheckState;
use super::states::{has_capability, is_terminal};
use super::update_streams::StreamKey;
use crate::byte_semaphore::Permit;
use crate::checkpoint::{KillCause, Lsn, RunKey, TaskKey};

/// A framework with work here, or with updates to be acknowledged.
#[derive(Clone, Debug)]
pub struct Framework {
    pub id: FrameworkId,
    /// The newest the master told.
    pub info: Arc<pb::FrameworkInfo>,
    /// Its executors that are not over.
    pub executors: BTreeMap<ExecutorId, Arc<Executor>>,
    /// Those that are, oldest first.
    pub completed: VecDeque<Arc<Executor>>,
}

impl Framework {
    /// A framework that has no executors yet.
    pub fn new(id: FrameworkId, info: Arc<pb::FrameworkInfo>) -> Self {
        Self {
            id,
            info,
            executors: BTreeMap::new(),
            completed: VecDeque::new(),
        }
    }

    /// Whether it has the PARTITION_AWARE capability.
    pub fn is_partition_aware(&self) -> bool {
        has_capability(&self.info, FrameworkCapability::PartitionAware)
    }

    /// Whether it has the TASK_KILLING_STATE capability.
    pub fn has_killing_state(&self) -> bool {
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

/// A pending kill of a container.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Kill {
    pub cause: KillCause,
    /// Whether it had not been started when this came.
    pub during_launch: bool,
    /// When the last signal is due; `None` until it is known when the first one is sent.
    pub deadline: Option<Moment>,
    /// Time between the two.
    pub grace: Duration,
}

impl Kill {
    /// What is left of its grace.
    pub(super) fn left(&self, now: Moment) -> Duration {
        self.deadline
            .map_or(self.grace, |at| at.saturating_since(now))
    }
}

/// A container, as far as the core must know it.
#[derive(Clone, Debug)]
pub struct Container {
    pub id: ContainerId,
    /// How far it is.
    pub phase: Phase,
    /// The supervisor process of the container.
    pub supervisor: Option<ProcessIdentity>,
    /// The pid of the main process.
    pub pid: Option<i32>,
    /// How long it had run when it was recovered; `None` if it was not, or no record tells.
    pub ran_before: Option<Duration>,
    /// Whether it is to end.
    pub kill: Option<Kill>,
    /// Requests and limits of resources.
    pub demand: Demand,
    /// Whether it was made among those with revocable cpus, where it stays for as long as it runs. None after a
    /// restart, when no task with cpus tells.
    pub launched_revocable: Option<bool>,
}

impl Container {
    /// One that is to be launched.
    pub fn new(id: ContainerId, demand: Demand) -> Self {
        Self {
            id,
            phase: Phase::Launching,
            supervisor: None,
            pid: None,
            ran_before: None,
            kill: None,
            demand,
            launched_revocable: Some(demand.cpus_revocable),
        }
    }

    /// Whether a task can be added: what regular work leaves and what it was promised are given out in different
    /// places, and a container is in one of them for as long as it runs.
    pub(super) fn check_cpus(&self, task: &Demand) -> Result<(), &'static str> {
        let launched = self
            .launched_revocable
            .filter(|launched| task.cpus_millis > 0 && *launched != task.cpus_revocable);
        match launched {
            None => Ok(()),
            Some(true) => Err(
                "the task's cpus are not revocable, and its executor was launched for \
                 revocable ones: give it another executor",
            ),
            Some(false) => Err(
                "the task's cpus are revocable, and its executor was launched without \
                 revocable ones: give it another executor",
            ),
        }
    }
}

/// The kind of an executor: who reports the state of its tasks.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ExecutorKind {
    /// The core; the executor is made up for one command and has no process of its own.
    Command,
    /// The core; each task has a container of its own inside the executor's.
    Default,
    /// The framework's own program, over `/api/v1/executor`.
    Custom,
}

#[derive(Clone, Debug)]
pub struct Executor {
    pub key: Arc<RunKey>,
    /// Who speaks for its tasks.
    pub kind: ExecutorKind,
    /// As the framework sent it; none for a command.
    pub info: Option<Arc<pb::ExecutorInfo>>,
    /// Whom it runs as.
    pub user: String,
    /// What it has beside its tasks' resources.
    pub resources: Resources,
    /// The role that these and its tasks' were allocated to.
    pub role: Option<Role>,
    /// Its container; for a command it is the task's.
    pub container: Container,
    /// Its tasks that are not over: live, or with updates to be acknowledged.
    pub tasks: BTreeMap<TaskId, Arc<Task>>,
    /// Those that are, oldest first.
    pub completed: VecDeque<Arc<Task>>,
    pub completed_bytes: usize,
    /// Its framework is gone: nobody will acknowledge its tasks' updates.
    pub orphaned: bool,
    /// What only executors with a life of their own have.
    pub link: ExecutorLink,
}

/// How the core speaks with an executor of its own life, and what waits for its container.
#[derive(Clone, Debug, Default)]
pub struct ExecutorLink {
    /// The stream that events go to.
    pub connection: Option<ConnectionId>,
    /// The place in the log that it waits for to be told that it is subscribed.
    pub subscribed_after: Lsn,
    /// Whether it ever subscribed, in this life of the agent or before.
    pub has_subscribed: bool,
    /// Whether it was given a task.
    pub was_given: bool,
    /// How far it is with what it is given.
    pub(super) deliveries: Deliveries,
    /// Resizes of its container that are under way.
    pub resizes: u32,
    /// Terminal updates delayed until these resizes are done, each with the permit for its bytes.
    pub delayed_updates: Vec<(pb::TaskStatus, Arc<Permit>)>,
    /// The persistent volumes that its container was last given; unknown in a new life of the agent.
    pub volumes: Option<Vec<pb::Resource>>,
    /// When it was given a task last, or was launched, in this life of the agent.
    pub given_at: Option<Moment>,
    /// When a task of it ended at a limit of memory last, and was counted.
    pub out_of_memory_at: Option<Moment>,
    /// Why its container is taken down, and how that is told of its tasks.
    pub termination_reason: Option<TerminationReason>,
}

/// Why an executor was terminated, as its tasks are told: overrides the exit status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TerminationReason {
    /// The state of tasks that had not ended.
    pub state: pb::TaskState,
    pub reason: Reason,
    /// The state, as a text.
    pub message: String,
}

impl Executor {
    /// What operators read: the framework's name for it, or the one Mesos makes up for a command.
    pub fn name(&self) -> String {
        match (&self.info, self.command_task()) {
            (Some(info), _) => info.name.clone().unwrap_or_default(),
            (None, Some(task)) => command_executor_name(&task.info),
            (None, None) => String::new(),
        }
    }

    /// The task of an executor that is made up for one command.
    pub fn command_task(&self) -> Option<&Arc<Task>> {
        self.all_tasks()
            .next()
            .filter(|_| self.kind == ExecutorKind::Command)
    }

    /// What `source` says: Mesos gives a command's task id there.
    pub fn source(&self) -> &str {
        match (&self.info, self.command_task()) {
            (Some(info), _) => info.source.as_deref().unwrap_or_default(),
            (None, Some(task)) => task.key.task.as_str(),
            (None, None) => "",
        }
    }

    /// As the framework sent it, or as Mesos describes the one that it makes up for a command.
    pub fn describe(&self) -> pb::ExecutorInfo {
        let framework_id = Some(pb::FrameworkId {
            value: self.key.framework.to_string(),
        });
        if let Some(info) = &self.info {
            return pb::ExecutorInfo {
                framework_id,
                ..(**info).clone()
            };
        }
        let task = self.command_task().map(|task| &*task.info);
        pb::ExecutorInfo {
            executor_id: pb::ExecutorId {
                value: self.key.executor.to_string(),
            },
            framework_id,
            command: task.and_then(|task| task.command.clone()),
            name: Some(self.name()),
            source: Some(self.source().to_owned()),
            discovery: task.and_then(|task| task.discovery.clone()),
            labels: task.and_then(|task| task.labels.clone()),
            ..pb::ExecutorInfo::default()
        }
    }

    /// Whether it holds resources.
    pub fn is_live(&self) -> bool {
        self.container.phase != Phase::Ended
    }

    /// Whether it was launched and has not been heard of.
    pub fn is_registering(&self) -> bool {
        self.kind == ExecutorKind::Custom && !self.link.has_subscribed
    }

    /// Its tasks, also those that are over.
    pub fn all_tasks(&self) -> impl Iterator<Item = &Arc<Task>> + Clone {
        self.tasks.values().chain(&self.completed)
    }

    /// Whether it has a task of this id, or one that is over.
    pub fn has_task(&self, id: &TaskId) -> bool {
        self.tasks.contains_key(id) || self.completed.iter().any(|task| task.key.task == *id)
    }

    /// What it and its live tasks were allocated.
    pub fn allocated(&self) -> Resources {
        self.allocated_with(|_| true)
    }

    /// What it was allocated, and those of its live tasks that count.
    pub(super) fn allocated_with(&self, counts: impl Fn(&Task) -> bool) -> Resources {
        let mut sum = Resources::default();
        if self.is_live() {
            let live = self.tasks.values();
            let live = live.filter(|task| !task.is_terminal() && counts(task));
            let of_tasks = live.flat_map(|task| task.resources.iter());
            for resource in self.resources.iter().chain(of_tasks) {
                sum.insert(resource.clone());
            }
        }
        sum
    }
}

/// Reference to a task: a snapshot of it and of its executor.
#[derive(Clone, Debug)]
pub struct TaskRef {
    pub executor: Arc<Executor>,
    pub task: Arc<Task>,
}

impl TaskRef {
    /// The container that the task's process is in.
    pub fn container(&self) -> &Container {
        self.task
            .nested
            .as_ref()
            .unwrap_or(&self.executor.container)
    }
}

#[derive(Clone, Debug)]
pub struct Task {
    /// Its place in the checkpoints.
    pub key: Arc<TaskKey>,
    /// Its place among the tasks that this agent took.
    pub order: u64,
    /// As the framework sent it.
    pub info: Arc<pb::TaskInfo>,
    /// Whom it runs as.
    pub user: String,
    /// What it was allocated.
    pub resources: Resources,
    /// The role it was allocated to.
    pub role: Option<Role>,
    pub state: pb::TaskState,
    /// The last status of each state, oldest first.
    pub statuses: Vec<pb::TaskStatus>,
    /// State and uuid of the update that was sent last.
    pub sent: Option<(i32, Vec<u8>)>,
    /// Its container inside its executor's, for a task of the default executor.
    pub nested: Option<Container>,
    /// Its own requests and limits.
    pub demand: Demand,
    /// The group that it was launched with.
    pub group: Option<Arc<str>>,
    /// Whether its executor was given it.
    pub delivered: bool,
    /// The place in the log that this waited for; zero if it was in another life of the agent.
    pub delivered_after: Lsn,
    /// True if the log was damaged: the executor may run the task, and the framework may know it, without a record here.
    pub may_run_unknown: bool,
    /// How its checks stand.
    pub check_state: CheckState,
    /// What its health check said last.
    pub healthy: Option<bool>,
    /// What its check saw last.
    pub check_status: Option<pb::CheckStatusInfo>,
    /// A kill that was asked for, of a task whose executor carries it out.
    pub kill_asked: Option<Option<pb::KillPolicy>>,
    /// What it is counted to take since it has ended.
    pub ended_bytes: usize,
}

impl Task {
    /// Whose updates its are.
    pub fn stream(&self) -> StreamKey {
        StreamKey {
            framework: self.key.run.framework.clone(),
            task: self.key.task.clone(),
        }
    }

    /// Whether both were launched with the same group.
    pub fn is_of_group_of(&self, other: &Self) -> bool {
        self.group.is_some() && self.group == other.group
    }

    /// Whether it has ended.
    pub fn is_terminal(&self) -> bool {
        is_terminal(self.state.into())
    }

    /// Notes a new status. What is told of a task that has ended, but of its end, changes nothing: it holds no resources
    /// any more, and nobody would end it again.
    pub fn record(&mut self, status: &pb::TaskStatus) {
        if self.is_terminal() && !is_terminal(status.state) {
            return;
        }
        if let Ok(state) = pb::TaskState::try_from(status.state) {
            self.state = state;
        }
        if self.is_terminal() && self.info.data.is_some() {
            // It was for whoever runs the task, and may be the most of it.
            Arc::make_mut(&mut self.info).data = None;
        }
        self.healthy = status.healthy.or(self.healthy);
        if status.check_status.is_some() {
            self.check_status.clone_from(&status.check_status);
        }
        self.statuses.retain(|old| old.state != status.state);
        // Two or three are all that there will be.
        self.statuses.reserve_exact(1);
        self.statuses.push(truncated_status(status));
    }

    /// The executor that it names to others; none for a command, whose executor is ours.
    pub fn executor_id(&self) -> Option<pb::ExecutorId> {
        let of_framework = self.info.executor.is_some() || self.group.is_some();
        of_framework.then(|| pb::ExecutorId {
            value: self.key.run.executor.to_string(),
        })
    }

    /// The user that the task's command sets; the framework's user applies otherwise.
    pub fn explicit_user(&self) -> Option<&str> {
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
            executor_id: self.executor_id(),
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
            user: self.explicit_user().map(str::to_owned),
            limits: info.limits.clone(),
        }
    }
}

/// Limit of a stored status, in bytes.
const STORED_STATUS_BYTES_MAX: usize = 64 * 1024;
/// Characters of its message, if it has more than that.
const STORED_MESSAGE_CHARS: usize = 1024;

/// What is kept of a status to be shown and told at a return: not its data, as in Mesos, and of one that is
/// still large only what every status has. The update itself is sent whole.
fn truncated_status(status: &pb::TaskStatus) -> pb::TaskStatus {
    let mut truncated = status.clone();
    truncated.data = None;
    if schema::bytes_of(&truncated) <= STORED_STATUS_BYTES_MAX {
        return truncated;
    }
    let message = truncated.message.take();
    pb::TaskStatus {
        message: message.map(|message| message.chars().take(STORED_MESSAGE_CHARS).collect()),
        data: None,
        labels: None,
        container_status: None,
        check_status: None,
        limitation: None,
        ..truncated
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
        let mut truncated: String = value.chars().take(COMMAND_IN_NAME_CHARS).collect();
        if truncated.len() < value.len() {
            truncated = value.chars().take(COMMAND_IN_NAME_CHARS - 3).collect();
            truncated.push_str("...");
        }
        format!("sh -c '{truncated}'")
    } else {
        let arguments = command.map(|command| command.arguments.join(", "));
        format!("{value}, [{}]", arguments.unwrap_or_default())
    };
    format!(
        "Command Executor (Task: {}) (Command: {text})",
        task.task_id.value
    )
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    #[test]
    fn a_stored_status_is_truncated() {
        let small = pb::TaskStatus {
            state: pb::TaskState::TaskRunning.into(),
            message: Some("all is well".to_owned()),
            data: Some(vec![0; 6 << 20]),
            uuid: Some(vec![1; 16]),
            ..pb::TaskStatus::default()
        };
        let kept = pb::TaskStatus {
            data: None,
            ..small.clone()
        };
        assert_eq!(truncated_status(&small), kept);
        let label = pb::Label {
            key: "x".repeat(3 << 20),
            value: None,
        };
        let large = pb::TaskStatus {
            message: Some("é".repeat(3 << 20)),
            labels: Some(pb::Labels {
                labels: vec![label],
            }),
            ..small
        };
        let truncated = truncated_status(&large);
        assert!(truncated.encoded_len() <= STORED_STATUS_BYTES_MAX);
        assert_eq!(
            (truncated.state, &truncated.uuid),
            (large.state, &large.uuid)
        );
        let message = truncated.message.expect("its beginning");
        assert_eq!(message.chars().count(), STORED_MESSAGE_CHARS);
    }
}
