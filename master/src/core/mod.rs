//! The master's decisions: a state machine without clock, threads or I/O.
//!
//! Entered through [`MasterCore::step`]: an [`Input`] goes in, [`Effect`]s come out. Registry
//! mutations change the state only when [`Input::Persisted`] says that they are durable; what an
//! agent or scheduler is told follows from that. Invariant: every unit of an agent's resources is
//! either free, in one offer, or held by one task or executor, here and in the allocator alike.

mod accept;
mod actions;
mod adoption;
mod agent;
mod agent_eligibility;
mod agent_frames;
mod agent_info_usage;
mod agent_loss;
mod agent_profile;
mod allocator_adapter;
pub(crate) mod authorization;
mod by_framework;
mod cached_view_map;
pub mod call;
mod config;
mod constraints;
mod counters;
mod deadlines;
mod digest;
mod executor_validation;
mod explain;
mod frame_size;
mod framework;
mod framework_counters;
mod framework_info_usage;
mod group_validation;
mod history;
mod inverse_offers;
mod io;
mod issued_ids;
mod launch;
mod locations;
mod offers;
mod operation;
mod operation_feedback;
mod operation_validation;
mod operations;
mod operator;
mod ownership;
mod part_validation;
mod partial_reregistrations;
mod pending;
mod persisted;
mod reconcile;
mod registration;
mod reported_budget;
mod resource_size;
mod resource_validation;
mod snapshot;
mod status;
mod subscribe;
mod task;
mod task_validation;
mod teardown;
mod ticks;
mod timers;
mod unknown_task_updates;
mod watch;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::Caller;
use meseta_proto::meseta::v1::{MasterFrame, agent_frame, master_frame};
use meseta_proto::mesos::v1::scheduler::{Event, event};
use meseta_resources::time::{Moment, Now};
use meseta_resources::{AgentId, FrameworkId, OfferId, Role};

use agent::Agent;
use agent_info_usage::AgentInfoUsage;
use cached_view_map::CachedViewMap;
use framework::Framework;
use framework_info_usage::FrameworkInfoUsage;
use inverse_offers::InverseOffers;
use locations::Locations;
use ownership::Ownership;
use partial_reregistrations::PartialReregistrations;
use pending::Pending;
use reconcile::{PendingReconcile, UnreadReconciliations};
pub(crate) use reconcile::{READ_AT_ONCE, is_answer};
use timers::{Timer, Timers};

pub use agent::{AgentProfile, RecoveredAgent, UnreachableAgent};
use allocator_adapter::AllocatorError;
pub use by_framework::{ByFramework, FrameworkEntities, StateCounts, TaskStatesByFramework};
pub use config::{AllocatorConfig, Config, HEARTBEAT_INTERVAL, Identity, Memory, QuotaSemantics};
pub use constraints::Constraints;
pub use counters::Counters;
pub(crate) use counters::{operation_state_name, state_name};
pub use digest::{AgentDigest, RoleAmounts};
pub use explain::{Excluded, ExplainQuery};
pub use framework::{Capabilities, Link};
pub use framework_counters::FrameworkCounters;
pub(crate) use framework_counters::operation_name;
pub use inverse_offers::Reply as InverseReply;
pub use io::{Answer, ConnectionId, Effect, Input, Lsn, Output, ReplyId};
pub use offers::Offer;
pub use operation::{OperationRecord, OperationTable, OperationUuid};
pub use operator::{Deactivation, Drain, Maintenance, Request};
pub use persisted::{
    AgentRecord, DeadlineRecord, FrameworkRecord, Mutation, Recovered, UnreachableRecord,
};
use snapshot::CachedSnapshots;
pub use snapshot::{AgentView, FrameworkView, Snapshot};
pub use task::{ExecutorRecord, StatusRecord, TaskRecord, TaskTable, is_terminal};
pub use watch::{OperatorEvent, TaskUser};
use wire::event_of;
pub use wire::{Format, to_wire};

