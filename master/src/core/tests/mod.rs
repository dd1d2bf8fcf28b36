//! The core in virtual time, with agents and frameworks played by the tests.

mod agents;
mod authorization;
mod frameworks;
mod groups;
mod inverse_offers;
mod maintenance;
mod operations;
mod operator_operations;
mod oversubscription;
mod partition;
mod properties;
mod quota;
mod reconciliation;
mod tasks;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use meseta_proto::convert;
use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
use meseta_proto::mesos::v1::framework_info::Capability;
use meseta_proto::mesos::v1::framework_info::capability::Type as CapabilityType;
use meseta_proto::mesos::v1::scheduler::{Event, call, event};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::time::{Moment, Now};
use meseta_resources::{Resources, Role};

use super::call::{Action, Subscribe};
use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A master, everything it has said, and what its registry holds.
struct World {
    core: MasterCore,
    now: Now,
    events: BTreeMap<ConnectionId, Vec<Event>>,
    frames: BTreeMap<ConnectionId, Vec<master_frame::Message>>,
    closed: BTreeSet<ConnectionId>,
    answers: BTreeMap<ReplyId, Answer>,
    notes: Vec<Note>,
    /// What came of operators' operations.
    outcomes: Vec<(OperationUuid, v1::OperationStatus)>,
    /// The operator's operation that was taken last.
    applied: OperationUuid,
    /// Mutations that are not yet durable.
    unwritten: Vec<(Lsn, Mutation)>,
    writes_at_once: bool,
    registry: Recovered,
    next: u64,
    /// Each call that is refused is checked to have changed nothing.
    refusals_change_nothing: bool,
    /// Who speaks for the frameworks and agents that come now.
    caller: Caller,
}

/// A framework as the tests know it.
#[derive(Clone)]
struct Scheduler {
    connection: ConnectionId,
    stream: String,
    id: String,
}

/// An agent as the tests know it.
#[derive(Clone)]
struct Node {
    connection: ConnectionId,
    id: String,
    register: meseta::Register,
}

fn config() -> Config {
    Config::new(Identity {
        id: "m".to_owned(),
        hostname: "master.example".to_owned(),
        ip: Ipv4Addr::LOCALHOST,
        port: 5050,
        cluster: None,
        version: "1.12.0".to_owned(),
    })
}

fn parse(text: &str) -> Resources {
    convert::parse_resources(text, &Role::star()).unwrap()
}

fn wire(text: &str) -> Vec<v1::Resource> {
    to_wire(&parse(text), Format::PostRefinement)
}

fn framework(name: &str, roles: &[&str]) -> v1::FrameworkInfo {
    let kinds = [
        CapabilityType::MultiRole,
        CapabilityType::ReservationRefinement,
    ];
    v1::FrameworkInfo {
        user: "alice".to_owned(),
        name: name.to_owned(),
        roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        failover_timeout: Some(60.0),
        capabilities: kinds
            .map(|kind| Capability {
                r#type: Some(kind.into()),
            })
            .to_vec(),
        ..v1::FrameworkInfo::default()
    }
}

fn aware(mut info: v1::FrameworkInfo) -> v1::FrameworkInfo {
    info.capabilities.push(Capability {
        r#type: Some(CapabilityType::PartitionAware.into()),
    });
    info
}

