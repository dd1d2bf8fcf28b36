//! The allocator's calls with the core's own types.
//!
//! Invariant: the allocator holds the same resources of tasks and offers as the core. A failed call returns an error
//! and is counted, because master and allocator then disagree.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};

use meseta_allocator::{
    AgentCapabilities, AgentFacts, AgentSpec, Allocator, Domain, FrameworkCapabilities,
    FrameworkSpec, Options,
};
use meseta_proto::convert;
use meseta_proto::mesos::v1;
use meseta_proto::{Invalid, invalid};
use meseta_resources::time::Moment;
use meseta_resources::{AgentId, FrameworkId, Resources, Role};

use super::agent::{Agent, AgentProfile};
use super::framework::Terms;
use crate::core::config::Config;

pub(in crate::core) use meseta_allocator::{Allocation, Error as AllocatorError};

/// The allocator, in the types of the core.
pub(in crate::core) struct AllocatorAdapter {
    allocator: Allocator,
    /// Whether the next allocation is the periodic one.
    is_tick: bool,
}

impl std::fmt::Debug for AllocatorAdapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AllocatorAdapter")
            .field("is_tick", &self.is_tick)
            .finish_non_exhaustive()
    }
}

/// Calls that need no translation go directly to the allocator.
impl Deref for AllocatorAdapter {
    type Target = Allocator;

    fn deref(&self) -> &Allocator {
        &self.allocator
    }
}

impl DerefMut for AllocatorAdapter {
    fn deref_mut(&mut self) -> &mut Allocator {
        &mut self.allocator
    }
}

impl AllocatorAdapter {
    pub(in crate::core) fn new(config: &Config, weights: &BTreeMap<Role, f64>) -> Self {
        let options = Options {
            allocation_interval: config.allocation_interval,
            min_allocatable: config.allocator.min_allocatable.clone(),
            fairness_excluded: config.allocator.fair_sharing_excluded.clone(),
            filter_gpu_resources: config.allocator.filter_gpu_resources,
            role_sorter: config.allocator.role_sorter,
            framework_sorter: config.allocator.framework_sorter,
            recovery_percent: config.allocator.recovery_percent,
            recovery_timeout: config.allocator.recovery_timeout,
            seed: config.allocator.seed,
            domain: config.identity.domain.as_ref().and_then(domain),
            ..Options::default()
        };
        let mut allocator = Allocator::new(options);
        let weights: Vec<(Role, f64)> = weights
            .iter()
            .map(|(role, weight)| (role.clone(), *weight))
            .collect();
        if let Err(error) = allocator.update_weights(&weights) {
            tracing::error!(%error, "the weights cannot be used");
        }
        allocator.update_whitelist(config.whitelist.as_deref().cloned());
        Self {
            allocator,
            is_tick: false,
        }
    }

    /// The agents excluded by a framework's constraints, by role; at most the remaining number.
    pub(in crate::core) fn excluded(
        &self,
        framework: &FrameworkId,
        left: &mut usize,
    ) -> BTreeMap<Role, Vec<AgentId>> {
        let excluded = self
            .allocator
            .excluded(framework, *left)
            .unwrap_or_default();
        let named: usize = excluded.values().map(Vec::len).sum();
        *left = left.saturating_sub(named);
        excluded
    }

    /// Makes the next allocation check everything, not only changes.
    pub(in crate::core) fn make_next_a_tick(&mut self) {
        self.is_tick = true;
    }

    pub(in crate::core) fn allocate(&mut self, now: Moment) -> Vec<Allocation> {
        if std::mem::take(&mut self.is_tick) {
            self.allocator.tick(now)
        } else {
            self.allocator.allocate(now)
        }
    }

    pub(in crate::core) fn add_agent(&mut self, agent: &Agent) -> Result<(), AllocatorError> {
        let mut spec = AgentSpec::new(facts(&agent.profile), agent.profile.total.clone());
        spec.used = (*agent.used).clone();
        self.allocator.add_agent(agent.id(), spec)
    }

    pub(in crate::core) fn update_agent(&mut self, agent: &Agent) -> Result<(), AllocatorError> {
        let profile = &agent.profile;
        self.allocator
            .update_agent(agent.id(), Some(facts(profile)), Some(&profile.total))
            .map(|_| ())
    }

