//! The configuration that the core gets once, at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use meseta_allocator::SorterKind;
use meseta_daemon::build_info::BuildInfo;
use meseta_proto::mesos::v1::DomainInfo;
use meseta_resources::{ResourceName, ResourceQuantities, Role};

/// The interval between heartbeats to a subscribed scheduler; the default of Mesos.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// The number of known frameworks; a subscription beyond it gets an ERROR event.
pub const FRAMEWORKS_MAX: usize = 100_000;

/// The number of registry mutations in flight; agents beyond it have to retry later.
pub const PENDING_MUTATIONS_MAX: usize = 8_192;

/// In which frameworks are expected to come back to a new master. Until then, it waits for their acknowledgements.
pub(super) const FRAMEWORK_RETURN_TIME: Duration = Duration::from_secs(60);

/// The time in which an agent with a lost connection reconnects: it waits up to 15 s between two tries, and a connect
/// takes up to 10 s.
const RECONNECT_TIME: Duration = Duration::from_secs(30);

/// The identity of this master.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A new UUID for every start; the prefix of the ids of frameworks, agents and offers.
    pub id: String,
    pub hostname: String,
    /// The address at which others reach this master.
    pub ip: IpAddr,
    pub port: u16,
    pub cluster: Option<String>,
    /// The version with digits and dots only, because clients parse it as numbers.
    pub version: String,
    /// The build of the program, for `/version` and `/state`.
    pub build: BuildInfo,
    pub domain: Option<DomainInfo>,
}

/// The semantics of a quota set by the legacy call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaSemantics {
    /// Once the guarantee is met, the role gets no more resources of any name; `*` cannot have quota; static
    /// reservations do not count as capacity.
    #[default]
    Seed,
    /// As in Mesos 1.12: the guarantee is also the limit of the named resources.
    Head,
}

/// The limits in bytes of the core's memory, by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Records of ended and unreachable tasks of one framework.
    pub history_per_framework: usize,
    /// Records of the tasks of all frameworks, and the infos of ended frameworks.
    pub history: usize,
    /// A framework's info, which goes to every agent with each of its tasks.
    pub info: usize,
    /// A framework's offer constraints.
    pub constraints: usize,
    /// The infos and offer constraints of all frameworks together.
    pub terms: usize,
    /// The description of one agent, without its reservations and volumes.
    pub agent_info: usize,
    /// The descriptions of all agents.
    pub agents: usize,
    /// The parts of incomplete reregistrations.
    pub partial_reregistrations: usize,
    /// The tasks and executors reported by reregistering agents of one host that this master did not launch.
    pub reported: usize,
    /// The unacknowledged operations on all agents.
    pub operations: usize,
    /// The offers sent to one framework in one cycle, encoded.
    pub offers: usize,
    /// The framework infos sent to agents between two allocation ticks: a sixteenth of the queues of all agents,
    /// where an info counts twice.
    pub infos_per_tick: usize,
    /// The FAILURE events sent to all schedulers between two ticks: a tenth of their queues.
    pub failures_per_tick: usize,
    /// The inverse offers sent to all schedulers between two ticks: a tenth of their queues, and a third of the queue
    /// of one.
    pub inverse_offers_per_tick: usize,
    /// The launches of one ACCEPT, in the form sent to the agent: half of the queue of one agent.
    pub launches_per_accept: usize,
    /// The tasks named by one framework in unanswered reconciliation requests.
    pub questions_per_framework: usize,
}

impl Memory {
    /// Divides the total into parts.
    #[must_use]
    pub const fn from_total_bytes(total_bytes: usize) -> Self {
        Self {
            history_per_framework: total_bytes / 64,
            history: total_bytes / 32 * 3,
            info: total_bytes / 4_096,
            constraints: total_bytes / 256,
            terms: total_bytes / 32,
            agent_info: total_bytes / 4_096,
            agents: total_bytes / 32,
            partial_reregistrations: total_bytes / 8,
            reported: at_least(total_bytes / 32, REPORTED_BYTES_MIN),
            operations: total_bytes / 32,
            offers: total_bytes / 256,
            infos_per_tick: total_bytes / 512,
            failures_per_tick: at_least(total_bytes / 200_000, 100),
            inverse_offers_per_tick: total_bytes / 100_000,
            launches_per_accept: total_bytes / 256,
            questions_per_framework: total_bytes / 16,
        }
    }
}

/// The memory for about a thousand ordinary tasks, whatever the budget.
const REPORTED_BYTES_MIN: usize = 16 << 20;

