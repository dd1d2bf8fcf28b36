//! Arbitrary sequences of calls, frames and accidents into the master's core.
//!
//! Nothing panics, the master's and the allocator's books agree, and a refused call has changed nothing. Messages are drawn
//! whole from the input, or made to fit the present state.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use meseta_daemon::authentication::Caller;
use meseta_master::core::call::{Action, Checked, Subscribe, check};
use meseta_master::core::{
    Administration, Answer, Config, ConnectionId, Effect, Identity, Input, Lsn, MasterCore, Output,
    Recovered, ReplyId, Request, SubscribeRequest,
};
use meseta_proto::convert::{Format, parse_resources, to_resources};
use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::mesos::v1::scheduler::{self, call};
use meseta_proto::mesos::v1::{self, TaskState};
use meseta_proto::protobuf;
use meseta_resources::Role;
use meseta_resources::time::{Moment, Now};

/// The number of steps of one run: each costs some hundred microseconds at most.
const STEPS_MAX: usize = 200;

/// The number of frameworks and of agents.
const ACTORS: u8 = 4;

/// Takes the input byte by byte; after its end every byte is zero.
struct Source<'a>(&'a [u8]);

impl<'a> Source<'a> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    /// Takes as many bytes as the next byte gives.
    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }
}

/// The connection of a framework or agent, and its id.
#[derive(Clone, Debug, Default)]
struct Actor {
    connection: Option<ConnectionId>,
    id: String,
}

fn connected(all: &mut BTreeMap<u8, Actor>, connection: ConnectionId) -> Option<&mut Actor> {
    all.values_mut()
        .find(|one| one.connection == Some(connection))
}

struct World {
    core: MasterCore,
    now: Now,
    next: u64,
    frameworks: BTreeMap<u8, Actor>,
    agents: BTreeMap<u8, Actor>,
    offers: Vec<v1::Offer>,
    inverse_offers: Vec<v1::InverseOffer>,
    answers: BTreeMap<ReplyId, Answer>,
    unwritten: Option<Lsn>,
}

/// Plays the sequence that the bytes encode.
pub fn master_core(data: &[u8]) {
    let mut source = Source(data);
    let mut world = World::new();
    for _ in 0..STEPS_MAX {
        if source.0.is_empty() {
            break;
        }
        world.run_step(&mut source);
        let counters = &world.core.snapshot().counters;
        assert_eq!(counters.invariant_violations, 0, "the books agree");
    }
}

