//! Simulated executors of frameworks: programs that subscribe to their agent, run tasks and report them.
//!
//! They outlive the agent's process, and repeat unacknowledged updates to the next one.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meseta_agent::core::{ConnectionId, Input};
use meseta_proto::mesos::v1::executor::{Event, call, event};
use meseta_proto::mesos::v1::{self as pb, TaskState};
use meseta_resources::{ContainerId, ExecutorId, FrameworkId};

use crate::checks::Broken;

/// A program of a framework, with its knowledge.
#[derive(Debug)]
pub(crate) struct Executor {
    framework: FrameworkId,
    executor: ExecutorId,
    connection: Option<ConnectionId>,
    inbox: VecDeque<Event>,
    /// The tasks that have not ended.
    tasks: BTreeMap<String, (pb::TaskInfo, TaskState)>,
    /// The updates without an acknowledgement of the agent, oldest first.
    unacknowledged: Vec<pb::TaskStatus>,
    /// Tasks with an update that the agent has not acknowledged.
    unheard: BTreeMap<String, pb::TaskInfo>,
    /// Whether the executor has been shut down by its agent.
    is_ending: bool,
    /// Messages that the executor has received from its scheduler.
    heard: BTreeSet<Vec<u8>>,
    /// The number of messages that the executor has sent.
    messages: usize,
}

/// The next action of an executor.
pub(crate) enum Next {
    Tell(Input),
    /// The executor ends by itself.
    Exit,
    Nothing,
}

/// The executors of one machine, by their containers.
#[derive(Debug, Default)]
pub(crate) struct Executors {
    pub(crate) all: BTreeMap<ContainerId, Executor>,
    connections: u64,
    /// Whether the executors send messages.
    pub(crate) talk: bool,
    pub(crate) broken: Vec<Broken>,
}

impl Executors {
    /// Notes the start of a container with an executor.
    pub(crate) fn begin(
        &mut self,
        container: &ContainerId,
        framework: FrameworkId,
        executor: ExecutorId,
    ) {
        let executor = Executor {
            framework,
            executor,
            connection: None,
            inbox: VecDeque::new(),
            tasks: BTreeMap::new(),
            unacknowledged: Vec::new(),
            unheard: BTreeMap::new(),
            is_ending: false,
            heard: BTreeSet::new(),
            messages: 0,
        };
        self.all.insert(container.clone(), executor);
    }

    /// Ends all streams, because the agent's process is gone.
    pub(crate) fn disconnect(&mut self) {
        for executor in self.all.values_mut() {
            executor.connection = None;
            executor.inbox.clear();
        }
    }

    fn by_connection(&mut self, connection: ConnectionId) -> Option<&mut Executor> {
        let mut all = self.all.values_mut();
        all.find(|one| one.connection == Some(connection))
    }

    /// Queues an event of the agent on a stream.
    pub(crate) fn hear(&mut self, connection: ConnectionId, event: Event) {
        if let Some(executor) = self.by_connection(connection) {
            executor.inbox.push_back(event);
        }
    }

    /// Ends a stream from the agent's side.
    pub(crate) fn hang_up(&mut self, connection: ConnectionId) {
        if let Some(executor) = self.by_connection(connection) {
            executor.connection = None;
        }
    }

    /// Lets one executor act.
    pub(crate) fn act(&mut self, container: &ContainerId, rng: &mut fastrand::Rng) -> Next {
        let Some(executor) = self.all.get_mut(container) else {
            return Next::Nothing;
        };
        if executor.connection.is_none() {
            self.connections += 1;
            // Each agent numbers its streams from the beginning; these numbers belong to no other.
            let connection = ConnectionId(self.connections);
            return Next::Tell(executor.subscribe(connection));
        }
        match executor.inbox.pop_front() {
            Some(Event {
                message: Some(message),
                ..
            }) => {
                self.broken.extend(executor.hear_message(message.data));
                Next::Nothing
            }
            Some(event) => executor.obey(event),
            None if self.talk && rng.u32(..16) == 0 => executor.send_message(container),
            None => executor.work(rng),
        }
    }
}

impl Executor {
    /// Whether the executor has this unfinished task.
    pub(crate) fn has(&self, task: &str) -> bool {
        self.tasks.contains_key(task)
    }

