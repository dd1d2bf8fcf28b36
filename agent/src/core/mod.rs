//! The agent's decisions: one synchronous state machine.
//!
//! Entered through [`AgentCore::step`] only: an [`Input`] and the time go in, [`Effect`]s come out. It
//! reads no clock, does no I/O and draws chance from a seeded generator, so that the same inputs give
//! the same effects. For command tasks the core itself is the executor.
//!
//! ```text
//! registration.rs  RECOVERING → DISCONNECTED → RUNNING → TERMINATING, backoff, epochs, pings
//! launch.rs        RUN_TASK → intent → launch → STARTING, RUNNING
//! kill.rs          KILL, completion time, shutdown
//! ending.rs        a container's end → terminal update
//! operations.rs    reservations and volumes, and what is told of them
//! updates.rs       streams of status updates and their acknowledgements
//! recovery.rs      the state after a restart
//! ```
//! Invariants: intent is durable before a launch, an update before it is sent, its acknowledgement
//! before the next one; a task ends once; an exit nobody saw is a failure.

mod demand;
mod ending;
mod io;
mod kill;
mod launch;
mod model;
mod operation_updates;
mod operations;
mod recovery;
mod registration;
mod snapshot;
mod states;
#[cfg(test)]
mod tests;
mod updates;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as protocol;
use meseta_proto::meseta::v1::agent_frame::Message;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::{Reason, Source};
use meseta_resources::{AgentId, ContainerId, ExecutorId, FrameworkId, Moment, Now, Resources};
use tracing::{info, warn};

pub use demand::Enforceable;
pub use io::{
    Action, Destination, Effect, Ending, Exit, ExitReason, Input, LaunchPlan, Limitation, LinkId,
    Lsn, SharedTaskKey,
};
pub use launch::demand_of;
pub use model::{Executor, Framework, Kill, Phase, Task, command_executor_name};
pub use recovery::{Found, Recovery};
pub use snapshot::{Counters, Snapshot};
pub use states::is_terminal;
pub use updates::{
    Acknowledged, Pushed, RETRY_INTERVAL_MAX, RETRY_INTERVAL_MIN, StatusUpdates, StreamKey,
};

use crate::checkpoint::{LogEntry, RunKey, Write};
use operation_updates::OperationUpdates;
use registration::Link;
use updates::UNACKNOWLEDGED_UPDATES_MAX;

/// Frameworks without work that are still shown.
const COMPLETED_FRAMEWORKS_MAX: usize = 50;

/// What the core is told once.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the master is told of the agent; `id` is filled in.
    pub info: pb::AgentInfo,
    /// What the configuration gives it.
    pub resources: Resources,
    /// Where the agent's own API is reached.
    pub address: pb::Address,
    /// The agent's version.
    pub version: String,
    /// What the agent can do.
    pub capabilities: Vec<pb::agent_info::capability::Type>,
    /// Unit of the pauses between attempts to register (`--registration_backoff_factor`).
    pub registration_backoff_factor: Duration,
    /// Which limits can be held.
    pub enforceable: Enforceable,
    /// Completed executors shown per framework.
    pub max_completed_executors_per_framework: usize,
    /// Address told in `TaskStatus.container_status`.
    pub container_ip: String,
}

/// Where the agent is in its life.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// The checkpoints are being read.
    Recovering,
    /// There is no master that knows us.
    Disconnected,
    /// Registered.
    Running,
    /// On the way out.
    Terminating,
}

/// Something that is due at a time.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd)]
enum Timer {
    Connect(LinkId),
    RegistrationTimeout(LinkId),
    PingTimeout(LinkId),
    CompletionTime(ContainerId),
    KillOverdue(ContainerId),
}