/// Frameworks known at once; a subscription above it is an ERROR event.
pub const FRAMEWORKS_MAX: usize = 100_000;

/// Registry mutations in flight; agents above it are asked to come again.
pub const PENDING_MUTATIONS_MAX: usize = 8_192;

/// The master as a state machine.
#[derive(Debug)]
pub struct MasterCore {
    config: Config,
    epoch: u64,
    started: Duration,
    /// Both clocks in this step.
    now: Now,
    allocator: allocator_adapter::AllocatorAdapter,
    /// Set by whatever frees or adds resources or demand; an allocation ends the step.
    allocate_due: bool,
    weights: BTreeMap<Role, f64>,
    operator: operator::State,

    agents: CachedViewMap<AgentId, Agent, AgentView>,
    locations: Locations,
    agent_connections: BTreeMap<ConnectionId, AgentId>,
    /// Who opened the connections of agents.
    agent_callers: BTreeMap<ConnectionId, Caller>,
    /// Connections of agents whose registration waits for the registry.
    handshakes: BTreeSet<ConnectionId>,
    /// Reregistrations of which only some parts have arrived.
    partial_reregistrations: PartialReregistrations,
    recovered_agents: BTreeMap<AgentId, RecoveredAgent>,
    /// Memory of the agent infos: of registered agents, recovered ones, and those that wait for the registry.
    agent_info_usage: AgentInfoUsage,
    unreachable_agents: BTreeMap<AgentId, UnreachableAgent>,
    /// When each agent was marked gone, since the Unix epoch.
    gone_agents: BTreeMap<AgentId, Duration>,
    /// Agents whose return waits for the registry.
    readmitting: BTreeSet<AgentId>,
    /// Registered agents without a connection.
    disconnected: BTreeSet<AgentId>,
    /// Agents that are about to be marked unreachable; whether they are so many that it may be this master's fault.
    silent: BTreeSet<AgentId>,
    is_suspect: bool,
    /// When the next agent may be marked unreachable.
    next_removal: Moment,
    next_agent: u64,

    frameworks: CachedViewMap<FrameworkId, Framework, FrameworkView>,
    schedulers: BTreeMap<ConnectionId, FrameworkId>,
    ownership: Ownership,
    /// In order, the oldest first.
    completed_frameworks: VecDeque<Arc<FrameworkView>>,
    /// Failover deadlines of disconnected frameworks as stored in the registry, since the Unix epoch.
    deadlines: BTreeMap<FrameworkId, Duration>,
    /// Bytes of completed tasks and frameworks.
    history_bytes: usize,
    /// Memory of the framework infos, by principal.
    framework_info_usage: FrameworkInfoUsage,
    next_framework: u64,

    offers: BTreeMap<OfferId, Arc<Offer>>,
    /// Offers of an agent that is being removed, until their frameworks are told.
    void_offers: Vec<Arc<Offer>>,
    inverse_offers: InverseOffers,
    next_offer: u64,

    /// Operations that their frameworks gave a name, and where they are.
    named_operations: BTreeMap<(FrameworkId, String), (AgentId, OperationUuid)>,
    next_operation: u64,

    pending: VecDeque<(Lsn, Pending)>,
    last_lsn: Lsn,
    durable: Lsn,

    /// Questions about tasks that are still to be answered.
    pending_reconciles: VecDeque<PendingReconcile>,
    /// Those of frameworks that have not read their answers.
    unread_reconciliations: UnreadReconciliations,
    timers: Timers,
    counters: Counters,
    effects: Vec<Effect>,
    /// The number of steps so far.
    sequence: u64,
    /// The last step that may have changed what readers see.
    changed: u64,
    /// A timer of this step may have changed what readers see.
    dirty: bool,
    /// An operator has subscribed to events at least once.
    watched: bool,
    cached_snapshots: CachedSnapshots,
}