impl World {
    fn new() -> Self {
        let identity = Identity {
            id: "m".to_owned(),
            hostname: "master.example".to_owned(),
            ip: Ipv4Addr::LOCALHOST.into(),
            port: 5050,
            cluster: None,
            version: "1.12.0".to_owned(),
            build: Default::default(),
            domain: None,
        };
        let now = Now {
            moment: Moment::ORIGIN,
            unix: Duration::from_secs(1_800_000_000),
        };
        Self {
            core: MasterCore::new(Config::new(identity), Recovered::default(), now),
            now,
            next: 0,
            frameworks: BTreeMap::new(),
            agents: BTreeMap::new(),
            offers: Vec::new(),
            inverse_offers: Vec::new(),
            answers: BTreeMap::new(),
            unwritten: None,
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Handles an input, and the registry's answer to the changes that it made durable.
    fn input(&mut self, input: Input) {
        let effects = self.core.step(self.now, input);
        self.record_effects(effects);
        while let Some(lsn) = self.unwritten.take() {
            let effects = self.core.step(self.now, Input::Persisted { lsn });
            self.record_effects(effects);
        }
    }

    fn record_effects(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            let output = match effect {
                Effect::Persist { lsn, .. } => {
                    self.unwritten = Some(lsn);
                    continue;
                }
                Effect::Output { output, .. } => output,
            };
            match output {
                Output::Event { to, event } => self.record_event(to, *event),
                Output::Frame { to, frame } => {
                    if let Some(master_frame::Message::Registered(registered)) = frame.message
                        && let Some(agent) = connected(&mut self.agents, to)
                    {
                        agent.id = registered.agent_id.value;
                    }
                }
                Output::Reply { reply, answer } => {
                    self.answers.insert(reply, answer);
                }
                Output::CloseScheduler { connection, .. } => {
                    if let Some(gone) = connected(&mut self.frameworks, connection) {
                        gone.connection = None;
                    }
                }
                Output::CloseAgent { connection, .. } => {
                    if let Some(gone) = connected(&mut self.agents, connection) {
                        gone.connection = None;
                    }
                }
                Output::OperatorEvent(_)
                | Output::OperationTaken { .. }
                | Output::OperationFinished { .. } => {}
            }
        }
    }

    fn record_event(&mut self, to: ConnectionId, event: scheduler::Event) {
        const KEPT_MAX: usize = 32;
        if let Some(subscribed) = event.subscribed
            && let Some(framework) = connected(&mut self.frameworks, to)
        {
            framework.id = subscribed.framework_id.value;
        }
        self.offers
            .extend(event.offers.into_iter().flat_map(|event| event.offers));
        let asked = event.inverse_offers.into_iter();
        self.inverse_offers
            .extend(asked.flat_map(|event| event.inverse_offers));
        let surplus = self.offers.len().saturating_sub(KEPT_MAX);
        self.offers.drain(..surplus);
        let surplus = self.inverse_offers.len().saturating_sub(KEPT_MAX);
        self.inverse_offers.drain(..surplus);
    }

    fn run_step(&mut self, source: &mut Source<'_>) {
        match source.byte() % 16 {
            0 => self.register(source.byte()),
            1 => self.subscribe(source.byte(), None),
            2 => self.lose_agent(source.byte()),
            3 => self.lose_framework(source.byte()),
            4 => self.accept(source),
            5 => self.update(source),
            6 => self.acknowledge(source),
            7 => self.reconcile(source.byte()),
            8 => self.decline(source),
            9 => self.act(source.byte(), Action::Teardown),
            10 => self.roles(source),
            11 => self.maintain(source.byte()),
            12 => {
                self.now.moment += Duration::from_secs(source.byte().into());
                self.input(Input::Tick);
            }
            13 => self.answer_inverse(source),
            14 => self.drawn_call(source),
            _ => self.drawn_frame(source),
        }
    }

    fn register(&mut self, who: u8) {
        let who = who % ACTORS;
        let connection = ConnectionId(self.number());
        let known = self.agents.get(&who).map(|agent| agent.id.clone());
        let resources = parse_resources("cpus:4;mem:512;ports:[1-9];disk:64", &Role::star());
        let resources = resources.expect("resources");
        let mut register = meseta::Register {
            agent_info: v1::AgentInfo {
                hostname: "node.example".to_owned(),
                port: Some(i32::from(who)),
                resources: to_resources(&resources, Format::PostRefinement).expect("resources"),
                ..v1::AgentInfo::default()
            },
            version: "0.1.0".to_owned(),
            ..meseta::Register::default()
        };
        let message = match known.filter(|id| !id.is_empty()) {
            Some(id) => {
                register.agent_info.id = Some(v1::AgentId { value: id });
                agent_frame::Message::Reregister(meseta::Reregister {
                    register,
                    ..meseta::Reregister::default()
                })
            }
            None => agent_frame::Message::Register(register),
        };
        self.agents.entry(who).or_default().connection = Some(connection);
        self.input(Input::AgentFrame {
            connection,
            message: Box::new(message),
        });
    }

    fn subscribe(&mut self, who: u8, call: Option<Box<Subscribe>>) {
        let role = ["a", "b", "a/c"][usize::from(who % 3)];
        let who = who % ACTORS;
        let connection = ConnectionId(self.number());
        let known = self.frameworks.entry(who).or_default();
        known.connection = Some(connection);
        let id = Some(known.id.clone()).filter(|id| !id.is_empty());
        let call = call.unwrap_or_else(|| {
            let kinds = [
                v1::framework_info::capability::Type::MultiRole,
                v1::framework_info::capability::Type::PartitionAware,
            ];
            Box::new(Subscribe {
                info: v1::FrameworkInfo {
                    user: "u".to_owned(),
                    name: "f".to_owned(),
                    id: id.map(|value| v1::FrameworkId { value }),
                    roles: vec![role.to_owned()],
                    failover_timeout: Some(30.0),
                    capabilities: kinds
                        .map(|kind| v1::framework_info::Capability {
                            r#type: Some(kind.into()),
                        })
                        .to_vec(),
                    ..v1::FrameworkInfo::default()
                },
                suppressed_roles: Vec::new(),
                offer_constraints: None,
            })
        });
        self.input(Input::Subscribe(SubscribeRequest {
            connection,
            stream_id: connection.to_string(),
            call,
            caller: Caller::default(),
        }));
    }

    fn lose_agent(&mut self, who: u8) {
        let agent = self.agents.get(&(who % ACTORS));
        if let Some(connection) = agent.and_then(|agent| agent.connection) {
            self.input(Input::AgentGone { connection });
        }
    }

    fn lose_framework(&mut self, who: u8) {
        let framework = self.frameworks.get(&(who % ACTORS));
        if let Some(connection) = framework.and_then(|framework| framework.connection) {
            self.input(Input::SchedulerGone { connection });
        }
    }

    /// Makes a call of a framework; a refused call must have changed nothing.
    fn act(&mut self, who: u8, action: Action) {
        let Some(framework) = self.frameworks.get(&(who % ACTORS)).cloned() else {
            return;
        };
        let stream_id = framework
            .connection
            .map(|connection| connection.to_string());
        self.input(Input::Tick);
        let before = self.digest();
        let answer = self.ask(Request::Call {
            framework_id: framework.id,
            stream_id,
            action: Box::new(action),
            caller: Caller::default(),
        });
        if !matches!(answer, Answer::Accepted | Answer::Done) {
            assert_eq!(before, self.digest(), "refused: {answer:?}");
        }
    }

    /// All observable state except counters.
    fn digest(&mut self) -> String {
        let snapshot = self.core.snapshot();
        format!(
            "{:?}",
            (
                &snapshot.agents,
                &snapshot.unreachable_agents,
                &snapshot.frameworks,
                &snapshot.completed_frameworks,
                &snapshot.offers,
                &snapshot.maintenance,
            )
        )
    }

    fn accept(&mut self, source: &mut Source<'_>) {
        let (who, which, name) = (source.byte(), source.byte(), source.byte());
        let count = self.offers.len().max(1);
        let Some(offer) = self.offers.get(usize::from(which) % count).cloned() else {
            return;
        };
        let texts = [
            "cpus:1;mem:32;ports:[1-2]",
            "cpus:0.3;mem:16",
            "cpus:9",
            "disk:1",
        ];
        let text = texts[usize::from(name / 16) % texts.len()];
        let resources = parse_resources(text, &Role::star()).expect("resources");
        let task = v1::TaskInfo {
            name: "t".to_owned(),
            task_id: task_id(name),
            agent_id: offer.agent_id.clone(),
            resources: to_resources(&resources, Format::PostRefinement).expect("resources"),
            command: Some(v1::CommandInfo::default()),
            ..v1::TaskInfo::default()
        };
        let operation = v1::offer::Operation {
            r#type: Some(v1::offer::operation::Type::Launch.into()),
            launch: Some(v1::offer::operation::Launch {
                task_infos: vec![task; usize::from(name % 3)],
            }),
            ..v1::offer::Operation::default()
        };
        let accept = call::Accept {
            offer_ids: vec![offer.id],
            operations: vec![operation],
            filters: None,
        };
        self.act(who, Action::Accept(accept));
    }

    fn decline(&mut self, source: &mut Source<'_>) {
        let (who, seconds) = (source.byte(), source.byte());
        let decline = call::Decline {
            offer_ids: self.offers.drain(..).map(|offer| offer.id).collect(),
            filters: Some(v1::Filters {
                refuse_seconds: Some(f64::from(seconds) - 1.0),
            }),
        };
        self.act(who, Action::Decline(decline));
    }

    fn update(&mut self, source: &mut Source<'_>) {
        let (agent, framework, which) = (source.byte(), source.byte(), source.byte());
        let states = [
            TaskState::TaskStarting,
            TaskState::TaskRunning,
            TaskState::TaskFinished,
            TaskState::TaskFailed,
        ];
        let state = states[usize::from(which) % states.len()];
        let players = (
            self.agents.get(&(agent % ACTORS)),
            self.frameworks.get(&(framework % ACTORS)),
        );
        let (Some(agent), Some(framework)) = players else {
            return;
        };
        let Some(connection) = agent.connection else {
            return;
        };
        let status = v1::TaskStatus {
            task_id: task_id(which / 4),
            state: state.into(),
            uuid: Some(vec![which % 4; 16]),
            ..v1::TaskStatus::default()
        };
        let update = meseta::StatusUpdate {
            framework_id: v1::FrameworkId {
                value: framework.id.clone(),
            },
            status,
            latest_state: Some(state.into()),
        };
        self.input(Input::AgentFrame {
            connection,
            message: Box::new(agent_frame::Message::StatusUpdate(update)),
        });
    }

    fn acknowledge(&mut self, source: &mut Source<'_>) {
        let (who, agent, which) = (source.byte(), source.byte(), source.byte());
        let Some(agent) = self.agents.get(&(agent % ACTORS)) else {
            return;
        };
        let action = Action::Acknowledge {
            agent_id: agent.id.clone(),
            task_id: task_id(which / 4).value,
            uuid: [which % 4; 16],
        };
        self.act(who, action);
    }

    fn reconcile(&mut self, who: u8) {
        self.act(who, Action::Reconcile(call::Reconcile::default()));
        let tasks = (0..4)
            .map(|name| call::reconcile::Task {
                task_id: task_id(name),
                agent_id: None,
            })
            .collect();
        self.act(who, Action::Reconcile(call::Reconcile { tasks }));
    }

    fn roles(&mut self, source: &mut Source<'_>) {
        let (who, which) = (source.byte(), source.byte());
        let roles = match which % 4 {
            0 => Vec::new(),
            1 => vec!["a".to_owned()],
            2 => vec!["..".to_owned()],
            _ => vec![String::from_utf8_lossy(source.bytes()).into_owned()],
        };
        let action = if which / 4 % 2 == 0 {
            Action::Revive { roles }
        } else {
            Action::Suppress { roles }
        };
        self.act(who, action);
    }

    fn maintain(&mut self, how: u8) {
        let machine_ids = vec![v1::MachineId {
            hostname: Some("node.example".to_owned()),
            ip: None,
        }];
        let window = Window {
            machine_ids: machine_ids.clone(),
            unavailability: v1::Unavailability {
                start: v1::TimeInfo {
                    nanoseconds: i64::from(how),
                },
                duration: None,
            },
        };
        let schedule = |windows| Administration::UpdateSchedule(Box::new(Schedule { windows }));
        let request = match how % 8 {
            0 | 1 => schedule(vec![window]),
            2 | 3 => Administration::AddWindow(Box::new(window)),
            4 | 5 => schedule(Vec::new()),
            6 => Administration::StartMaintenance(machine_ids),
            _ => Administration::StopMaintenance(machine_ids),
        };
        self.ask(Request::Administer {
            administration: Box::new(request),
            approver: Caller::default().approver,
        });
    }

    /// Makes a request; every request gets an answer.
    fn ask(&mut self, request: Request) -> Answer {
        let reply = ReplyId(self.number());
        self.input(Input::Request { reply, request });
        self.answers
            .remove(&reply)
            .expect("every request is answered")
    }

    fn answer_inverse(&mut self, source: &mut Source<'_>) {
        let (who, how) = (source.byte(), source.byte());
        let offers = self.inverse_offers.iter();
        let inverse_offer_ids = offers.map(|offer| offer.id.clone()).collect();
        let filters = Some(v1::Filters {
            refuse_seconds: Some(f64::from(how)),
        });
        let mut message = scheduler::Call {
            framework_id: Some(v1::FrameworkId::default()),
            r#type: Some(call::Type::AcceptInverseOffers.into()),
            accept_inverse_offers: Some(call::AcceptInverseOffers {
                inverse_offer_ids,
                filters,
            }),
            ..scheduler::Call::default()
        };
        if how % 2 == 1
            && let Some(accept) = message.accept_inverse_offers.take()
        {
            message.r#type = Some(call::Type::DeclineInverseOffers.into());
            message.decline_inverse_offers = Some(call::DeclineInverseOffers {
                inverse_offer_ids: accept.inverse_offer_ids,
                filters: accept.filters,
            });
        }
        if let Ok(Checked::Other { action, .. }) = check(message) {
            self.act(who, *action);
        }
    }

    /// Makes any decodable call that is valid in itself.
    fn drawn_call(&mut self, source: &mut Source<'_>) {
        let who = source.byte();
        let Ok(message) = protobuf::from_slice::<scheduler::Call>(source.bytes()) else {
            return;
        };
        match check(message) {
            Ok(Checked::Other { action, .. }) => self.act(who, *action),
            Ok(Checked::Subscribe(call)) => self.subscribe(who, Some(call)),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }

    /// Sends any decodable frame, of a registered agent or a new one. The master trusts an agent's statements about itself, so
    /// only statements about others are drawn.
    fn drawn_frame(&mut self, source: &mut Source<'_>) {
        let who = source.byte();
        let Ok(frame) = protobuf::from_slice::<meseta::AgentFrame>(source.bytes()) else {
            return;
        };
        let Some(message) = frame.message else { return };
        let agent = self.agents.get(&(who % ACTORS));
        let connection = agent.and_then(|agent| agent.connection);
        let connection = match connection {
            Some(connection) => connection,
            None => ConnectionId(self.number()),
        };
        self.input(Input::AgentFrame {
            connection,
            message: Box::new(message),
        });
    }
}

fn task_id(name: u8) -> v1::TaskId {
    v1::TaskId {
        value: format!("t{}", name % 8),
    }
}
