//! The master's decisions: a state machine without clock, threads or I/O.
//!
//! Entered through [`MasterCore::step`]: an [`Input`] goes in, [`Effect`]s come out. Registry
//! mutations change the state only when [`Input::Persisted`] says that they are durable; what an
//! agent or scheduler is told follows from that. Invariant: every unit of an agent's resources is
//! either free, in one offer, or held by one task or executor, here and in the allocator alike.
//!
//! - `config`: what the core is told once, at its start
//! - `ids`: numbers of connections, replies and registry writes; `issued_ids`: those of agents and frameworks
//! - `input`, `effect`: what goes in and what comes out; `step`: one turn from the one to the other
//! - `timers`, `ticks`: deadlines, and what is done when they have come
//! - `pending`: what happens once a mutation is durable
//! - `wire`: resources and events between messages and the vocabulary
//! - `authorization`: who may do what to the cluster
//! - `state/`: what the core keeps, and the views and snapshots of it
//! - `validation/`: whether calls, tasks, executors and operations make sense
//! - `agents/`: how agents come, report, come back and are lost
//! - `frameworks/`: subscriptions, calls, ownership of ids, and the end of frameworks
//! - `tasks/`: statuses, reconciliation and history of tasks
//! - `offers/`: offers and inverse offers, made, accepted and taken back
//! - `operations/`: reservations and volumes, and what becomes of operations
//! - `operator/`: what operators ask for, and what they are told

mod agents;
pub(crate) mod authorization;
mod config;
mod effect;
mod frameworks;
mod ids;
mod input;
mod issued_ids;
mod offers;
mod operations;
mod operator;
mod pending;
mod state;
mod step;
mod tasks;
mod ticks;
mod timers;
mod validation;
mod wire;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::Caller;
use meseta_resources::time::{Moment, Now};
use meseta_resources::{AgentId, FrameworkId, OfferId, Role};

use agents::info_usage::AgentInfoUsage;
use agents::locations::Locations;
use agents::partial_reregistrations::PartialReregistrations;
use frameworks::info_usage::FrameworkInfoUsage;
use frameworks::ownership::Ownership;
use offers::allocator_adapter::AllocatorAdapter;
use offers::inverse::InverseOffers;
use pending::Pending;
use state::agent::Agent;
use state::cached_view_map::CachedViewMap;
use state::framework::Framework;
use state::snapshot::CachedSnapshots;
use tasks::reconciliation::{PendingReconcile, UnreadReconciliations};
use timers::{Timer, Timers};

pub use config::{AllocatorConfig, Config, HEARTBEAT_INTERVAL, Identity, Memory, QuotaSemantics};
pub use effect::{Answer, Effect, Output};
pub use ids::{ConnectionId, Lsn, ReplyId};
pub use input::Input;
pub use offers::explain::{Excluded, ExplainQuery};
pub use offers::inverse::Reply as InverseReply;
pub use offers::outstanding::Offer;
pub use operator::watch::{OperatorEvent, TaskUser};
pub use operator::{Deactivation, Drain, Maintenance, Request};
pub use state::agent::{AgentProfile, RecoveredAgent, UnreachableAgent};
pub use state::by_framework::{ByFramework, FrameworkEntities, StateCounts, TaskStatesByFramework};
pub use state::constraints::Constraints;
pub use state::counters::Counters;
pub(crate) use state::counters::{operation_state_name, state_name};
pub use state::digest::{AgentDigest, RoleAmounts};
pub use state::framework::{Capabilities, Link};
pub use state::framework_counters::FrameworkCounters;
pub(crate) use state::framework_counters::operation_name;
pub use state::operation::{OperationRecord, OperationTable, OperationUuid};
pub use state::persisted::{
    AgentRecord, DeadlineRecord, FrameworkRecord, Mutation, Recovered, UnreachableRecord,
};
pub use state::snapshot::{AgentView, FrameworkView, Snapshot};
pub use state::task::{ExecutorRecord, StatusRecord, TaskRecord, TaskTable, is_terminal};
pub(crate) use tasks::reconciliation::{READ_AT_ONCE, is_answer};
pub use validation::call;
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
    allocator: AllocatorAdapter,
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
        let allocator = AllocatorAdapter::new(&config, &weights);
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

    fn recover(&mut self, recovered: Recovered) {
        for record in recovered.agents {
            match agents::profile::recovered_agent(&record) {
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
}

#[cfg(test)]
mod tests;
