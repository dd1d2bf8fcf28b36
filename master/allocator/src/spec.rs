//! Parameters of calls: descriptions of frameworks, of agents and of the allocator itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_resources::{
    AgentId, Attributes, FrameworkId, ResourceName, ResourceQuantities, Resources, Role, Scalar,
};

use crate::constraints::OfferConstraints;

/// The way in which siblings are ordered.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum SorterKind {
    /// Sorted by the dominant share.
    #[default]
    Drf,
    /// At random, weighted by the roles' weights.
    Random,
}

/// The configuration of the allocator.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interval between calls of [`crate::Allocator::tick`]; every filter lasts at least this long. Default 1 s.
    pub allocation_interval: Duration,
    /// Alternatives of the minimum that an offer must hold; without alternatives, any offer will do. Default
    /// `cpus:0.01|mem:32`.
    pub min_allocatable: Vec<ResourceQuantities>,
    /// Resources left out of dominant shares. Default none.
    pub fairness_excluded: BTreeSet<ResourceName>,
    /// Whether agents with gpus are reserved for frameworks that opted in. Default true.
    pub filter_gpu_resources: bool,
    /// The sorter of roles; DRF by default.
    pub role_sorter: SorterKind,
    /// The sorter of frameworks; DRF by default.
    pub framework_sorter: SorterKind,
    /// The domain of the master; only region-aware frameworks get offers of agents in other regions. Default none.
    pub domain: Option<Domain>,
    /// Whether an offer reduced by a quota gets a proportional part of ports and similar resources, instead of all of
    /// them. Default true.
    pub share_items: bool,
    /// The percentage of the agents known before a failover whose return ends recovery. Default 80.
    pub recovery_percent: u32,
    /// The longest time that recovery may last. Default 10 min.
    pub recovery_timeout: Duration,
    /// The seed of the order in which cycles visit agents, and of the random sorters. Default 0.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        let one = |name: ResourceName, millis| -> ResourceQuantities {
            [(name, Scalar::from_millis(millis))].into_iter().collect()
        };
        Self {
            allocation_interval: Duration::from_secs(1),
            min_allocatable: vec![
                one(ResourceName::cpus(), 10),
                one(ResourceName::mem(), 32_000),
            ],
            fairness_excluded: BTreeSet::new(),
            filter_gpu_resources: true,
            role_sorter: SorterKind::Drf,
            framework_sorter: SorterKind::Drf,
            domain: None,
            share_items: true,
            recovery_percent: 80,
            recovery_timeout: Duration::from_secs(600),
            seed: 0,
        }
    }
}

/// A fault domain: a region and a zone in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub region: Arc<str>,
    pub zone: Arc<str>,
}

/// The agent capabilities that concern the allocator.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AgentCapabilities {
    pub multi_role: bool,
    pub hierarchical_role: bool,
    pub reservation_refinement: bool,
}

impl Default for AgentCapabilities {
    /// All capabilities, like every agent of Meseta.
    fn default() -> Self {
        Self {
            multi_role: true,
            hierarchical_role: true,
            reservation_refinement: true,
        }
    }
}

/// The properties by which frameworks may select agents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFacts {
    pub hostname: Arc<str>,
    pub attributes: Attributes,
    pub domain: Option<Domain>,
    pub capabilities: AgentCapabilities,
}

impl AgentFacts {
    #[must_use]
    pub fn named(hostname: &str) -> Self {
        Self {
            hostname: hostname.into(),
            attributes: Attributes::new(),
            domain: None,
            capabilities: AgentCapabilities::default(),
        }
    }
}

/// A planned absence of an agent as a time since 1970, handed on unchanged.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unavailability {
    pub start: Duration,
    pub duration: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct AgentSpec {
    pub facts: AgentFacts,
    /// All resources of the agent, including revocable ones, unallocated.
    pub total: Resources,
    /// The part of the total that is already in use, allocated to roles: after a failover of the master, an agent
    /// returns with tasks. The frameworks may still be unknown.
    pub used: BTreeMap<FrameworkId, Resources>,
    pub unavailability: Option<Unavailability>,
}

impl AgentSpec {
    #[must_use]
    pub fn new(facts: AgentFacts, total: Resources) -> Self {
        Self {
            facts,
            total,
            used: BTreeMap::new(),
            unavailability: None,
        }
    }
}

/// The capabilities that a framework opted in to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FrameworkCapabilities {
    pub revocable_resources: bool,
    pub gpu_resources: bool,
    pub shared_resources: bool,
    pub multi_role: bool,
    pub reservation_refinement: bool,
    pub region_aware: bool,
}

/// A framework with its subscription.
#[derive(Clone, Debug, Default)]
pub struct FrameworkSpec {
    pub roles: BTreeSet<Role>,
    /// The suppressed roles: they get no offers.
    pub suppressed: BTreeSet<Role>,
    pub capabilities: FrameworkCapabilities,
    /// The minimums by role, instead of [`Options::min_allocatable`]; with an empty list, any offer will do.
    pub min_allocatable: BTreeMap<Role, Vec<ResourceQuantities>>,
    pub constraints: BTreeMap<Role, OfferConstraints>,
}

/// An allocation, planned or made: resources of one agent, for one framework in one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub framework: FrameworkId,
    pub agent: AgentId,
    pub role: Role,
    /// The resources, allocated to the role.
    pub resources: Resources,
}
