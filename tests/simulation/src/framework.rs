//! A framework: its stream, its tasks, and their updates.
//!
//! `behaviour` has its use of offers, except for the job scheduler, which is production code, in `jobs`. Invariant of the
//! records: a task is noted before its ACCEPT leaves.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use meseta_master::core::call::{Action, Subscribe};
use meseta_master::core::is_terminal;
use meseta_proto::mesos::v1::framework_info::capability::Type as Capability;
use meseta_proto::mesos::v1::scheduler::{Event, call, event};
use meseta_proto::mesos::v1::{self as pb, TaskState};

use crate::checks::Broken;
use crate::jobs::{Copy, Jobs};
use crate::models::reconciliation::Questions;

/// The behaviour of a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Launches tasks, groups and executors, reserves, and responds to everything.
    Good,
    /// Takes every offer, including revocable resources, and keeps offers.
    Greedy,
    /// Reads its stream with a delay.
    Slow,
    /// Has two roles, a parent and a child.
    TwoRoles,
    /// Ends and returns as another process.
    FailingOver,
    /// Knows neither partitions nor multiple roles, and is removed after a minute of absence.
    Old,
    /// Names foreign objects, accepts twice, and sends invalid requests.
    Malicious,
    /// The job scheduler in this repository.
    Jobs,
}

impl Kind {
    pub(crate) const ALL: [Self; 8] = [
        Self::Good,
        Self::Greedy,
        Self::Slow,
        Self::TwoRoles,
        Self::FailingOver,
        Self::Old,
        Self::Malicious,
        Self::Jobs,
    ];

    pub(crate) fn roles(self) -> &'static [&'static str] {
        match self {
            Self::Good | Self::Slow => &["a"],
            Self::Greedy | Self::FailingOver => &["b"],
            Self::TwoRoles => &["c", "c/d"],
            Self::Old => &["*"],
            Self::Malicious => &["e"],
            Self::Jobs => &["jobs"],
        }
    }

    fn capabilities(self) -> &'static [Capability] {
        match self {
            Self::Old => &[],
            Self::Greedy | Self::Jobs => &[
                Capability::MultiRole,
                Capability::ReservationRefinement,
                Capability::PartitionAware,
                Capability::RevocableResources,
            ],
            _ => &[
                Capability::MultiRole,
                Capability::ReservationRefinement,
                Capability::PartitionAware,
                Capability::TaskKillingState,
            ],
        }
    }

    /// Returns the seconds for which the framework may be absent.
    fn failover_timeout(self) -> f64 {
        match self {
            Self::Old => 60.0,
            // Wall clocks are set by days here, and a stored deadline is a wall-clock time.
            _ => 1e8,
        }
    }
}

/// A task, as known to the framework.
#[derive(Debug, Default)]
pub(crate) struct Task {
    pub(crate) agent: String,
    /// The framework's present scheduler may not know the task.
    pub(crate) is_forgotten: bool,
    /// The step in which it was launched.
    launched: u64,
    /// The newest state that the framework received; `None` before the first.
    pub(crate) state: Option<TaskState>,
    /// The uuid of the first terminal update.
    terminal: Option<Vec<u8>>,
    seen: BTreeSet<Vec<u8>>,
    /// The uuids of the task's updates, in the order of their first arrival.
    pub(crate) order: Vec<Vec<u8>>,
    /// The state of the last update with a uuid.
    told: Option<TaskState>,
}

impl Task {
    /// Returns a task that is about to be launched on this agent.
    pub(crate) fn on(agent: &pb::AgentId, launched: u64) -> Self {
        Self {
            agent: agent.value.clone(),
            launched,
            ..Self::default()
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.state.is_some_and(is_terminal)
    }

    /// Whether its agent has been given up since its launch.
    pub(crate) fn is_given_up(&self, given_up: &BTreeMap<String, u64>) -> bool {
        given_up
            .get(&self.agent)
            .is_some_and(|step| *step >= self.launched)
    }
}

/// A stream to a master, as the framework has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stream {
    pub(crate) id: u64,
    pub(crate) master: u64,
}

