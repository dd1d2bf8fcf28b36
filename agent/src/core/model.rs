//! The core's model of frameworks, executors and tasks.
//!
//! Snapshots share it by `Arc`. The core changes it copy-on-write, so that a reader never delays the core.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_isolators::{Demand, ProcessIdentity};
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::schema;
use meseta_resources::{ContainerId, ExecutorId, FrameworkId, Moment, Resources, Role, TaskId};

use super::executor_link::ExecutorLink;
use super::probe::CheckState;
use super::states::{has_capability, is_terminal};
use super::update_streams::StreamKey;
use crate::checkpoint::{KillCause, Lsn, RunKey, TaskKey};

/// A framework with tasks here, or with unacknowledged updates.
#[derive(Clone, Debug)]
pub struct Framework {
    pub id: FrameworkId,
    /// The newest description from the master.
    pub info: Arc<pb::FrameworkInfo>,
    /// The framework's executors that are not completed.
    pub executors: BTreeMap<ExecutorId, Arc<Executor>>,
    /// The completed executors, oldest first.
    pub completed: VecDeque<Arc<Executor>>,
}

impl Framework {
    /// Creates a framework without executors.
    pub fn new(id: FrameworkId, info: Arc<pb::FrameworkInfo>) -> Self {
        Self {
            id,
            info,
            executors: BTreeMap::new(),
            completed: VecDeque::new(),
        }
    }

    /// Whether the framework has the PARTITION_AWARE capability.
    pub fn is_partition_aware(&self) -> bool {
        has_capability(&self.info, FrameworkCapability::PartitionAware)
    }

    /// Whether the framework has the TASK_KILLING_STATE capability.
    pub fn has_killing_state(&self) -> bool {
        has_capability(&self.info, FrameworkCapability::TaskKillingState)
    }
}

/// The phases of a container.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Phase {
    /// The container is queued for its launch, or the launch is in progress.
    Launching,
    /// The program of the container was executed.
    Running,
    /// The container is gone; the terminal update may still be unacknowledged.
    Ended,
}

/// A pending kill of a container.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Kill {
    pub cause: KillCause,
    /// Whether the kill came before the start of the container.
    pub during_launch: bool,
    /// The time of the SIGKILL; `None` until SIGTERM was sent.
    pub deadline: Option<Moment>,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
}

impl Kill {
    /// The rest of the grace period.
    pub(super) fn left(&self, now: Moment) -> Duration {
        self.deadline
            .map_or(self.grace, |at| at.saturating_since(now))
    }
}

/// The core's state of a container.
#[derive(Clone, Debug)]
pub struct Container {
    pub id: ContainerId,
    /// The phase of the container.
    pub phase: Phase,
    /// The supervisor process of the container.
    pub supervisor: Option<ProcessIdentity>,
    /// The pid of the main process.
    pub pid: Option<i32>,
    /// The time that the container had run when it was recovered; `None` if it was not recovered, or its records lack
    /// the time.
    pub ran_before: Option<Duration>,
    /// The pending kill of the container.
    pub kill: Option<Kill>,
    /// Requests and limits of resources.
    pub demand: Demand,
    /// Whether the container was launched in the group for revocable cpus, where it stays for its whole life. `None`
    /// after a restart, if no task with cpus shows it.
    pub launched_revocable: Option<bool>,
}

impl Container {
    /// Creates a container that is to be launched.
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

    /// Checks whether a task's cpus fit. Regular and revocable cpus belong to different cgroups, and a container stays
    /// in one of them for its whole life.
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

/// The kinds of executors, which differ in the reporter of their tasks' states.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum ExecutorKind {
    /// The core reports; the executor is made for one command and has no process of its own.
    Command,
    /// The core reports; each task has its own container inside the executor's.
    Default,
    /// The framework's own program reports, over `/api/v1/executor`.
    Custom,
}

#[derive(Clone, Debug)]
pub struct Executor {
    pub key: Arc<RunKey>,
    /// The kind, which determines the reporter of its tasks' states.
    pub kind: ExecutorKind,
    /// The description from the framework; `None` for a command task.
    pub info: Option<Arc<pb::ExecutorInfo>>,
    /// The user of the executor's processes.
    pub user: String,
    /// The executor's own resources, without those of its tasks.
    pub resources: Resources,
    /// The role to which these resources and its tasks' are allocated.
    pub role: Option<Role>,
    /// The executor's container; for a command task it is the task's.
    pub container: Container,
    /// The tasks that are live or have unacknowledged updates.
    pub tasks: BTreeMap<TaskId, Arc<Task>>,
    /// The completed tasks, oldest first.
    pub completed: VecDeque<Arc<Task>>,
    pub completed_bytes: usize,
    /// Whether its framework is gone, so that nobody will acknowledge its tasks' updates.
    pub orphaned: bool,
    /// State of default and custom executors only.
    pub link: ExecutorLink,
}

/// The reason for the termination of an executor, as reported for its tasks. It overrides the exit status.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TerminationReason {
    /// The reported state of its unfinished tasks.
    pub state: pb::TaskState,
    pub reason: Reason,
    /// The reported message of its unfinished tasks.
    pub message: String,
}

impl Executor {
    /// The name shown to operators: the framework's name for the executor, or Mesos's name for a command executor.
    pub fn name(&self) -> String {
        match (&self.info, self.command_task()) {
            (Some(info), _) => info.name.clone().unwrap_or_default(),
            (None, Some(task)) => command_executor_name(&task.info),
            (None, None) => String::new(),
        }
    }

