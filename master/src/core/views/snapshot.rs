//! The master's state at one moment, for readers.
//!
//! Entered through [`MasterCore::snapshot`](crate::core::MasterCore::snapshot). A snapshot shares the tables of tasks
//! without copying them; the core copies a table on its next write. Views of agents and frameworks stay until these
//! change, so that the cost of a snapshot follows the changes since the last. Readers render it elsewhere, and never
//! delay the core.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use meseta_access::Approver;
use meseta_allocator::Quota;
use meseta_proto::mesos::v1::{self, AgentInfo, FrameworkInfo};
use meseta_resources::{AgentId, ExecutorId, FrameworkId, HostPort, OfferId, Resources, Role};

use super::by_framework::{ByFramework, TaskStatesByFramework};
use super::digest::AgentDigest;
use crate::core::config;
use crate::core::config::{Identity, QuotaSemantics};
use crate::core::state::agent::{Agent, AgentProfile, UnreachableAgent};
use crate::core::state::cached_view_map::View;
use crate::core::state::constraints::Constraints;
use crate::core::state::counters::Counters;
use crate::core::state::deactivation::Deactivation;
use crate::core::state::framework::{Capabilities, Framework, Link};
use crate::core::state::framework_counters::FrameworkCounters;
use crate::core::state::inverse_offers::{InverseOffer, Reply as InverseReply};
use crate::core::state::maintenance::Maintenance;
use crate::core::state::offer::Offer;
use crate::core::state::operation::OperationTable;
use crate::core::state::policies::Policies;
use crate::core::state::task::{ExecutorRecord, TaskRecord, TaskTable};

/// The state that readers see, at one step.
#[derive(Debug)]
pub struct Snapshot {
    /// The reader's rights; hidden objects are left out.
    pub viewer: Approver,
    /// The core's step with this result.
    pub sequence: u64,
    /// The last step that may have changed anything except counters: another snapshot of this master with the same
    /// number shows the same.
    pub changed: u64,
    pub epoch: u64,
    pub identity: Identity,
    /// The start time of this master, since the Unix epoch.
    pub started: Duration,
    /// The time of this snapshot.
    pub taken: Duration,
    /// The agents, ordered by id.
    pub agents: Arc<Vec<Arc<AgentView>>>,
    /// Agents of the registry that have not come back.
    pub recovered_agents: Vec<(AgentId, Arc<AgentInfo>)>,
    pub unreachable_agents: Vec<(AgentId, UnreachableAgent)>,
    /// Agents that were marked gone, with the times.
    pub gone_agents: Vec<(AgentId, Duration)>,
    pub frameworks: Arc<Vec<Arc<FrameworkView>>>,
    pub completed_frameworks: Vec<Arc<FrameworkView>>,
    pub offers: Vec<Arc<Offer>>,
    /// The inverse offers, ordered by id.
    pub inverse_offers: Arc<Vec<Arc<InverseOffer>>>,
    pub weights: BTreeMap<Role, f64>,
    pub quotas: Arc<BTreeMap<Role, Quota>>,
    pub maintenance: Arc<Maintenance>,
    pub quota_semantics: QuotaSemantics,
    /// The state of recovery mode while offers wait for agents after a restart.
    pub recovery_mode: Option<RecoveryMode>,
    pub whitelisted_roles: Option<BTreeSet<Role>>,
    pub counters: Counters,
    /// The number of registry mutations that are not durable yet.
    pub pending_mutations: usize,
    /// The derived views, shared by snapshots of the same agents and offers.
    pub(crate) derived: Arc<DerivedViews>,
}

/// The numbers of agents that offers wait for after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecoveryMode {
    /// The number of known agents that are not back.
    pub awaited: usize,
    /// The number of known agents that still have to come back before offers are made.
    pub missing: usize,
}

/// Views derived from a snapshot for their first reader, and kept for later readers.
#[derive(Debug, Default)]
pub(crate) struct DerivedViews {
    by_framework: OnceLock<ByFramework>,
    states: OnceLock<TaskStatesByFramework>,
}

impl Snapshot {
    /// The objects of each framework. The first call is slow.
    pub fn by_framework(&self) -> &ByFramework {
        let sorted = &self.derived.by_framework;
        sorted.get_or_init(|| ByFramework::from_snapshot(self))
    }

    /// The states of each framework's tasks: much faster to compute than the tasks themselves.
    pub fn states(&self) -> &TaskStatesByFramework {
        let counted = &self.derived.states;
        counted.get_or_init(|| TaskStatesByFramework::from_snapshot(self))
    }
}

/// An agent at the moment of the snapshot.
#[derive(Clone, Debug)]
pub struct AgentView {
    pub profile: Arc<AgentProfile>,
    pub connected: bool,
    /// The deactivation, if an operator gives the agent no more work.
    pub deactivation: Option<Deactivation>,
    pub registered: Duration,
    pub reregistered: Option<Duration>,
    pub tasks: TaskTable,
    pub executors: Arc<BTreeMap<(FrameworkId, ExecutorId), Arc<ExecutorRecord>>>,
    pub operations: OperationTable,
    /// The resources of tasks and executors, by framework.
    pub used: Arc<BTreeMap<FrameworkId, Resources>>,
    pub offered: Resources,
    /// The answers of frameworks to the agent's planned maintenance.
    pub inverse_replies: BTreeMap<FrameworkId, InverseReply>,
    /// The sums of the agent, cached as long as this view exists.
    pub(crate) digest: AgentDigest,
}