fn register(port: i32, resources: &str) -> meseta::Register {
    meseta::Register {
        agent_info: v1::AgentInfo {
            hostname: "node.example".to_owned(),
            port: Some(port),
            resources: wire(resources),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        address: Some(v1::Address {
            hostname: Some("node.example".to_owned()),
            ip: Some("10.0.0.1".to_owned()),
            port,
        }),
        ..meseta::Register::default()
    }
}

fn task(node: &Node, id: &str, resources: &str) -> v1::TaskInfo {
    v1::TaskInfo {
        name: id.to_owned(),
        task_id: v1::TaskId {
            value: id.to_owned(),
        },
        agent_id: v1::AgentId {
            value: node.id.clone(),
        },
        resources: wire(resources),
        command: Some(v1::CommandInfo {
            value: Some("sleep 1".to_owned()),
            ..v1::CommandInfo::default()
        }),
        ..v1::TaskInfo::default()
    }
}

fn launch(tasks: Vec<v1::TaskInfo>) -> v1::offer::Operation {
    v1::offer::Operation {
        r#type: Some(v1::offer::operation::Type::Launch.into()),
        launch: Some(v1::offer::operation::Launch { task_infos: tasks }),
        ..v1::offer::Operation::default()
    }
}

fn accept(offers: &[&v1::Offer], tasks: Vec<v1::TaskInfo>) -> Action {
    Action::Accept(call::Accept {
        offer_ids: offers.iter().map(|offer| offer.id.clone()).collect(),
        operations: vec![launch(tasks)],
        filters: None,
    })
}

fn decline(offers: &[&v1::Offer], seconds: f64) -> Action {
    Action::Decline(call::Decline {
        offer_ids: offers.iter().map(|offer| offer.id.clone()).collect(),
        filters: Some(v1::Filters {
            refuse_seconds: Some(seconds),
        }),
    })
}

fn reconcile(tasks: &[(&str, Option<&str>)]) -> Action {
    let task = |(task, agent): &(&str, Option<&str>)| call::reconcile::Task {
        task_id: v1::TaskId {
            value: (*task).to_owned(),
        },
        agent_id: agent.map(|agent| v1::AgentId {
            value: agent.to_owned(),
        }),
    };
    Action::Reconcile(call::Reconcile {
        tasks: tasks.iter().map(task).collect(),
    })
}

impl World {
    fn new() -> Self {
        Self::with(
            config(),
            Recovered {
                epoch: 1,
                ..Recovered::default()
            },
        )
    }

    fn with(config: Config, recovered: Recovered) -> Self {
        let now = Now {
            moment: Moment::from_nanos(1_000),
            unix: Duration::from_secs(1_800_000_000),
        };
        Self {
            core: MasterCore::new(config, recovered.clone(), now),
            now,
            events: BTreeMap::new(),
            frames: BTreeMap::new(),
            closed: BTreeSet::new(),
            answers: BTreeMap::new(),
            notes: Vec::new(),
            outcomes: Vec::new(),
            applied: OperationUuid::default(),
            unwritten: Vec::new(),
            writes_at_once: true,
            registry: recovered,
            next: 0,
            refusals_change_nothing: false,
            caller: Caller::default(),
        }
    }

    /// The master dies; another one starts with what was durable.
    fn restart(self) -> Self {
        let mut config = config();
        config.identity.id = "m2".to_owned();
        let mut recovered = self.registry;
        recovered.epoch += 1;
        let mut world = Self::with(config, recovered);
        world.next = self.next;
        world.now = self.now;
        world
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// For what the books need not agree about while it lasts.
    fn input_unchecked(&mut self, message: agent_frame::Message) {
        let connection = ConnectionId(self.number());
        self.input_unchecked_on(connection, message);
    }

    fn input_unchecked_on(&mut self, connection: ConnectionId, message: agent_frame::Message) {
        let message = Box::new(message);
        self.carry_out(Input::AgentFrame {
            connection,
            message,
        });
        for (lsn, mutation) in std::mem::take(&mut self.unwritten) {
            self.apply(mutation);
            self.carry_out(Input::Persisted { lsn });
        }
    }

    fn input(&mut self, input: Input) {
        self.carry_out(input);
        if self.writes_at_once {
            self.write();
        }
        self.check();
    }

    fn carry_out(&mut self, input: Input) {
        let effects = self.core.step(self.now, input);
        for effect in effects {
            match effect {
                Effect::Persist { lsn, mutation } => self.unwritten.push((lsn, mutation)),
                Effect::Visible { after, visible } => {
                    let durable = self.unwritten.first().is_none_or(|(lsn, _)| *lsn > after);
                    assert!(durable, "seen before it was durable");
                    self.see(visible);
                }
            }
        }
    }

    fn see(&mut self, visible: Visible) {
        match visible {
            Visible::Event { to, event } => self.events.entry(to).or_default().push(*event),
            Visible::Frame { to, frame } => {
                assert_eq!(frame.epoch, self.core.epoch());
                self.frames.entry(to).or_default().extend(frame.message);
            }
            Visible::CloseScheduler { connection, .. } | Visible::CloseAgent { connection, .. } => {
                self.closed.insert(connection);
            }
            Visible::Note(note) => self.notes.push(*note),
            Visible::OperationOver { uuid, status } => self.outcomes.push((uuid, *status)),
            Visible::Reply { reply, answer } => {
                assert!(
                    self.answers.insert(reply, answer).is_none(),
                    "answered twice"
                );
            }
        }
    }

    /// Makes everything durable that waits for it.
    fn write(&mut self) {
        let unwritten = std::mem::take(&mut self.unwritten);
        let Some((last, _)) = unwritten.last() else {
            return;
        };
        let last = *last;
        for (_, mutation) in unwritten {
            self.apply(mutation);
        }
        self.input(Input::Persisted { lsn: last });
    }

    fn apply(&mut self, mutation: Mutation) {
        let registry = &mut self.registry;
        match mutation {
            Mutation::PutAgent(record) => {
                registry
                    .agents
                    .retain(|agent| agent.agent_id != record.agent_id);
                registry
                    .unreachable
                    .retain(|agent| agent.agent_id != record.agent_id);
                registry.agents.push(record);
            }
            Mutation::MarkUnreachable(record) => {
                registry
                    .agents
                    .retain(|agent| agent.agent_id != record.agent_id);
                registry.unreachable.push(record);
            }
            Mutation::RemoveAgent { agent_id } => {
                registry.agents.retain(|agent| agent.agent_id != agent_id);
                registry
                    .unreachable
                    .retain(|agent| agent.agent_id != agent_id);
            }
            Mutation::PruneUnreachable { agent_ids } => {
                registry
                    .unreachable
                    .retain(|agent| !agent_ids.contains(&agent.agent_id));
            }
            Mutation::PutWeights(weights) => registry.weights = Some(weights),
            Mutation::PutMaintenance(maintenance) => registry.maintenance = maintenance,
            Mutation::PutDeactivation {
                agent_id,
                deactivation,
            } => {
                registry.deactivations.retain(|(id, _)| *id != agent_id);
                registry
                    .deactivations
                    .extend(deactivation.map(|deactivation| (agent_id, deactivation)));
            }
            Mutation::MarkGone { agent_id, since } => {
                registry.agents.retain(|agent| agent.agent_id != agent_id);
                registry
                    .unreachable
                    .retain(|agent| agent.agent_id != agent_id);
                registry.deactivations.retain(|(id, _)| *id != agent_id);
                registry.gone.push((agent_id, since));
            }
            Mutation::PruneGone { agent_ids } => {
                registry.gone.retain(|(id, _)| !agent_ids.contains(id));
            }
            Mutation::UpdateQuota(changes) => {
                for (role, quota) in changes {
                    registry.quotas.retain(|(known, _)| *known != role);
                    if !quota.is_default() {
                        registry.quotas.push((role, quota));
                    }
                }
            }
            Mutation::PutDeadline(record) => registry.deadlines.push(record),
            Mutation::RemoveDeadlines { framework_ids } => registry
                .deadlines
                .retain(|record| !framework_ids.contains(&record.framework_id)),
        }
    }

    /// Lets time pass, deadline by deadline. Nobody answers pings meanwhile.
    fn advance(&mut self, time: Duration) {
        let end = self.now.moment + time;
        while let Some(next) = self.core.next_deadline().filter(|next| *next <= end) {
            self.jump(next.max(self.now.moment));
            self.input(Input::Tick);
        }
        self.jump(end);
        self.input(Input::Tick);
    }

    fn jump(&mut self, to: Moment) {
        self.now.unix += to.saturating_since(self.now.moment);
        self.now.moment = to;
    }

    fn subscribe(&mut self, info: v1::FrameworkInfo) -> Scheduler {
        let connection = self.try_subscribe(info);
        let events = self.take_events(connection);
        let subscribed = events
            .iter()
            .find_map(|event| event.subscribed.as_ref())
            .unwrap();
        let id = subscribed.framework_id.value.clone();
        // Offers may have come along.
        let rest = events
            .into_iter()
            .filter(|event| event.offers.is_some())
            .collect();
        self.events.insert(connection, rest);
        Scheduler {
            connection,
            stream: format!("stream-{connection}"),
            id,
        }
    }

    fn try_subscribe(&mut self, info: v1::FrameworkInfo) -> ConnectionId {
        let connection = ConnectionId(self.number());
        self.input(Input::Subscribe {
            connection,
            stream_id: format!("stream-{connection}"),
            call: Box::new(Subscribe {
                info,
                suppressed_roles: Vec::new(),
                offer_constraints: None,
            }),
            caller: self.caller.clone(),
        });
        connection
    }

    fn with_id(mut info: v1::FrameworkInfo, id: &str) -> v1::FrameworkInfo {
        info.id = Some(v1::FrameworkId {
            value: id.to_owned(),
        });
        info
    }

    fn call(&mut self, scheduler: &Scheduler, action: Action) -> Answer {
        self.call_as(&scheduler.id, Some(&scheduler.stream), action)
    }

    fn call_as(&mut self, id: &str, stream: Option<&str>, action: Action) -> Answer {
        let reply = ReplyId(self.number());
        let before = self.refusals_change_nothing.then(|| {
            // What is due anyway.
            self.input(Input::Tick);
            self.digest()
        });
        self.input(Input::Call {
            reply,
            framework_id: id.to_owned(),
            stream_id: stream.map(str::to_owned),
            action: Box::new(action),
            caller: self.caller.clone(),
        });
        let answer = self.answers.remove(&reply).unwrap();
        if !matches!(answer, Answer::Accepted | Answer::Done)
            && let Some(before) = before
        {
            assert_eq!(before, self.digest(), "refused: {answer:?}");
        }
        answer
    }

    /// All that can be looked at, counters apart.
    fn digest(&mut self) -> String {
        let snapshot = self.core.snapshot();
        // What is only counted may grow by what is refused.
        let uncounted = |views: &[Arc<FrameworkView>]| -> Vec<FrameworkView> {
            let views = views.iter().map(|view| FrameworkView {
                counters: Arc::default(),
                ..(**view).clone()
            });
            views.collect()
        };
        format!(
            "{:?}",
            (
                &snapshot.agents,
                &snapshot.recovered_agents,
                &snapshot.unreachable_agents,
                uncounted(&snapshot.frameworks),
                uncounted(&snapshot.completed_frameworks),
                &snapshot.offers,
                &snapshot.weights,
                &snapshot.quotas,
                &snapshot.maintenance,
            )
        )
    }

    /// What an operator is answered, once it is durable.
    fn administer(&mut self, request: Request) -> Answer {
        let reply = ReplyId(self.number());
        self.input(Input::Administer {
            reply,
            request: Box::new(request),
        });
        self.answers.remove(&reply).unwrap()
    }

    fn take_events(&mut self, connection: ConnectionId) -> Vec<Event> {
        self.events.remove(&connection).unwrap_or_default()
    }

    fn offers(&mut self, scheduler: &Scheduler) -> Vec<v1::Offer> {
        let events = self.take_events(scheduler.connection);
        events
            .into_iter()
            .filter_map(|event| event.offers)
            .flat_map(|offers| offers.offers)
            .collect()
    }

    fn updates(&mut self, scheduler: &Scheduler) -> Vec<TaskStatus> {
        let events = self.take_events(scheduler.connection);
        events
            .into_iter()
            .filter_map(|event| event.update)
            .map(|update| update.status)
            .collect()
    }

    fn agent(&mut self, port: i32, resources: &str) -> Node {
        let register = register(port, resources);
        let connection = self.introduce(agent_frame::Message::Register(register.clone()));
        let id = self.registered(connection).agent_id.value;
        Node {
            connection,
            id,
            register,
        }
    }

    fn introduce(&mut self, message: agent_frame::Message) -> ConnectionId {
        let connection = ConnectionId(self.number());
        self.say_on(connection, message);
        connection
    }

    fn registered(&mut self, connection: ConnectionId) -> meseta::Registered {
        let frames = self.take_frames(connection);
        let registered = frames.into_iter().find_map(|frame| match frame {
            master_frame::Message::Registered(registered) => Some(registered),
            _ => None,
        });
        registered.expect("the agent was not registered")
    }

    fn say(&mut self, node: &Node, message: agent_frame::Message) {
        self.say_on(node.connection, message);
    }

    fn say_on(&mut self, connection: ConnectionId, message: agent_frame::Message) {
        self.input(Input::AgentFrame {
            connection,
            message: Box::new(message),
        });
    }

    fn take_frames(&mut self, connection: ConnectionId) -> Vec<master_frame::Message> {
        self.frames.remove(&connection).unwrap_or_default()
    }

    /// The agent comes back on a new connection with these tasks.
    fn reregister(
        &mut self,
        node: &Node,
        tasks: Vec<v1::Task>,
        frameworks: Vec<v1::FrameworkInfo>,
    ) -> Node {
        let connection = self.introduce(agent_frame::Message::Reregister(report(
            node, tasks, frameworks,
        )));
        Node {
            connection,
            ..node.clone()
        }
    }

    /// Says that a task is in a state, with a uuid made of the number.
    fn update(
        &mut self,
        node: &Node,
        scheduler: &Scheduler,
        task: &str,
        state: TaskState,
        uuid: u8,
    ) {
        let status = TaskStatus {
            task_id: v1::TaskId {
                value: task.to_owned(),
            },
            state: state.into(),
            uuid: Some(vec![uuid; 16]),
            timestamp: Some(self.now.unix.as_secs_f64()),
            ..TaskStatus::default()
        };
        self.say(
            node,
            agent_frame::Message::StatusUpdate(meseta::StatusUpdate {
                framework_id: v1::FrameworkId {
                    value: scheduler.id.clone(),
                },
                status,
                latest_state: Some(state.into()),
            }),
        );
    }

    fn acknowledge(&mut self, node: &Node, scheduler: &Scheduler, task: &str, uuid: u8) {
        let action = Action::Acknowledge {
            agent_id: node.id.clone(),
            task_id: task.to_owned(),
            uuid: [uuid; 16],
        };
        assert_eq!(self.call(scheduler, action), Answer::Accepted);
    }

    fn pong(&mut self, node: &Node) {
        for frame in self.take_frames(node.connection) {
            if let master_frame::Message::Ping(ping) = frame {
                let sequence = ping.sequence;
                self.say(node, agent_frame::Message::Pong(meseta::Pong { sequence }));
            }
        }
    }

    /// Lets time pass with these agents answering.
    fn live(&mut self, time: Duration, nodes: &[&Node]) {
        let end = self.now.moment + time;
        while self.now.moment < end {
            self.advance(SECOND);
            for node in nodes {
                self.pong(node);
            }
        }
    }

    /// The master's book and the allocator's agree, and nothing is more than there is.
    fn check(&self) {
        let core = &self.core;
        assert_eq!(core.counters.invariant_violations, 0);
        for agent in core.agents.values() {
            let mut held = (*agent.used).clone();
            let mut of_tasks: BTreeMap<FrameworkId, Resources> = BTreeMap::new();
            for task in agent.tasks.values().filter(|task| !is_terminal(task.state)) {
                *of_tasks.entry(task.framework_id.clone()).or_default() += &task.resources;
            }
            for executor in agent.executors.values() {
                *of_tasks.entry(executor.framework_id.clone()).or_default() += &executor.resources;
            }
            assert_eq!(
                held, of_tasks,
                "what is used is what tasks and executors hold"
            );
            for id in &agent.offers {
                let offer = &core.offers[id];
                assert_eq!(offer.agent_id, *agent.id());
                assert!(core.frameworks[&offer.framework_id].offers.contains(id));
                *held.entry(offer.framework_id.clone()).or_default() += &offer.resources;
            }
            assert_eq!(core.allocator.held(agent.id()), held, "both books agree");
            let all: Resources = held
                .values()
                .map(Resources::unallocate)
                .fold(Resources::new(), |sum, r| sum + r);
            assert_eq!(
                core.allocator.available(agent.id()).unshared() + all.unshared(),
                agent.profile.total.unshared()
            );
            let known = agent.profile.total.shared();
            assert!(
                all.shared()
                    .iter()
                    .all(|volume| known.contains_resource(volume))
            );
            for ((framework, task), record) in agent.tasks.iter() {
                assert_eq!(
                    core.frameworks[framework].tasks.get(task),
                    Some(&record.agent_id)
                );
            }
        }
        for agent in core.agents.values() {
            let is_listed = core.disconnected.contains(agent.id());
            assert_eq!(agent.connection.is_none(), is_listed);
        }
        assert!(core.disconnected.len() <= core.agents.len());
        core.inverse_offers.check(core);
        let offers: usize = core.agents.values().map(|agent| agent.offers.len()).sum();
        assert_eq!(offers, core.offers.len());
        for framework in core.frameworks.values() {
            assert!(framework.connection().is_some() || framework.offers.is_empty());
            for (task, agent) in &framework.tasks {
                assert!(core.agents[agent].task(&framework.id, task).is_some());
            }
        }
    }
}

fn report(
    node: &Node,
    tasks: Vec<v1::Task>,
    frameworks: Vec<v1::FrameworkInfo>,
) -> meseta::Reregister {
    let mut register = node.register.clone();
    register.agent_info.id = Some(v1::AgentId {
        value: node.id.clone(),
    });
    meseta::Reregister {
        register,
        tasks,
        frameworks,
        ..meseta::Reregister::default()
    }
}

/// A task as an agent reports it.
fn running(node: &Node, scheduler: &Scheduler, id: &str, resources: &str, role: &str) -> v1::Task {
    let resources = parse(resources).allocate(&Role::new(role).unwrap());
    v1::Task {
        name: id.to_owned(),
        task_id: v1::TaskId {
            value: id.to_owned(),
        },
        framework_id: v1::FrameworkId {
            value: scheduler.id.clone(),
        },
        agent_id: v1::AgentId {
            value: node.id.clone(),
        },
        state: TaskState::TaskRunning.into(),
        status_update_state: Some(TaskState::TaskRunning.into()),
        resources: to_wire(&resources, Format::PostRefinement),
        ..v1::Task::default()
    }
}

fn states(updates: &[TaskStatus]) -> Vec<TaskState> {
    updates.iter().map(TaskStatus::state).collect()
}

fn kinds(events: &[Event]) -> Vec<event::Type> {
    events.iter().map(Event::r#type).collect()
}

fn total(offers: &[v1::Offer]) -> Resources {
    offers
        .iter()
        .map(|offer| convert::resources(&offer.resources).unwrap().unallocate())
        .fold(Resources::new(), |sum, resources| sum + resources)
}