const fn at_least(bytes: usize, min: usize) -> usize {
    if bytes < min { min } else { bytes }
}

/// The default memory budget.
const MEMORY_BUDGET_DEFAULT: usize = 4 << 30;

#[derive(Clone, Debug)]
pub struct Config {
    pub identity: Identity,
    pub allocation_interval: Duration,
    pub agent_ping_timeout: Duration,
    pub max_agent_ping_timeouts: u32,
    pub agent_reregister_timeout: Duration,
    /// The shortest time between two agents that are marked unreachable; zero for no limit.
    pub agent_removal_interval: Duration,
    /// The percentage of missing agents up to which silent agents may be marked unreachable.
    pub agent_removal_percent: u32,
    pub offer_timeout: Option<Duration>,
    pub max_completed_frameworks: usize,
    pub max_completed_tasks_per_framework: usize,
    pub max_unreachable_tasks_per_framework: usize,
    pub registry_max_agent_age: Duration,
    pub registry_max_agent_count: usize,
    pub registry_gc_interval: Duration,
    /// The limit by which agents may raise the registry's epoch during the life of this master.
    pub registry_epoch_rise_max: u64,
    /// The memory limits in bytes.
    pub memory: Memory,
    pub root_submissions: bool,
    /// Whether agents must report their domain.
    pub require_agent_domain: bool,
    /// The only hosts whose agents get offered; all hosts if unset.
    pub whitelist: Option<Arc<BTreeSet<Arc<str>>>>,
    /// The only roles that may be used, including `*`; all roles if unset.
    pub roles: Option<BTreeSet<Role>>,
    /// The weights that hold unless the registry has others.
    pub weights: BTreeMap<Role, f64>,
    pub quota_semantics: QuotaSemantics,
    pub allocator: AllocatorConfig,
}

/// The flags that concern the allocator alone.
#[derive(Clone, Debug)]
pub struct AllocatorConfig {
    /// Alternatives of which an offer must satisfy one; without alternatives, any offer will do.
    pub min_allocatable: Vec<ResourceQuantities>,
    pub fair_sharing_excluded: BTreeSet<ResourceName>,
    pub filter_gpu_resources: bool,
    pub role_sorter: SorterKind,
    pub framework_sorter: SorterKind,
    /// The percentage of the agents known before a restart whose return ends recovery.
    pub recovery_percent: u32,
    pub recovery_timeout: Duration,
    pub seed: u64,
}

impl Default for AllocatorConfig {
    fn default() -> Self {
        Self {
            min_allocatable: Vec::new(),
            fair_sharing_excluded: BTreeSet::new(),
            filter_gpu_resources: true,
            role_sorter: SorterKind::Drf,
            framework_sorter: SorterKind::Drf,
            recovery_percent: 80,
            recovery_timeout: Duration::from_secs(600),
            seed: 0,
        }
    }
}

impl Config {
    /// A configuration with the default of every flag.
    #[must_use]
    pub fn new(identity: Identity) -> Self {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        Self {
            identity,
            allocation_interval: Duration::from_secs(1),
            agent_ping_timeout: Duration::from_secs(15),
            max_agent_ping_timeouts: 5,
            agent_reregister_timeout: Duration::from_secs(600),
            agent_removal_interval: Duration::from_secs(20),
            agent_removal_percent: 50,
            offer_timeout: None,
            max_completed_frameworks: 50,
            max_completed_tasks_per_framework: 1_000,
            max_unreachable_tasks_per_framework: 1_000,
            registry_max_agent_age: 14 * DAY,
            registry_max_agent_count: 102_400,
            registry_gc_interval: Duration::from_secs(900),
            registry_epoch_rise_max: 1_000_000,
            memory: Memory::from_total_bytes(MEMORY_BUDGET_DEFAULT),
            root_submissions: true,
            require_agent_domain: false,
            whitelist: None,
            roles: None,
            weights: BTreeMap::new(),
            quota_semantics: QuotaSemantics::default(),
            allocator: AllocatorConfig::default(),
        }
    }

    /// The time in which an agent is heard after a network failure: it answers one of the next pings, or notices that
    /// its connection is lost and connects anew.
    pub fn time_to_be_heard(&self) -> Duration {
        self.total_ping_timeout().saturating_add(RECONNECT_TIME)
    }

    /// The time without an answer after which an agent is unreachable.
    #[must_use]
    pub fn total_ping_timeout(&self) -> Duration {
        self.agent_ping_timeout
            .saturating_mul(self.max_agent_ping_timeouts)
    }
}
