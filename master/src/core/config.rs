//! What the core is told once, at its start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use meseta_allocator::SorterKind;
use meseta_daemon::build_info::BuildInfo;
use meseta_proto::mesos::v1::DomainInfo;
use meseta_resources::{ResourceName, ResourceQuantities, Role};

/// How often a subscribed scheduler hears from the master at least.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(15);

/// Frameworks known at once; a subscription above it is an ERROR event.
pub const FRAMEWORKS_MAX: usize = 100_000;

/// Registry mutations in flight; agents above it are asked to come again.
pub const PENDING_MUTATIONS_MAX: usize = 8_192;

/// In which an agent that has noticed that its connection is gone waits between two tries (15 s) and connects (10 s).
const RECONNECT_TIME: Duration = Duration::from_secs(30);

/// Who this master is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// A fresh UUID of every start; prefix of the ids of frameworks, agents and offers.
    pub id: String,
    pub hostname: String,
    /// The address that others reach this master at.
    pub ip: IpAddr,
    pub port: u16,
    pub cluster: Option<String>,
    /// Digits and dots only: clients take it apart as numbers.
    pub version: String,
    /// Which program this is, for `/version` and `/state`.
    pub build: BuildInfo,
    pub domain: Option<DomainInfo>,
}

/// What a quota that was set in the older way means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaSemantics {
    /// Once the guarantee is met, nothing more of any name; not for `*`; statically reserved
    /// resources are no capacity.
    #[default]
    Seed,
    /// As in Mesos 1.12: the guarantee is the limit of the named resources.
    Head,
}

/// What is remembered in the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Records of ended and unreachable tasks, of one framework.
    pub history_per_framework: usize,
    /// The same of all frameworks, and what ended frameworks have said of themselves.
    pub history: usize,
    /// A framework's info, which goes to every agent with each of its tasks.
    pub info: usize,
    /// A framework's offer constraints.
    pub constraints: usize,
    /// What all frameworks together say of themselves.
    pub terms: usize,
    /// What one agent says of itself, its reservations and volumes apart.
    pub agent_info: usize,
    /// What all agents say of themselves.
    pub agents: usize,
    /// The parts of returns of agents that are incomplete.
    pub partial_reregistrations: usize,
    /// What the agents of one host bring along when they come back, and this master did not give them.
    pub reported: usize,
    /// Operations on all agents whose end is not acknowledged.
    pub operations: usize,
    /// Offers that one framework is sent in one cycle, encoded.
    pub offers: usize,
    /// What frameworks say of themselves to agents between two allocation ticks: a sixteenth of what may wait for all agents,
    /// where it counts twice.
    pub infos_per_tick: usize,
    /// FAILURE events to all schedulers between two ticks: a tenth of what may wait for them.
    pub failures_per_tick: usize,
    /// Inverse offers to all schedulers between two ticks: a tenth of what may wait for them, and a third of what may wait for
    /// one.
    pub inverse_offers_per_tick: usize,
    /// What the launches of one ACCEPT are on their way to the agent: half of what may wait for one.
    pub launches_per_accept: usize,
    /// The tasks that one framework has named to be reconciled and has not been answered.
    pub questions_per_framework: usize,
}

impl Memory {
    /// The parts of so many bytes.
    #[must_use]
    pub const fn of(total_bytes: usize) -> Self {
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

/// Some thousand ordinary tasks, whatever the budget is.
const REPORTED_BYTES_MIN: usize = 16 << 20;

const fn at_least(bytes: usize, min: usize) -> usize {
    if bytes < min { min } else { bytes }
}

/// The memory budget where no flag says otherwise.
const MEMORY_BUDGET_DEFAULT: usize = 4 << 30;

#[derive(Clone, Debug)]
pub struct Config {
    pub identity: Identity,
    pub allocation_interval: Duration,
    pub agent_ping_timeout: Duration,
    pub max_agent_ping_timeouts: u32,
    pub agent_reregister_timeout: Duration,
    /// The least time between two agents that are marked unreachable; zero for no limit.
    pub agent_removal_interval: Duration,
    /// Of how many agents in a hundred that are silent some may be marked unreachable.
    pub agent_removal_percent: u32,
    pub offer_timeout: Option<Duration>,
    pub max_completed_frameworks: usize,
    pub max_completed_tasks_per_framework: usize,
    pub max_unreachable_tasks_per_framework: usize,
    pub registry_max_agent_age: Duration,
    pub registry_max_agent_count: usize,
    pub registry_gc_interval: Duration,
    /// By how much agents may make the registry's epoch a higher one in the life of this master.
    pub registry_epoch_rise_max: u64,
    /// What may be remembered, in bytes.
    pub memory: Memory,
    pub root_submissions: bool,
    /// Whether agents must say where they are.
    pub require_agent_domain: bool,
    /// The only hosts whose agents are offered; all when absent.
    pub whitelist: Option<Arc<BTreeSet<Arc<str>>>>,
    /// The only roles that may be used, `*` among them; all when absent.
    pub roles: Option<BTreeSet<Role>>,
    /// Weights that hold unless the registry has others.
    pub weights: BTreeMap<Role, f64>,
    pub quota_semantics: QuotaSemantics,
    /// Settings that the allocator takes.
    pub allocator: AllocatorConfig,
}

/// What of the flags concerns the allocator alone.
#[derive(Clone, Debug)]
pub struct AllocatorConfig {
    /// Alternatives of which an offer must satisfy one; anything will do when there is none.
    pub min_allocatable: Vec<ResourceQuantities>,
    pub fair_sharing_excluded: BTreeSet<ResourceName>,
    pub filter_gpu_resources: bool,
    pub role_sorter: SorterKind,
    pub framework_sorter: SorterKind,
    /// Part of the agents known before a restart that ends recovery, in hundredths.
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
    /// With everything as the flags have it unless they say otherwise.
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
            memory: Memory::of(MEMORY_BUDGET_DEFAULT),
            root_submissions: true,
            require_agent_domain: false,
            whitelist: None,
            roles: None,
            weights: BTreeMap::new(),
            quota_semantics: QuotaSemantics::default(),
            allocator: AllocatorConfig::default(),
        }
    }

    /// How long an agent is given to be heard when a network mends: it answers one of the next pings, or notices that
    /// its connection is gone and connects anew.
    pub fn time_to_be_heard(&self) -> Duration {
        self.total_ping_timeout().saturating_add(RECONNECT_TIME)
    }

    /// For how long an agent may be silent before it is unreachable.
    #[must_use]
    pub fn total_ping_timeout(&self) -> Duration {
        self.agent_ping_timeout
            .saturating_mul(self.max_agent_ping_timeouts)
    }
}