#[derive(Debug)]
pub(crate) struct Framework {
    pub(crate) number: usize,
    pub(crate) kind: Kind,
    pub(crate) id: Option<String>,
    pub(crate) stream: Option<Stream>,
    is_subscribed: bool,
    /// The unread events of the stream.
    pub(crate) events: VecDeque<Box<Event>>,
    /// The stream ends behind the waiting events.
    is_closed: bool,
    pub(crate) tasks: BTreeMap<String, Task>,
    /// Tasks whose KILL a master has accepted while it knew them, and the master's number.
    pub(crate) killed: BTreeMap<String, u64>,
    /// Offers without a response yet.
    pub(crate) offers: VecDeque<pb::Offer>,
    /// Offers that it has accepted, for frameworks that accept twice.
    pub(crate) used_offers: VecDeque<pb::OfferId>,
    /// Calls on their way on this stream.
    pub(crate) calls: VecDeque<Action>,
    /// Whether the framework declines every offer.
    pub(crate) is_idle: bool,
    /// Whether the framework responds to no offer at all.
    pub(crate) is_holding: bool,
    /// The step until which it reads nothing.
    pub(crate) busy_until: u64,
    /// The framework has ended: by an operator, by its timeout, or by itself.
    pub(crate) is_over: bool,
    /// The master has reported that the id cannot be used any more.
    pub(crate) is_removed: bool,
    pub(crate) broken: Vec<Broken>,
    /// Answers to reconciliation that it has read, without the master's knowledge.
    pub(crate) answers: usize,
    pub(crate) questions: Questions,
    pub(crate) launched: usize,
    pub(crate) operations: usize,
    pub(crate) jobs: Option<Box<Jobs>>,
    /// A second job scheduler, which has lost the framework and may not know that.
    pub(crate) copy: Option<Copy>,
    /// The number of times that another scheduler has taken the framework over.
    pub(crate) takeovers: usize,
    /// Whether the framework has a principal.
    has_principal: bool,
    /// Executors that the framework has launched, oldest first, with their agents.
    pub(crate) executors: VecDeque<(String, pb::ExecutorInfo)>,
    /// Inverse offers without a response yet.
    pub(crate) inverse_offers: VecDeque<pb::OfferId>,
    /// The number of messages that the framework has sent.
    pub(crate) messages: usize,
    /// Messages that the framework has received from its executors.
    heard: BTreeSet<Vec<u8>>,
    /// The statuses of its operations.
    told: BTreeMap<String, pb::OperationStatus>,
}

impl Framework {
    pub(crate) fn new(
        number: usize,
        kind: Kind,
        jobs: Option<Box<Jobs>>,
        has_principal: bool,
    ) -> Self {
        Self {
            number,
            kind,
            id: None,
            stream: None,
            is_subscribed: false,
            events: VecDeque::new(),
            is_closed: false,
            tasks: BTreeMap::new(),
            killed: BTreeMap::new(),
            offers: VecDeque::new(),
            used_offers: VecDeque::new(),
            calls: VecDeque::new(),
            is_idle: false,
            is_holding: false,
            busy_until: 0,
            is_over: false,
            is_removed: false,
            broken: Vec::new(),
            answers: 0,
            questions: Questions::default(),
            launched: 0,
            operations: 0,
            jobs,
            copy: None,
            takeovers: 0,
            has_principal,
            executors: VecDeque::new(),
            inverse_offers: VecDeque::new(),
            messages: 0,
            heard: BTreeSet::new(),
            told: BTreeMap::new(),
        }
    }

    pub(crate) fn is_subscribed(&self) -> bool {
        self.stream.is_some() && self.is_subscribed
    }

    /// Whether the framework has offers that it does not keep.
    pub(crate) fn must_answer(&self) -> bool {
        let kept = if self.is_idle || self.kind != Kind::Greedy {
            0
        } else {
            2
        };
        self.offers.len() > kept && !self.is_holding
    }

    /// Whether the stream has data to read, or has ended.
    pub(crate) fn has_news(&self) -> bool {
        !self.events.is_empty() || self.is_closed
    }

    pub(crate) fn principal(&self) -> Option<String> {
        self.has_principal.then(|| format!("p{}", self.number))
    }

    /// Returns its SUBSCRIBE call.
    pub(crate) fn subscription(&self) -> Subscribe {
        let id = self.id.clone().map(|value| pb::FrameworkId { value });
        let capability = |kind: &Capability| pb::framework_info::Capability {
            r#type: Some((*kind).into()),
        };
        let mut roles: Vec<String> = self.kind.roles().iter().map(|&role| role.into()).collect();
        let mut suppressed_roles = Vec::new();
        if let Some(jobs) = &self.jobs {
            roles = jobs.roles();
            suppressed_roles = jobs.idle_roles();
        }
        let is_old = self.kind == Kind::Old;
        let info = pb::FrameworkInfo {
            user: "somebody".to_owned(),
            name: format!("{:?}", self.kind),
            id,
            principal: self.principal(),
            failover_timeout: Some(self.kind.failover_timeout()),
            checkpoint: Some(true),
            role: is_old.then(|| roles[0].clone()),
            roles: if is_old { Vec::new() } else { roles },
            capabilities: self.kind.capabilities().iter().map(capability).collect(),
            ..pb::FrameworkInfo::default()
        };
        Subscribe {
            info,
            suppressed_roles,
            offer_constraints: None,
        }
    }