    /// Charges resources that a framework already holds on an agent known to the allocator.
    pub(in crate::core) fn charge(
        &mut self,
        agent: &AgentId,
        framework: &FrameworkId,
        resources: &Resources,
    ) -> Result<(), AllocatorError> {
        let used = BTreeMap::from([(framework.clone(), resources.clone())]);
        self.allocator.add_provider(agent, &Resources::new(), &used)
    }

    pub(in crate::core) fn add_framework(
        &mut self,
        id: &FrameworkId,
        terms: &Terms,
    ) -> Result<(), Invalid> {
        let spec = spec(terms)?;
        self.allocator
            .add_framework(id, &spec, false, &BTreeMap::new())
            .map_err(Invalid::from_error)
    }

    pub(in crate::core) fn update_framework(
        &mut self,
        id: &FrameworkId,
        terms: &Terms,
    ) -> Result<(), Invalid> {
        let spec = spec(terms)?;
        self.allocator
            .update_framework(id, &spec)
            .map_err(Invalid::from_error)
    }

    /// The free resources of an agent.
    pub(in crate::core) fn free(&self, agent: &AgentId) -> Resources {
        self.allocator.available(agent).unwrap_or_default()
    }

    /// The frameworks that need an inverse offer now, with the agents to leave.
    pub(in crate::core) fn inverse_offers(
        &mut self,
        now: Moment,
        max: usize,
    ) -> Vec<(FrameworkId, AgentId)> {
        let due = self.allocator.inverse_offers(now, max).into_iter();
        due.map(|offer| (offer.framework, offer.agent)).collect()
    }

    /// The resources held on an agent according to the allocator, including offers.
    #[cfg(test)]
    pub(in crate::core) fn held(&self, agent: &AgentId) -> BTreeMap<FrameworkId, Resources> {
        self.allocator.held(agent).unwrap_or_default()
    }

    /// The free resources of an agent according to the allocator.
    #[cfg(test)]
    pub(in crate::core) fn available(&self, agent: &AgentId) -> Resources {
        self.allocator.available(agent).unwrap_or_default()
    }
}

/// The properties by which frameworks may select agents.
fn facts(profile: &AgentProfile) -> AgentFacts {
    AgentFacts {
        hostname: profile.info.hostname.as_str().into(),
        attributes: convert::attributes(&profile.info.attributes).unwrap_or_default(),
        domain: profile.info.domain.as_ref().and_then(domain),
        capabilities: AgentCapabilities::default(),
    }
}

fn domain(info: &v1::DomainInfo) -> Option<Domain> {
    let domain = info.fault_domain.as_ref()?;
    Some(Domain {
        region: domain.region.name.as_str().into(),
        zone: domain.zone.name.as_str().into(),
    })
}

/// Converts a framework's terms. The error is a message for the framework.
fn spec(terms: &Terms) -> Result<FrameworkSpec, Invalid> {
    let capabilities = terms.capabilities;
    let mut spec = FrameworkSpec {
        roles: terms.roles.clone(),
        suppressed: terms.suppressed.clone(),
        capabilities: FrameworkCapabilities {
            revocable_resources: capabilities.revocable_resources,
            gpu_resources: capabilities.gpu_resources,
            shared_resources: capabilities.shared_resources,
            multi_role: capabilities.multi_role,
            reservation_refinement: capabilities.reservation_refinement,
            region_aware: capabilities.region_aware,
        },
        ..FrameworkSpec::default()
    };
    for (role, filter) in &terms.info.offer_filters {
        let role = Role::new(role).map_err(Invalid::from_error)?;
        if let Some(minimum) = min_allocatable(filter)? {
            spec.min_allocatable.insert(role, minimum);
        }
    }
    if let Some(all) = &terms.offer_constraints {
        spec.constraints = all.rules()?.clone();
    }
    Ok(spec)
}

fn min_allocatable(
    filter: &v1::OfferFilters,
) -> Result<Option<Vec<meseta_resources::ResourceQuantities>>, Invalid> {
    let Some(minimum) = &filter.min_allocatable_resources else {
        return Ok(None);
    };
    let mut alternatives = Vec::new();
    for alternative in &minimum.quantities {
        if alternative.quantities.is_empty() {
            return Err(invalid!(
                "Invalid resource quantities: resource quantities must be non-empty"
            ));
        }
        let quantities = convert::quantities(&alternative.quantities)
            .map_err(|(name, error)| invalid!("Invalid resource quantities: {name}: {error}"))?;
        alternatives.push(quantities);
    }
    Ok(Some(alternatives))
}