impl MasterCore {
    /// A master that begins with what the registry has.
    #[must_use]
    pub fn new(config: Config, recovered: Recovered, now: Now) -> Self {
        let mut weights = config.weights.clone();
        if let Some(stored) = &recovered.weights {
            weights = stored
                .iter()
                .filter_map(|(role, weight)| Some((operator::stored_role(role)?, *weight)))
                .collect();
        }
        let allocator = allocator_adapter::AllocatorAdapter::new(&config, &weights);
        let operator = operator::State::recovered(&recovered, &weights);
        let mut core = Self {
            epoch: recovered.epoch,
            started: now.unix,
            now,
            allocator,
            allocate_due: false,
            weights,
            operator,
            agents: CachedViewMap::default(),
            locations: Locations::default(),
            agent_connections: BTreeMap::new(),
            agent_callers: BTreeMap::new(),
            handshakes: BTreeSet::new(),
            partial_reregistrations: PartialReregistrations::new(
                config.memory.partial_reregistrations,
            ),
            recovered_agents: BTreeMap::new(),
            agent_info_usage: AgentInfoUsage::default(),
            unreachable_agents: BTreeMap::new(),
            gone_agents: BTreeMap::new(),
            readmitting: BTreeSet::new(),
            disconnected: BTreeSet::new(),
            silent: BTreeSet::new(),
            is_suspect: false,
            next_removal: Moment::ORIGIN,
            next_agent: 0,
            frameworks: CachedViewMap::default(),
            schedulers: BTreeMap::new(),
            ownership: Ownership::recovered(&recovered),
            completed_frameworks: VecDeque::new(),
            deadlines: BTreeMap::new(),
            history_bytes: 0,
            framework_info_usage: FrameworkInfoUsage::default(),
            next_framework: 0,
            offers: BTreeMap::new(),
            void_offers: Vec::new(),
            inverse_offers: InverseOffers::default(),
            next_offer: 0,
            named_operations: BTreeMap::new(),
            next_operation: 0,
            pending: VecDeque::new(),
            last_lsn: Lsn::default(),
            durable: Lsn::default(),
            pending_reconciles: VecDeque::new(),
            unread_reconciliations: UnreadReconciliations::default(),
            timers: Timers::new(now.moment),
            counters: Counters::default(),
            effects: Vec::new(),
            sequence: 0,
            changed: 0,
            dirty: false,
            watched: false,
            cached_snapshots: CachedSnapshots::default(),
            config,
        };
        core.recover(recovered);
        core.timers.set(
            now.moment + core.config.allocation_interval,
            Timer::Allocation,
        );
        core.timers.set(
            now.moment + core.config.registry_gc_interval,
            Timer::RegistryGc,
        );
        if !core.recovered_agents.is_empty() {
            core.timers.set(
                now.moment + core.config.agent_reregister_timeout,
                Timer::Reregister,
            );
        }
        core.expect_next_step();
        core
    }

    /// When to step next if nothing happens before; what comes much later comes after a pause.
    #[must_use]
    pub fn next_deadline(&self) -> Moment {
        self.timers.due()
    }

    /// Counts the steps; a snapshot of the same number is the same.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The epoch of the registry that this master leads with.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Takes one input, and all timers that are due, and tells what to do.
    pub fn step(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.apply_input(now, input);
        self.answer_questions();
        self.fire_timers();
        self.check_drains();
        self.allocate_if_due();
        self.finish_step()
    }

    /// The same for one of several inputs that wait: what one cycle of offers can do for all of them is
    /// left to the [`MasterCore::step`] that has to follow.
    pub fn step_in_burst(&mut self, now: Now, input: Input) -> Vec<Effect> {
        self.apply_input(now, input);
        self.check_drains();
        self.finish_step()
    }

    /// Returns the effects of the step, and records whether readers may see a change.
    fn finish_step(&mut self) -> Vec<Effect> {
        if std::mem::take(&mut self.dirty) || !self.effects.iter().all(is_beat) {
            self.changed = self.sequence;
        }
        self.expect_next_step();
        std::mem::take(&mut self.effects)
    }

