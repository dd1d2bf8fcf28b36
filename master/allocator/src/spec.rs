//! What callers say of frameworks, agents and the allocator itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_resources::{
    AgentId, Attributes, FrameworkId, ResourceName, ResourceQuantities, Resources, Role, Scalar,
};

use crate::constraints::OfferConstraints;

/// How the order of siblings is found.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Default)]
pub enum SorterKind {
    /// Sorted by the dominant share.
    #[default]
    Drf,
    /// At random, with chances in proportion to the weights.
    Random,
}

/// How the allocator is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// How often the caller runs [`crate::Allocator::tick`]; no filter lives shorter. Default 1 s.
    pub allocation_interval: Duration,
    /// Alternatives for the least that an offer must hold; none means anything will do.
    /// Default `cpus:0.01|mem:32`.
    pub min_allocatable: Vec<ResourceQuantities>,
    /// Left out of dominant shares. Default none.
    pub fairness_excluded: BTreeSet<ResourceName>,
    /// Whether agents with gpus are kept for frameworks that opted in. Default true.
    pub filter_gpu_resources: bool,
    /// The sorter; DRF by default.
    pub role_sorter: SorterKind,
    /// The sorter; DRF by default.
    pub framework_sorter: SorterKind,
    /// Where the master is; agents elsewhere are offered to region-aware frameworks only. Default none.
    pub domain: Option<Domain>,
    /// Whether an offer that is cut down to a quota gets ports and the like in proportion, instead of
    /// all of them. Default true.
    pub share_items: bool,
    /// Part of the agents that were known before a failover whose return ends recovery, in hundredths.
    /// Default 80.
    pub recovery_percent: u32,
    /// How long recovery may last. Default 10 min.
    pub recovery_timeout: Duration,
    /// Of the order in which agents are visited, and of the random sorters. Default 0.
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

/// A place of faults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub region: Arc<str>,
    pub zone: Arc<str>,
}

/// What an agent can do that the allocator must know of.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct AgentCapabilities {
    pub multi_role: bool,
    pub hierarchical_role: bool,
    pub reservation_refinement: bool,
}

impl Default for AgentCapabilities {
    /// All: every agent of ours.
    fn default() -> Self {
        Self {
            multi_role: true,
            hierarchical_role: true,
            reservation_refinement: true,
        }
    }
}

/// What frameworks may select agents by.
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

/// When an agent will be away, since 1970; handed on as it is.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unavailability {
    pub start: Duration,
    pub duration: Option<Duration>,
}

#[derive(Clone, Debug)]
pub struct AgentSpec {
    pub facts: AgentFacts,
    /// All that it has, revocable resources included; unallocated.
    pub total: Resources,
    /// What of it is in use already, allocated to roles: after the master's failover, an agent brings
    /// tasks along. Frameworks need not be known yet.
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

/// What a framework opted in to.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct FrameworkCapabilities {
    pub revocable_resources: bool,
    pub gpu_resources: bool,
    pub shared_resources: bool,
    pub multi_role: bool,
    pub reservation_refinement: bool,
    pub region_aware: bool,
}

/// A framework as it subscribes.
#[derive(Clone, Debug, Default)]
pub struct FrameworkSpec {
    pub roles: BTreeSet<Role>,
    /// Those of the roles that are to get no offers for now.
    pub suppressed: BTreeSet<Role>,
    pub capabilities: FrameworkCapabilities,
    /// By role, instead of [`Options::min_allocatable`]; an empty list means anything will do.
    pub min_allocatable: BTreeMap<Role, Vec<ResourceQuantities>>,
    pub constraints: BTreeMap<Role, OfferConstraints>,
}

/// What is to be offered, or was: all of it on one agent, to one framework in one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub framework: FrameworkId,
    pub agent: AgentId,
    pub role: Role,
    /// Allocated to the role.
    pub resources: Resources,
}
