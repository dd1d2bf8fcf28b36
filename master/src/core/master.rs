//! The whole state of the master, in one struct.
//!
//! The folders beside this file operate on the state, as `impl MasterCore`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meseta_resources::time::Now;
use meseta_resources::{AgentId, FrameworkId, OfferId};

use super::config::Config;
use super::effect::Effects;
use super::framework_deadlines::FrameworkDeadlines;
use super::ids::ConnectionId;
use super::issued_ids::IssuedIds;
use super::state::absent_agents::AbsentAgents;
use super::state::agent::Agent;
use super::state::agent_connections::AgentConnections;
use super::state::agent_info_usage::AgentInfoUsage;
use super::state::allocator_adapter::AllocatorAdapter;
use super::state::cached_view_map::CachedViewMap;
use super::state::counters::Counters;
use super::state::epochs::Epochs;
use super::state::framework::Framework;
use super::state::framework_info_usage::FrameworkInfoUsage;
use super::state::inverse_offers::InverseOffers;
use super::state::locations::Locations;
use super::state::offer::Offer;
use super::state::operations::Operations;
use super::state::ownership::Ownership;
use super::state::paced_messages::PacedMessages;
use super::state::partial_reregistrations::PartialReregistrations;
use super::state::policies::Policies;
use super::state::reconciliations::Reconciliations;
use super::state::silent_agents::SilentAgents;
use super::timers::Timers;
use super::views::histories::Histories;
use super::views::readers::Readers;
use super::views::snapshot::{AgentView, FrameworkView};

/// The master as a state machine.
#[derive(Debug)]
pub struct MasterCore {
    pub(super) config: Config,
    pub(super) epochs: Epochs,
    pub(super) issued_ids: IssuedIds,
    pub(super) started: Duration,
    /// The time of both clocks in this step.
    pub(super) now: Now,
    pub(super) allocator: AllocatorAdapter,
    /// Set by every change that frees or adds resources or demand; an allocation ends the step.
    pub(super) allocate_due: bool,
    pub(super) policies: Policies,

    pub(super) agents: CachedViewMap<AgentId, Agent, AgentView>,
    pub(super) locations: Locations,
    pub(super) agent_connections: AgentConnections,
    /// Reregistrations that have arrived in part.
    pub(super) partial_reregistrations: PartialReregistrations,
    pub(super) absent_agents: AbsentAgents,
    /// The memory of agent infos: of registered agents, recovered ones, and those that wait for the registry.
    pub(super) agent_info_usage: AgentInfoUsage,
    pub(super) silent_agents: SilentAgents,

    pub(super) frameworks: CachedViewMap<FrameworkId, Framework, FrameworkView>,
    pub(super) schedulers: BTreeMap<ConnectionId, FrameworkId>,
    pub(super) ownership: Ownership,
    pub(super) histories: Histories,
    pub(super) framework_deadlines: FrameworkDeadlines,
    /// The memory of the framework infos, by principal.
    pub(super) framework_info_usage: FrameworkInfoUsage,

    pub(super) offers: BTreeMap<OfferId, Arc<Offer>>,
    pub(super) inverse_offers: InverseOffers,

    pub(super) operations: Operations,

    /// Messages sent in portions.
    pub(super) paced_messages: PacedMessages,
    pub(super) reconciliations: Reconciliations,
    pub(super) timers: Timers,
    pub(super) counters: Counters,
    pub(super) effects: Effects,
    pub(super) readers: Readers,
}