/// The state machine.
#[derive(Debug)]
pub struct AgentCore {
    options: Options,
    rng: fastrand::Rng,
    state: State,
    agent_id: Option<AgentId>,
    link: Link,
    master: Option<Arc<pb::MasterInfo>>,
    epoch: u64,
    /// When a master of that epoch was last heard.
    epoch_heard: Moment,
    frameworks: BTreeMap<FrameworkId, Arc<Framework>>,
    completed_frameworks: VecDeque<Arc<Framework>>,
    containers: BTreeMap<ContainerId, (FrameworkId, ExecutorId)>,
    updates: StatusUpdates,
    /// All that the agent has, reservations and volumes included.
    total: Resources,
    operations: OperationUpdates,
    timers: BTreeSet<(Moment, Timer)>,
    counters: Counters,
    exit: Option<ExitReason>,
    lsn: Lsn,
    sequence: u64,
    effects: Vec<Effect>,
}

impl AgentCore {
    /// Before anything happened; `seed` is the source of all its uuids and jitter.
    pub fn new(options: Options, seed: u64) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            state: State::Recovering,
            agent_id: None,
            link: Link::default(),
            master: None,
            epoch: 0,
            epoch_heard: Moment::ORIGIN,
            frameworks: BTreeMap::new(),
            completed_frameworks: VecDeque::new(),
            containers: BTreeMap::new(),
            updates: StatusUpdates::default(),
            total: options.resources.clone(),
            operations: OperationUpdates::default(),
            timers: BTreeSet::new(),
            counters: Counters::default(),
            exit: None,
            lsn: Lsn::default(),
            sequence: 0,
            effects: Vec::new(),
            options,
        }
    }

    /// Takes one input; what is due by `now` happens after it.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.sequence += 1;
        match input {
            Input::Recovered(recovery) => self.recovered(now, *recovery),
            Input::LinkUp { link } => self.link_up(now, link),
            Input::LinkDown { link, reason } => self.link_down(now, link, &reason),
            Input::Frame { link, frame } => self.frame(now, link, *frame),
            Input::ContainerStarted {
                container,
                supervisor,
                task_pid,
            } => self.started(now, &container, supervisor, task_pid),
            Input::LaunchFailed { container, cause } => self.launch_failed(now, &container, cause),
            Input::ContainerEnded { container, ending } => self.ended(now, &container, ending),
            Input::Tick => {}
            Input::Stop { kill_tasks } => self.stop(now, kill_tasks),
        }
        self.fire_timers(now);
        self.exit_if_idle();
        std::mem::take(&mut self.effects)
    }

    /// When [`AgentCore::step`] is to be called with [`Input::Tick`] at the latest.
    pub fn next_deadline(&self) -> Option<Moment> {
        let timer = self.timers.first().map(|(at, _)| *at);
        [timer, self.updates.next_due(), self.operations.next_due()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Where the agent is in its life.
    pub fn state(&self) -> State {
        self.state
    }

    /// Counts the steps: two snapshots of one sequence are the same.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    fn fire_timers(&mut self, now: Now) {
        while let Some((at, timer)) = self.timers.first().cloned() {
            if at > now.moment {
                break;
            }
            self.timers.pop_first();
            match timer {
                Timer::Connect(link) => self.connect_due(now, link),
                Timer::RegistrationTimeout(link) => self.registration_overdue(now, link),
                Timer::PingTimeout(link) => self.ping_overdue(now, link),
                Timer::CompletionTime(container) => self.completion_time_over(now, &container),
                Timer::KillOverdue(container) => self.kill_overdue(&container),
            }
        }
        for key in self.updates.due(now.moment) {
            self.send_head(&key);
        }
        for uuid in self.operations.due(now.moment) {
            self.tell_operation(&uuid);
        }
    }

    fn set_timer(&mut self, at: Moment, timer: Timer) {
        self.timers.insert((at, timer));
    }

    fn persist(&mut self, write: Write) {
        self.lsn = Lsn(self.lsn.0.saturating_add(1));
        self.effects.push(Effect::Persist {
            lsn: self.lsn,
            write,
        });
    }

    /// An action that follows all writes so far.
    fn show(&mut self, to: Destination, action: Action) {
        self.effects.push(Effect::Visible {
            after: self.lsn,
            to,
            action,
        });
    }

    /// An action that waits for no write, but for what goes to the same destination before it.
    fn show_now(&mut self, to: Destination, action: Action) {
        self.effects.push(Effect::Visible {
            after: Lsn::default(),
            to,
            action,
        });
    }

    fn send(&mut self, message: Message) {
        let link = self.link.id;
        self.show(
            Destination::Master,
            Action::Send {
                link,
                message: Box::new(message),
            },
        );
    }

    fn uuid(&mut self) -> uuid::Uuid {
        let mut bytes = [0; 16];
        self.rng.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    fn executor_of(&self, container: &ContainerId) -> Option<Arc<Executor>> {
        let (framework, executor) = self.containers.get(container)?;
        let framework = self.frameworks.get(framework)?;
        framework.executors.get(executor).cloned()
    }

    fn change_executor(&mut self, key: &RunKey, change: impl FnOnce(&mut Executor)) {
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        if let Some(executor) = Arc::make_mut(framework).executors.get_mut(&key.executor) {
            change(Arc::make_mut(executor));
        }
    }

    /// Makes a status update of a task of ours: durable, then sent in its turn.
    fn update_task(&mut self, now: Now, key: &RunKey, status: pb::TaskStatus) {
        let framework = self.frameworks.get(&key.framework);
        let Some(executor) =
            framework.and_then(|framework| framework.executors.get(&key.executor).cloned())
        else {
            return;
        };
        let stream = executor.task.stream();
        let pushed = self.updates.push(now.moment, &stream, status.clone());
        match pushed {
            Pushed::Send | Pushed::Waits => {}
            Pushed::Duplicate | Pushed::AfterTerminal | Pushed::Full => {
                self.counters.invalid_status_updates += 1;
                warn!(
                    framework_id = %key.framework, task_id = %stream.task, ?pushed,
                    max = UNACKNOWLEDGED_UPDATES_MAX, "dropped a status update"
                );
                return;
            }
        }
        info!(
            framework_id = %key.framework,
            task_id = %stream.task,
            container_id = %key.container,
            state = state_name(status.state),
            message = status.message.as_deref().unwrap_or_default(),
            "status update"
        );
        self.counters.valid_status_updates += 1;
        self.counters.count_terminal(status.state);
        self.persist(Write::Log {
            key: executor.task.key.clone(),
            entry: Box::new(LogEntry::Update(status.clone())),
        });
        self.change_executor(key, |executor| executor.task.record(&status));
        if pushed == Pushed::Send {
            self.send_head(&stream);
        }
    }

    /// Answers for a task that the agent does not hold: told until acknowledged, but not kept over a
    /// restart, after which the master would ask again.
    fn answer_for_absent(&mut self, now: Now, stream: &StreamKey, status: pb::TaskStatus) {
        info!(
            framework_id = %stream.framework,
            task_id = %stream.task,
            state = state_name(status.state),
            message = status.message.as_deref().unwrap_or_default(),
            "status update for a task that does not run here"
        );
        self.counters.valid_status_updates += 1;
        self.counters.count_terminal(status.state);
        if self.updates.push(now.moment, stream, status) == Pushed::Send {
            self.send_head(stream);
        }
    }

    fn send_head(&mut self, stream: &StreamKey) {
        let Some(status) = self.updates.head(stream).cloned() else {
            return;
        };
        let executor = self.executor_of_task(stream);
        let latest_state = executor
            .as_ref()
            .map_or(status.state, |executor| executor.task.state.into());
        if let Some(executor) = executor {
            let sent = (status.state, status.uuid.clone().unwrap_or_default());
            self.change_executor(&executor.key, |executor| executor.task.sent = Some(sent));
        }
        self.send(Message::StatusUpdate(protocol::StatusUpdate {
            framework_id: pb::FrameworkId {
                value: stream.framework.to_string(),
            },
            status,
            latest_state: Some(latest_state),
        }));
    }

    /// The executor that holds a task, live or with updates to be acknowledged.
    fn executor_of_task(&self, stream: &StreamKey) -> Option<Arc<Executor>> {
        let framework = self.frameworks.get(&stream.framework)?;
        // The executor of a command task is named after it.
        if let Some(executor) = framework.executors.get(stream.task.as_str())
            && executor.task.key.task == stream.task
        {
            return Some(executor.clone());
        }
        framework
            .executors
            .values()
            .find(|executor| executor.task.key.task == stream.task)
            .cloned()
    }

    fn acknowledged(&mut self, now: Now, stream: &StreamKey, uuid: &[u8]) {
        let executor = self.executor_of_task(stream);
        let outcome = self.updates.acknowledge(now.moment, stream, uuid);
        match outcome {
            Acknowledged::Next | Acknowledged::Closed => {}
            Acknowledged::Duplicate | Acknowledged::Unexpected | Acknowledged::Unknown => {
                warn!(
                    framework_id = %stream.framework, task_id = %stream.task, ?outcome,
                    "ignored an acknowledgement"
                );
                return;
            }
        }
        if let Some(executor) = &executor {
            self.persist(Write::Log {
                key: executor.task.key.clone(),
                entry: Box::new(LogEntry::Acknowledged(uuid.to_vec())),
            });
        }
        if outcome == Acknowledged::Next {
            self.send_head(stream);
        } else if let Some(executor) = executor {
            self.retire(&executor.key);
            self.retire_framework_if_idle(&executor.key.framework);
        }
    }

    /// Moves an executor whose updates are all acknowledged to the completed ones.
    fn complete(&mut self, key: &Arc<RunKey>) {
        self.containers.remove(&key.container);
        let kept = self.options.max_completed_executors_per_framework;
        let Some(framework) = self.frameworks.get_mut(&key.framework) else {
            return;
        };
        let framework = Arc::make_mut(framework);
        if let Some(executor) = framework.executors.remove(&key.executor) {
            framework.completed.push_back(executor);
            while framework.completed.len() > kept {
                framework.completed.pop_front();
            }
        }
    }

    fn retire_framework_if_idle(&mut self, id: &FrameworkId) {
        let idle = self
            .frameworks
            .get(id)
            .is_some_and(|framework| framework.executors.is_empty());
        let Some(agent) = self.agent_id.clone().filter(|_| idle) else {
            return;
        };
        if let Some(framework) = self.frameworks.remove(id) {
            self.persist(Write::RetireFramework {
                agent,
                framework: id.clone(),
            });
            self.completed_frameworks.push_back(framework);
            while self.completed_frameworks.len() > COMPLETED_FRAMEWORKS_MAX {
                self.completed_frameworks.pop_front();
            }
        }
    }

    /// A status of a task, stamped as the agent stamps them.
    fn status(
        &mut self,
        now: Now,
        task: pb::TaskId,
        state: pb::TaskState,
        source: Source,
        reason: Option<Reason>,
        message: Option<String>,
    ) -> pb::TaskStatus {
        pb::TaskStatus {
            task_id: task,
            state: state.into(),
            message,
            source: Some(source.into()),
            reason: reason.map(Into::into),
            agent_id: self.agent_id.as_ref().map(|id| pb::AgentId {
                value: id.to_string(),
            }),
            timestamp: Some(now.unix.as_secs_f64()),
            uuid: Some(self.uuid().into_bytes().to_vec()),
            ..pb::TaskStatus::default()
        }
    }
}

fn state_name(state: i32) -> &'static str {
    pb::TaskState::try_from(state).map_or("unknown", |state| state.as_str_name())
}