    /// Breaks its stream: undelivered messages of both directions are lost.
    pub(crate) fn disconnected(&mut self) {
        self.stream = None;
        self.is_subscribed = false;
        self.is_closed = false;
        self.events.clear();
        self.offers.clear();
        self.inverse_offers.clear();
        self.calls.clear();
        self.answers = 0;
        self.questions.lost();
        if let Some(jobs) = &mut self.jobs {
            jobs.disconnected();
        }
    }

    /// Ends the stream from the master's side, behind all sent events.
    pub(crate) fn close(&mut self) {
        self.is_closed = true;
    }

    /// Reads the next event.
    pub(crate) fn next_event(&mut self) -> Option<Box<Event>> {
        let event = self.events.pop_front();
        if event.is_none() && self.is_closed {
            self.disconnected();
        }
        event
    }

    /// Accepts foreign or already accepted offers, with more resources than there are.
    pub(crate) fn accept_again(&mut self, offer_ids: Vec<pb::OfferId>, agent: &str) -> Action {
        let id = format!("f{}.{}", self.number, self.launched);
        self.launched += 1;
        let scalar = |name: &str, value| pb::Resource {
            name: name.to_owned(),
            r#type: pb::value::Type::Scalar.into(),
            scalar: Some(pb::value::Scalar { value }),
            ..pb::Resource::default()
        };
        let task = pb::TaskInfo {
            name: id.clone(),
            task_id: pb::TaskId { value: id },
            agent_id: pb::AgentId {
                value: agent.to_owned(),
            },
            resources: vec![scalar("cpus", 1e9), scalar("mem", -1.0)],
            ..pb::TaskInfo::default()
        };
        Action::Accept(call::Accept {
            offer_ids,
            operations: vec![crate::behaviour::launch(vec![task])],
            filters: None,
        })
    }

    /// Restarts as another process, which knows its id and the state that the simulation keeps for it.
    pub(crate) fn restart(&mut self) {
        self.used_offers.clear();
    }

    /// Marks all running tasks as possibly unknown to the next scheduler of the framework.
    pub(crate) fn forget_tasks(&mut self) {
        for task in self.tasks.values_mut() {
            task.is_forgotten = true;
        }
    }