    fn expect_next_step(&mut self) {
        let at_once = self.allocate_due || !self.pending_reconciles.is_empty();
        self.timers.expect(self.now.moment, at_once);
    }

    fn apply_input(&mut self, now: Now, input: Input) {
        self.now = now;
        if let Some(pause) = self.timers.step(now.moment) {
            tracing::warn!(
                secs = pause.as_secs_f64(),
                "this master did not run; the deadlines of agents and frameworks are put off"
            );
        }
        self.sequence += 1;
        self.cached_snapshots = CachedSnapshots::default();
        self.dirty |= !is_routine(&input);
        self.fire_timers();
        self.dispatch(input);
    }

    fn dispatch(&mut self, input: Input) {
        match input {
            Input::Tick => {}
            Input::Persisted { lsn } => self.persisted(lsn),
            Input::Subscribe {
                connection,
                stream_id,
                call,
                caller,
            } => self.subscribe(connection, stream_id, *call, &caller),
            Input::Call {
                reply,
                framework_id,
                stream_id,
                action,
                caller,
            } => {
                let answer = self.call(&framework_id, stream_id.as_deref(), *action, &caller);
                self.reply(reply, answer);
            }
            Input::SchedulerGone { connection } => self.scheduler_gone(connection),
            Input::AnswersRead {
                connection,
                answers,
            } => self.answers_read(connection, answers),
            Input::AgentFrame {
                connection,
                message,
            } => self.agent_frame(connection, *message),
            Input::AgentGone { connection } => {
                self.agent_callers.remove(&connection);
                self.agent_gone(connection);
            }
            Input::Administer {
                reply,
                request,
                approver,
            } => self.administer(reply, *request, &approver),
            Input::Whitelist { hosts } => self.update_whitelist(hosts.as_deref()),
            Input::Teardown {
                reply,
                framework_id,
            } => {
                let answer = self.operator_teardown(&framework_id);
                self.reply(reply, answer);
            }
            Input::Operate {
                reply,
                agent_id,
                operation,
                principal,
            } => {
                let answer = self.operator_operation(&agent_id, &operation, principal.as_deref());
                self.reply(reply, answer);
            }
        }
    }

    /// The principal that a framework goes by, if there is such a framework and it has one.
    #[must_use]
    pub fn principal_of(&self, framework: &str) -> Option<String> {
        let framework = self.frameworks.get(framework)?;
        framework.terms.info.principal.clone()
    }

    /// Remembers who opened a connection of an agent, until that is gone.
    pub fn agent_connected(&mut self, connection: ConnectionId, caller: Caller) {
        self.agent_callers.insert(connection, caller);
    }

    fn recover(&mut self, recovered: Recovered) {
        for record in recovered.agents {
            match agent_profile::recovered_agent(&record) {
                Ok((id, agent)) => self.expect_agent(id, agent),
                Err(reason) => tracing::error!(
                    agent_id = %record.agent_id.escape_debug(),
                    %reason,
                    "agent in the registry cannot be read and is left out"
                ),
            }
        }
        for record in recovered.unreachable {
            if let Ok(id) = AgentId::new(&record.agent_id) {
                let agent = UnreachableAgent {
                    since: record.since,
                    hostname: record.hostname,
                };
                self.unreachable_agents.insert(id, agent);
            }
        }
        self.deadlines = recovered
            .deadlines
            .iter()
            .filter_map(|record| {
                Some((
                    FrameworkId::new(&record.framework_id).ok()?,
                    record.deadline,
                ))
            })
            .collect();
        self.gone_agents = recovered
            .gone
            .iter()
            .filter_map(|(id, since)| Some((AgentId::new(id).ok()?, *since)))
            .collect();
        for (role, quota) in self.operator.quotas.clone().iter() {
            let updated = self.allocator.update_quota(role, quota);
            self.agreed("recovering a quota", updated);
        }
        self.skip_known_ids();
        self.allocator
            .recover(self.now.moment, self.recovered_agents.len());
    }