    /// The task of an executor that was made for one command.
    pub fn command_task(&self) -> Option<&Arc<Task>> {
        self.all_tasks()
            .next()
            .filter(|_| self.kind == ExecutorKind::Command)
    }

    /// The value of `source`: for a command Mesos puts the task id there.
    pub fn source(&self) -> &str {
        match (&self.info, self.command_task()) {
            (Some(info), _) => info.source.as_deref().unwrap_or_default(),
            (None, Some(task)) => task.key.task.as_str(),
            (None, None) => "",
        }
    }

    /// The description from the framework, or Mesos's description of a command executor.
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

    /// Whether the executor holds resources.
    pub fn is_live(&self) -> bool {
        self.container.phase != Phase::Ended
    }

    /// Whether the executor accepts tasks of its kind.
    pub(super) fn takes_tasks(&self, kind: ExecutorKind) -> bool {
        self.kind == kind
            && self.is_live()
            && self.container.kill.is_none()
            && !self.link.is_terminated()
    }

    /// Whether the executor was launched and has not subscribed yet.
    pub fn is_registering(&self) -> bool {
        self.kind == ExecutorKind::Custom && !self.link.has_subscribed()
    }

    /// All tasks of the executor, including completed tasks.
    pub fn all_tasks(&self) -> impl Iterator<Item = &Arc<Task>> + Clone {
        self.tasks.values().chain(&self.completed)
    }

    /// Whether the executor has a live or completed task with this id.
    pub fn has_task(&self, id: &TaskId) -> bool {
        self.tasks.contains_key(id) || self.completed.iter().any(|task| task.key.task == *id)
    }

    /// The resources of the executor and its live tasks.
    pub fn allocated(&self) -> Resources {
        self.allocated_with(|_| true)
    }

    /// The resources of the executor and of its live tasks for which `counts` is true.
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

/// Reference to a task: a snapshot of the task and of its executor.
#[derive(Clone, Debug)]
pub struct TaskRef {
    pub executor: Arc<Executor>,
    pub task: Arc<Task>,
}

impl TaskRef {
    /// The container of the task's process.
    pub fn container(&self) -> &Container {
        self.task
            .nested
            .as_ref()
            .unwrap_or(&self.executor.container)
    }
}

#[derive(Clone, Debug)]
pub struct Task {
    /// The task's key in the checkpoints.
    pub key: Arc<TaskKey>,
    /// The position among the tasks that this agent accepted.
    pub order: u64,
    /// The task as the framework sent it.
    pub info: Arc<pb::TaskInfo>,
    /// The user of the task's processes.
    pub user: String,
    /// The resources allocated to the task.
    pub resources: Resources,
    /// The role to which the resources are allocated.
    pub role: Option<Role>,
    pub state: pb::TaskState,
    /// The last status of each state, oldest first.
    pub statuses: Vec<pb::TaskStatus>,
    /// State and uuid of the update that was sent last.
    pub sent: Option<(i32, Vec<u8>)>,
    /// The task's container inside its executor's, for a task of the default executor.
    pub nested: Option<Container>,
    /// The task's own requests and limits.
    pub demand: Demand,
    /// The group that the task was launched with.
    pub group: Option<Arc<str>>,
    /// Whether the task was delivered to its executor.
    pub delivered: bool,
    /// The write that the delivery waited for; zero if an earlier agent process delivered the task.
    pub delivered_after: Lsn,
    /// Whether the log was damaged: the executor may run the task, and the framework may know it, without a record
    /// here.
    pub may_run_unknown: bool,
    /// The state of its checks.
    pub check_state: CheckState,
    /// The last result of its health check.
    pub healthy: Option<bool>,
    /// The last result of its check.
    pub check_status: Option<pb::CheckStatusInfo>,
    /// A requested kill of a task whose executor carries out the kill.
    pub kill_asked: Option<Option<pb::KillPolicy>>,
    /// The counted size of the ended task.
    pub ended_bytes: usize,
}

impl Task {
    /// The key of the stream of the task's updates.
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

    /// Whether the task has ended.
    pub fn is_terminal(&self) -> bool {
        is_terminal(self.state.into())
    }

    /// Records a new status. After the end of a task only terminal updates change its state: the task holds no
    /// resources any more, and nothing would end it again.
    pub fn record(&mut self, status: &pb::TaskStatus) {
        if self.is_terminal() && !is_terminal(status.state) {
            return;
        }
        if let Ok(state) = pb::TaskState::try_from(status.state) {
            self.state = state;
        }
        if self.is_terminal() && self.info.data.is_some() {
            // The data was only for the program that runs the task, and may be most of its size.
            Arc::make_mut(&mut self.info).data = None;
        }
        self.healthy = status.healthy.or(self.healthy);
        if status.check_status.is_some() {
            self.check_status.clone_from(&status.check_status);
        }
        self.statuses.retain(|old| old.state != status.state);
        // A task has only two or three statuses.
        self.statuses.reserve_exact(1);
        self.statuses.push(truncated_status(status));
    }

    /// The executor id shown to others; `None` for a command task, whose executor belongs to the agent.
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

    /// The task as shown to the master and the operators.
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
/// Characters kept of a longer message.
const STORED_MESSAGE_CHARS: usize = 1024;

/// The part of a status that is stored for the API and for reregistration. It lacks the data, as in Mesos; a status
/// that is still too large keeps only the common fields. The update itself is sent whole.
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

/// Characters of the command shown in its executor's name.
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