    /// Handles an event, as any framework does.
    pub(crate) fn hear(&mut self, event: &Event) {
        match event.r#type() {
            event::Type::Subscribed => {
                if let Some(subscribed) = &event.subscribed {
                    let id = subscribed.framework_id.value.clone();
                    if self.id.as_ref().is_some_and(|known| *known != id) {
                        let what = format!("framework {:?} is given the id {id}", self.id);
                        self.broken.push(Broken::new("I29", what));
                    }
                    self.id = Some(id);
                    self.is_subscribed = true;
                }
            }
            event::Type::Offers => {
                let offers = event.offers.iter().flat_map(|event| &event.offers);
                for offer in offers {
                    if Some(&offer.framework_id.value) != self.id.as_ref() {
                        let what = format!("an offer of another framework: {}", offer.id.value);
                        self.broken.push(Broken::new("I29", what));
                    }
                    self.offers.push_back(offer.clone());
                }
            }
            event::Type::Rescind => {
                if let Some(rescind) = &event.rescind {
                    self.offers.retain(|offer| offer.id != rescind.offer_id);
                }
            }
            event::Type::Update => {
                if let Some(update) = &event.update {
                    self.update(&update.status);
                }
            }
            event::Type::UpdateOperationStatus => {
                if let Some(update) = &event.update_operation_status {
                    self.update_operation(&update.status);
                }
            }
            event::Type::InverseOffers => {
                let offers = event.inverse_offers.iter();
                for offer in offers.flat_map(|event| &event.inverse_offers) {
                    if Some(&offer.framework_id.value) != self.id.as_ref() {
                        let what = format!("an inverse offer of another: {}", offer.id.value);
                        self.broken.push(Broken::new("I29", what));
                    }
                    self.inverse_offers.push_back(offer.id.clone());
                }
            }
            event::Type::RescindInverseOffer => {
                if let Some(rescind) = &event.rescind_inverse_offer {
                    self.inverse_offers
                        .retain(|id| *id != rescind.inverse_offer_id);
                }
            }
            event::Type::Message => {
                if let Some(message) = &event.message {
                    self.hear_message(message);
                }
            }
            event::Type::Error => {
                let message = event
                    .error
                    .as_ref()
                    .map_or("", |error| error.message.as_str());
                self.is_removed |=
                    message.contains("has been removed") || message.contains("completed framework");
            }
            _ => {}
        }
    }

    fn update(&mut self, status: &pb::TaskStatus) {
        let (id, state) = (status.task_id.value.clone(), status.state());
        if matches!(state, TaskState::TaskUnreachable | TaskState::TaskLost) {
            // The task's agent was given up, and the kills with it.
            self.killed.remove(&id);
        }
        if self.questions.answered(status) {
            self.answers += 1;
        }
        let Some(task) = self.tasks.get_mut(&id) else {
            if self.kind != Kind::Malicious && self.jobs.is_none() {
                let what = format!(
                    "update of task {id}, which framework {} has not",
                    self.number
                );
                self.broken.push(Broken::new("I29", what));
            }
            return;
        };
        let Some(uuid) = status.uuid.clone() else {
            if !task.is_over() {
                task.state = Some(state);
            }
            return;
        };
        if task.seen.insert(uuid.clone()) {
            task.order.push(uuid.clone());
            if task.terminal.is_some() {
                let what = format!("task {id} is {state:?} after its end");
                self.broken.push(Broken::new("I18", what));
            } else if is_terminal(state) {
                task.terminal = Some(uuid.clone());
            }
            if task.told.is_some_and(|told| rank(state) < rank(told)) {
                let what = format!("task {id} is {state:?} after {:?}", task.told);
                self.broken.push(Broken::new("I18", what));
            }
            task.told = Some(state);
            task.state = Some(state);
        }
        if self.jobs.is_some() {
            return;
        }
        if let (Some(agent), Ok(uuid)) = (&status.agent_id, <[u8; 16]>::try_from(uuid)) {
            self.calls.push_back(Action::Acknowledge {
                agent_id: agent.value.clone(),
                task_id: id,
                uuid,
            });
        }
    }

    /// Checks a message of an executor, which names its framework and itself. No message comes to another, or twice.
    fn hear_message(&mut self, message: &event::Message) {
        let own = self.id.as_deref().unwrap_or_default();
        let from = format!("{own}/{}/", message.executor_id.value);
        let is_own = message.data.starts_with(from.as_bytes());
        if !is_own || !self.heard.insert(message.data.clone()) {
            let data = String::from_utf8_lossy(&message.data);
            let what = format!("framework {own} hears {data} of {from}, or again");
            self.broken.push(Broken::new("I29", what));
        }
    }

    /// Acknowledges an operation's status; no other status may follow its end. An agent that never had the operation
    /// answers every query, also in its next life.
    fn update_operation(&mut self, status: &pb::OperationStatus) {
        let id = status.operation_id.clone().unwrap_or_default().value;
        if status.uuid.is_some()
            && let Some(before) = self.told.insert(id.clone(), status.clone())
            && before.state() != status.state()
            && is_operation_over(before.state())
        {
            let (state, before) = (status.state(), before.state());
            let what = format!("operation {id} is {state:?} after {before:?}");
            self.broken.push(Broken::new("I18", what));
        }
        self.calls.extend(acknowledged(status));
    }

    /// Reconciles every task that is not over, and some unknown tasks.
    pub(crate) fn reconcile(&mut self, with_all: bool) {
        let open = self.tasks.iter();
        let open = open.filter(|(_, task)| with_all || !task.is_over());
        let mut tasks: Vec<_> = open
            .map(|(id, task)| call::reconcile::Task {
                task_id: pb::TaskId { value: id.clone() },
                agent_id: Some(pb::AgentId {
                    value: task.agent.clone(),
                }),
            })
            .collect();
        // Two thousand are enough for frameworks that ask for all.
        tasks.truncate(2_000);
        if !tasks.is_empty() {
            self.calls
                .push_back(Action::Reconcile(call::Reconcile { tasks }));
        }
    }

    /// Requests the end of a task.
    pub(crate) fn kill(&mut self, id: &str) {
        self.calls.push_back(kill(id));
    }
}

/// Returns a KILL of a task without its agent.
pub(crate) fn kill(id: &str) -> Action {
    Action::Kill(call::Kill {
        task_id: pb::TaskId {
            value: id.to_owned(),
        },
        agent_id: None,
        kill_policy: None,
    })
}

/// Returns the acknowledgement of an operation's status.
fn acknowledged(status: &pb::OperationStatus) -> Option<Action> {
    let uuid = status.uuid.as_ref()?.value.as_slice().try_into().ok()?;
    Some(Action::AcknowledgeOperationStatus {
        agent_id: status.agent_id.as_ref()?.value.clone(),
        operation_id: status.operation_id.as_ref()?.value.clone(),
        uuid,
    })
}

fn is_operation_over(state: pb::OperationState) -> bool {
    use pb::OperationState::{
        OperationDropped, OperationError, OperationFailed, OperationFinished,
    };
    matches!(
        state,
        OperationDropped | OperationError | OperationFailed | OperationFinished
    )
}

/// Returns the progress of a task in this state, for states that its agent reports.
fn rank(state: TaskState) -> u8 {
    match state {
        TaskState::TaskStaging => 0,
        TaskState::TaskStarting => 1,
        TaskState::TaskRunning => 2,
        TaskState::TaskKilling => 3,
        _ => 4,
    }
}