    fn persist(&mut self, mutation: Mutation, then: Pending) {
        let lsn = Lsn(self.last_lsn.0 + 1);
        self.last_lsn = lsn;
        self.pending.push_back((lsn, then));
        self.effects.push(Effect::Persist { lsn, mutation });
    }

    fn persisted(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        while let Some((first, _)) = self.pending.front() {
            if *first > lsn {
                break;
            }
            if let Some((_, then)) = self.pending.pop_front() {
                self.take_effect(then);
            }
        }
    }

    fn output(&mut self, output: Output) {
        self.effects.push(Effect::Output {
            after: self.durable,
            output,
        });
    }

    fn reply(&mut self, reply: ReplyId, answer: Answer) {
        if let Answer::BadRequest(_)
        | Answer::Forbidden(_)
        | Answer::NotFound(_)
        | Answer::Conflict(_) = &answer
        {
            self.counters.rejected_calls += 1;
        }
        self.output(Output::Reply { reply, answer });
    }

    /// Sends an event to a framework; drops it if the framework is not connected.
    fn event(&mut self, framework: &FrameworkId, event: Event) {
        let framework = self.frameworks.get_mut(framework);
        let connected = framework.and_then(|framework| Some((framework.connection()?, framework)));
        let Some((to, framework)) = connected else {
            self.counters.dropped_messages += 1;
            return;
        };
        framework.counters().event(event.r#type());
        self.send_event(to, event);
    }

    fn event_to(&mut self, to: ConnectionId, event: Event) {
        let framework = self.schedulers.get(&to);
        if let Some(framework) = framework.and_then(|id| self.frameworks.get_mut(id)) {
            framework.counters().event(event.r#type());
        }
        self.send_event(to, event);
    }

    fn send_event(&mut self, to: ConnectionId, event: Event) {
        self.output(Output::Event {
            to,
            event: Box::new(event),
        });
    }

    /// Sends a frame to an agent; says whether there was a stream to send it on.
    fn frame(&mut self, agent: &AgentId, message: master_frame::Message) -> bool {
        let Some(to) = self.agents.get(agent).and_then(|agent| agent.connection) else {
            self.counters.dropped_messages += 1;
            return false;
        };
        self.frame_to(to, message);
        true
    }

    fn frame_to(&mut self, to: ConnectionId, message: master_frame::Message) {
        let frame = MasterFrame {
            epoch: self.epoch,
            message: Some(message),
        };
        self.output(Output::Frame {
            to,
            frame: Box::new(frame),
        });
    }

    /// Notes that the allocator refused what it should have taken: a defect, never an input.
    fn agreed(&mut self, what: &'static str, result: Result<(), AllocatorError>) {
        if let Err(error) = result {
            self.counters.invariant_violations += 1;
            tracing::error!(%error, "the allocator disagrees: {what}");
        }
    }

    fn allocate_if_due(&mut self) {
        if self.allocate_due {
            self.allocate_due = false;
            self.allocate();
        }
    }
}

/// Whether an input alone changes nothing that readers see.
fn is_routine(input: &Input) -> bool {
    match input {
        Input::Tick | Input::AnswersRead { .. } => true,
        Input::AgentFrame { message, .. } => matches!(**message, agent_frame::Message::Pong(_)),
        _ => false,
    }
}

/// Whether an effect is only a sign of life.
fn is_beat(effect: &Effect) -> bool {
    match effect {
        Effect::Output {
            output: Output::Frame { frame, .. },
            ..
        } => matches!(frame.message, Some(master_frame::Message::Ping(_))),
        Effect::Output {
            output: Output::Event { event, .. },
            ..
        } => event.r#type() == event::Type::Heartbeat,
        Effect::Output { .. } | Effect::Persist { .. } => false,
    }
}

#[cfg(test)]
mod tests;
