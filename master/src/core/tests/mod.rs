//! The core in virtual time, with simulated agents and frameworks.

/// The messages of one kind sent on a connection.
macro_rules! taken {
    ($world:expr, $connection:expr, $kind:ident) => {{
        let frames = $world.take_frames($connection).into_iter();
        let of_kind = frames.filter_map(|frame| match frame {
            MasterMessage::$kind(message) => Some(message),
            _ => None,
        });
        of_kind.collect::<Vec<_>>()
    }};
}

/// Whether a message of that kind was sent.
macro_rules! sent {
    ($world:expr, $connection:expr, $kind:ident) => {
        !taken!($world, $connection, $kind).is_empty()
    };
}

mod agents;
mod frameworks;
mod invariants;
mod memory_limits;
mod messages;
mod offers;
mod operations;
mod operator;
mod pauses;
mod properties;
mod registry;
mod simulated_agents;
mod simulated_schedulers;
mod step_cost;
mod tasks;
mod validation;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::Caller;
use meseta_proto::convert;
use meseta_proto::meseta::v1 as meseta;
use meseta_proto::meseta::v1::agent_frame::Message as AgentMessage;
use meseta_proto::meseta::v1::master_frame::Message as MasterMessage;
use meseta_proto::mesos::v1::framework_info::Capability;
use meseta_proto::mesos::v1::framework_info::capability::Type as CapabilityType;
use meseta_proto::mesos::v1::scheduler::{Event, call, event};
use meseta_proto::mesos::v1::{self, TaskState, TaskStatus};
use meseta_resources::time::{Moment, Now};
use meseta_resources::{AgentId, FrameworkId, Resources, Role, TaskId};

use super::call::{Action, Subscribe};
use super::*;
use messages::*;

const SECOND: Duration = Duration::from_secs(1);

/// A master, all its output, and the content of its registry.
struct World {
    core: MasterCore,
    now: Now,
    events: BTreeMap<ConnectionId, Vec<Event>>,
    frames: BTreeMap<ConnectionId, Vec<MasterMessage>>,
    closed: BTreeSet<ConnectionId>,
    answers: BTreeMap<ReplyId, Answer>,
    notes: Vec<OperatorEvent>,
    /// The outcomes of operators' operations.
    outcomes: Vec<(OperationUuid, v1::OperationStatus)>,
    /// The operator's last accepted operation.
    applied: OperationUuid,
    /// Mutations that are not yet durable.
    unwritten: Vec<(Lsn, Mutation)>,
    writes_at_once: bool,
    registry: Recovered,
    next: u64,
    /// Whether each refused call is checked to have changed nothing.
    refusals_change_nothing: bool,
    /// The caller of new frameworks and agents.
    caller: Caller,
}

/// A framework in the tests.
#[derive(Clone)]
struct Scheduler {
    connection: ConnectionId,
    stream: String,
    id: String,
}

/// An agent in the tests.
#[derive(Clone)]
struct Node {
    connection: ConnectionId,
    id: String,
    register: meseta::Register,
}

impl Node {
    fn agent_id(&self) -> AgentId {
        AgentId::new(&self.id).unwrap()
    }
}

impl World {
    fn new() -> Self {
        Self::configured(config())
    }

    fn with_config(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        change(&mut config);
        Self::configured(config)
    }

    /// The first master of its cluster.
    fn configured(config: Config) -> Self {
        let recovered = Recovered {
            epoch: 1,
            ..Recovered::default()
        };
        Self::with(config, recovered)
    }

    fn with(config: Config, recovered: Recovered) -> Self {
        let now = Now {
            moment: Moment::from_nanos(1_000),
            unix: Duration::from_secs(1_800_000_000),
        };
        Self::at(now, config, recovered)
    }

    fn at(now: Now, config: Config, recovered: Recovered) -> Self {
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

    /// Kills the master and starts another from the durable state.
    fn restart(self) -> Self {
        let mut config = config();
        config.identity.id = "m2".to_owned();
        let mut recovered = registry::through_records(self.registry);
        recovered.epoch += 1;
        let mut world = Self::at(self.now, config, recovered);
        world.next = self.next;
        world
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
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
                Effect::Output { after, output } => {
                    let durable = self.unwritten.first().is_none_or(|(lsn, _)| *lsn > after);
                    assert!(durable, "seen before it was durable");
                    self.deliver(output);
                }
            }
        }
    }

    fn deliver(&mut self, output: Output) {
        match output {
            Output::Event { to, event } => self.events.entry(to).or_default().push(*event),
            Output::Frame { to, frame } => {
                assert_eq!(frame.epoch, self.core.epoch());
                let may_be_first = matches!(
                    frame.message,
                    Some(
                        MasterMessage::Registered(_)
                            | MasterMessage::Refused(_)
                            | MasterMessage::Shutdown(_)
                    )
                );
                let cluster = Some(self.registry.cluster_id.as_str());
                let told = cluster.filter(|id| may_be_first && !id.is_empty());
                assert_eq!(frame.cluster_id.as_deref(), told);
                self.frames.entry(to).or_default().extend(frame.message);
            }
            Output::CloseScheduler { connection, .. } | Output::CloseAgent { connection, .. } => {
                self.closed.insert(connection);
            }
            Output::OperatorEvent(note) => self.notes.push(*note),
            Output::OperationTaken { .. } => {}
            Output::OperationFinished { uuid, status, .. } => self.outcomes.push((uuid, *status)),
            Output::Reply { reply, answer } => {
                assert!(
                    self.answers.insert(reply, answer).is_none(),
                    "answered twice"
                );
            }
        }
    }

    /// Makes all pending writes durable.
    fn write(&mut self) {
        let unwritten = std::mem::take(&mut self.unwritten);
        let Some((last, _)) = unwritten.last() else {
            return;
        };
        let last = *last;
        for (_, mutation) in unwritten {
            self.registry.apply(mutation);
        }
        self.input(Input::Persisted { lsn: last });
    }

    /// Advances the time deadline by deadline. No agent answers pings meanwhile.
    fn advance(&mut self, time: Duration) {
        let end = self.now.moment + time;
        while self.core.next_deadline() <= end {
            self.jump(self.core.next_deadline().max(self.now.moment));
            self.input(Input::Tick);
        }
        self.jump(end);
        self.input(Input::Tick);
    }

    /// Stops the master for this time. The step afterwards precedes all input sent meanwhile.
    fn pause(&mut self, time: Duration) {
        self.jump(self.now.moment + time);
        self.input(Input::Tick);
    }

    fn jump(&mut self, to: Moment) {
        self.now.unix += to.saturating_since(self.now.moment);
        self.now.moment = to;
    }
}