impl AgentView {
    /// Whether the agent is connected and may be offered.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.connected && self.deactivation.is_none()
    }

    #[must_use]
    pub fn id(&self) -> &AgentId {
        &self.profile.id
    }
}

impl View for AgentView {
    type Key = AgentId;
    fn key(&self) -> &AgentId {
        self.id()
    }
}

impl View for FrameworkView {
    type Key = FrameworkId;
    fn key(&self) -> &FrameworkId {
        &self.id
    }
}

/// A framework at the moment of the snapshot. The agents have its tasks.
#[derive(Clone, Debug)]
pub struct FrameworkView {
    pub id: FrameworkId,
    pub info: Arc<FrameworkInfo>,
    pub capabilities: Capabilities,
    pub roles: BTreeSet<Role>,
    pub suppressed: BTreeSet<Role>,
    pub offer_constraints: Option<Arc<Constraints>>,
    pub active: bool,
    pub connected: bool,
    pub recovered: bool,
    pub registered: Duration,
    pub reregistered: Option<Duration>,
    pub unregistered: Option<Duration>,
    pub completed: Arc<VecDeque<Arc<TaskRecord>>>,
    pub unreachable: Arc<VecDeque<Arc<TaskRecord>>>,
    pub counters: Arc<FrameworkCounters>,
}

impl FrameworkView {
    pub(in crate::core) fn from_framework(framework: &Framework, is_completed: bool) -> Self {
        let connected = !is_completed && framework.connection().is_some();
        Self {
            id: framework.id.clone(),
            info: framework.terms.info.clone(),
            capabilities: framework.terms.capabilities,
            roles: framework.terms.roles.clone(),
            suppressed: framework.terms.suppressed.clone(),
            offer_constraints: framework.terms.offer_constraints.clone(),
            active: connected,
            connected,
            recovered: !is_completed && framework.link == Link::Recovered,
            registered: framework.registered,
            reregistered: framework.reregistered,
            unregistered: framework.unregistered,
            completed: framework.completed.tasks().clone(),
            unreachable: framework.unreachable.tasks().clone(),
            counters: framework.counters.clone(),
        }
    }
}

/// Builds the view of an agent. Every change of data used here has to touch the agent's entry.
pub(in crate::core) fn view(
    agent: &Agent,
    offers: &BTreeMap<OfferId, Arc<Offer>>,
    policies: &Policies,
) -> AgentView {
    AgentView {
        profile: agent.profile.clone(),
        connected: agent.connection.is_some(),
        deactivation: policies.deactivation(agent.id()).cloned(),
        registered: agent.registered,
        reregistered: agent.reregistered,
        tasks: agent.tasks.clone(),
        executors: agent.executors.clone(),
        operations: agent.operations.clone(),
        used: agent.used.clone(),
        offered: agent
            .offers
            .iter()
            .filter_map(|id| offers.get(id))
            .map(|offer| &offer.resources)
            .sum(),
        inverse_replies: agent.inverse_replies.clone(),
        digest: AgentDigest::default(),
    }
}

impl config::Identity {
    /// The process id of this master in the form of Mesos.
    #[must_use]
    pub fn pid(&self) -> String {
        let address = HostPort::new(self.ip.to_string(), self.port);
        format!("master@{address}")
    }

    /// The address at which others reach this master: a hostname and a port.
    #[must_use]
    pub fn address(&self) -> String {
        HostPort::new(self.hostname.as_str(), self.port).to_string()
    }

    /// The address in Mesos's format: four bytes in network order, read as a number. An IPv6 address does not fit; it
    /// becomes 0, so that no client connects to another host's address.
    fn ip_number(&self) -> u32 {
        match self.ip {
            IpAddr::V4(ip) => u32::from_le_bytes(ip.octets()),
            IpAddr::V6(_) => 0,
        }
    }

    /// The master's info in the form for clients.
    #[must_use]
    pub fn to_wire(&self) -> v1::MasterInfo {
        use v1::master_info::Capability;
        use v1::master_info::capability::Type;
        v1::MasterInfo {
            id: self.id.clone(),
            ip: self.ip_number(),
            port: u32::from(self.port),
            pid: Some(self.pid()),
            hostname: Some(self.hostname.clone()),
            version: Some(self.version.clone()),
            address: Some(v1::Address {
                hostname: Some(self.hostname.clone()),
                ip: Some(self.ip.to_string()),
                port: i32::from(self.port),
            }),
            domain: self.domain.clone(),
            capabilities: [Type::AgentUpdate, Type::AgentDraining, Type::QuotaV2]
                .map(|kind| Capability {
                    r#type: Some(kind.into()),
                })
                .to_vec(),
        }
    }
}