    /// Checks a message of its scheduler, which names its framework and executor. No message comes to another, or twice.
    fn hear_message(&mut self, data: Vec<u8>) -> Option<Broken> {
        let own = format!("{}/{}#", self.framework, self.executor);
        let is_own = data.starts_with(own.as_bytes());
        let text = String::from_utf8_lossy(&data).into_owned();
        let is_wrong = !is_own || !self.heard.insert(data);
        is_wrong.then(|| Broken::new("I29", format!("executor {own} hears {text}, or again")))
    }

    fn send_message(&mut self, container: &ContainerId) -> Next {
        self.messages += 1;
        let (framework, executor) = (&self.framework, &self.executor);
        let data = format!("{framework}/{executor}/{container}!{}", self.messages);
        Next::Tell(Input::ExecutorMessage {
            framework: framework.clone(),
            executor: executor.clone(),
            data: data.into_bytes(),
            permit: Default::default(),
        })
    }

    fn subscribe(&mut self, connection: ConnectionId) -> Input {
        self.connection = Some(connection);
        let updates = self.unacknowledged.iter().cloned();
        let subscribe = call::Subscribe {
            unacknowledged_tasks: self.unheard.values().cloned().collect(),
            unacknowledged_updates: updates.map(|status| call::Update { status }).collect(),
        };
        Input::ExecutorSubscribed {
            connection,
            framework: self.framework.clone(),
            executor: self.executor.clone(),
            permits: subscribe
                .unacknowledged_updates
                .iter()
                .map(|_| Some(Default::default()))
                .collect(),
            subscribe: Box::new(subscribe),
            permit: Default::default(),
        }
    }

    fn take(&mut self, task: pb::TaskInfo) {
        let id = task.task_id.value.clone();
        self.unheard.insert(id.clone(), task.clone());
        let state = TaskState::TaskStaging;
        self.tasks.entry(id).or_insert((task, state));
    }

    fn obey(&mut self, event: Event) -> Next {
        match event.r#type() {
            event::Type::Launch => {
                if let Some(launch) = event.launch {
                    self.take(launch.task);
                }
            }
            event::Type::LaunchGroup => {
                let group = event.launch_group.into_iter();
                for task in group.flat_map(|launch| launch.task_group.tasks) {
                    self.take(task);
                }
            }
            event::Type::Acknowledged => {
                if let Some(acknowledged) = event.acknowledged {
                    self.unacknowledged
                        .retain(|status| status.uuid.as_ref() != Some(&acknowledged.uuid));
                    self.unheard.remove(&acknowledged.task_id.value);
                }
            }
            event::Type::Kill => {
                if let Some(kill) = event.kill {
                    return self.tell(&kill.task_id.value, TaskState::TaskKilled, [7; 8]);
                }
            }
            event::Type::Shutdown => self.is_ending = true,
            _ => {}
        }
        Next::Nothing
    }

    fn work(&mut self, rng: &mut fastrand::Rng) -> Next {
        if self.is_ending || (self.tasks.is_empty() && self.unacknowledged.is_empty()) {
            return match rng.u32(..4) {
                0 => Next::Exit,
                _ => Next::Nothing,
            };
        }
        let at = rng.usize(..self.tasks.len().max(1));
        let Some((id, (_, state))) = self.tasks.iter().nth(at) else {
            return Next::Nothing;
        };
        let next = match (*state, rng.u32(..8)) {
            (TaskState::TaskStaging, _) => TaskState::TaskRunning,
            (_, 0) => TaskState::TaskFinished,
            (_, 1) => TaskState::TaskFailed,
            _ => return Next::Nothing,
        };
        let id = id.clone();
        self.tell(&id, next, rng.u64(..).to_le_bytes())
    }

    fn tell(&mut self, id: &str, state: TaskState, chance: [u8; 8]) -> Next {
        let Some((_, known)) = self.tasks.get_mut(id) else {
            return Next::Nothing;
        };
        *known = state;
        if !matches!(state, TaskState::TaskRunning) {
            self.tasks.remove(id);
        }
        let number = u8::try_from(state as i32).unwrap_or_default();
        let mut uuid = chance.to_vec();
        uuid.extend(id.bytes().rev().chain([0; 8]).take(7));
        uuid.push(number);
        let status = pb::TaskStatus {
            task_id: pb::TaskId {
                value: id.to_owned(),
            },
            state: state.into(),
            source: Some(pb::task_status::Source::Executor.into()),
            uuid: Some(uuid),
            ..pb::TaskStatus::default()
        };
        self.unacknowledged.push(status.clone());
        Next::Tell(Input::ExecutorUpdate {
            framework: self.framework.clone(),
            executor: self.executor.clone(),
            status: Box::new(status),
            permit: Default::default(),
        })
    }
}
