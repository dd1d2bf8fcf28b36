//! The calls about the use of offers: returned, declined, converted.

use std::time::Duration;

use meseta_resources::{AgentId, Conversion, FrameworkId, Moment, Resource, Resources};
use smallvec::SmallVec;

use crate::Allocator;
use crate::agents::AgentKey;
use crate::bundle::Bundle;
use crate::error::Error;
use crate::roles::SlotKey;

/// A buffer for the parts that one call takes from each holding.
type Parts = SmallVec<[(SlotKey, Bundle); 1]>;

impl Allocator {
    /// Returns resources after the end of a task, or from an unused offer. With `refuse` the framework has declined
    /// them: it gets no offer of these resources or less on this agent for that time, and nobody gets them before the
    /// next [`Allocator::tick`]. Without `refuse` the next [`Allocator::allocate`] offers them.
    ///
    /// # Errors
    /// If the framework does not hold all of them on the agent.
    pub fn recover_resources(
        &mut self,
        now: Moment,
        framework: &FrameworkId,
        agent: &AgentId,
        resources: &Resources,
        refuse: Option<Duration>,
    ) -> Result<(), Error> {
        let key = self.agent_key(agent)?;
        let parts = self.held_parts(framework, agent, key, resources)?;
        for (slot, part) in parts {
            self.release(key, slot, &part);
            if let Some(refuse) = refuse
                && !refuse.is_zero()
                && self.frameworks[self.slots[slot].framework].active
                && self.slots[slot].subscribed
            {
                let framework = self.slots[slot].framework;
                let refuse = self.filters.refuse_time(framework, refuse);
                let expiry = self.filter_end(now, refuse);
                let Self {
                    agents,
                    filters,
                    slots,
                    classes,
                    roles,
                    frameworks,
                    ..
                } = self;
                let visibility = crate::compose::OfferVisibility {
                    classes,
                    roles,
                    slots,
                    frameworks,
                };
                let owner = slots[slot].filters;
                agents[key]
                    .filters
                    .add(filters, key, owner, part, expiry, &visibility);
            }
            self.drop_slot_if_unused(slot);
        }
        if refuse.is_some() {
            self.mark_deferred(key);
        } else {
            self.mark_dirty(key);
        }
        Ok(())
    }

    /// Converts resources that a framework holds from an offer: RESERVE, CREATE and similar operations. A conversion
    /// that produces nothing removes the resources from the agent.
    ///
    /// # Errors
    /// If the framework does not hold the consumed resources at that point; nothing changes then.
    pub fn update_allocation(
        &mut self,
        framework: &FrameworkId,
        agent: &AgentId,
        conversions: &[Conversion],
    ) -> Result<(), Error> {
        let key = self.agent_key(agent)?;
        let framework_key = self.framework_keys.get(framework).copied();
        let framework_key =
            framework_key.ok_or_else(|| Error::UnknownFramework(framework.clone()))?;
        let steps = self.plan_conversions(framework, framework_key, agent, key, conversions)?;
        self.convert_held(key, &steps);
        for (slot, ..) in steps {
            self.drop_slot_if_unused(slot);
        }
        self.mark_dirty(key);
        Ok(())
    }

    /// Tries the conversions on copies of the holdings.
    fn plan_conversions(
        &mut self,
        framework: &FrameworkId,
        framework_key: u32,
        agent: &AgentId,
        key: AgentKey,
        conversions: &[Conversion],
    ) -> Result<Vec<(SlotKey, Bundle, Bundle)>, Error> {
        let not_held = |requested: &Resource| Error::NotAllocated {
            framework: framework.clone(),
            agent: agent.clone(),
            requested: requested.clone(),
        };
        let mut held = Parts::new();
        for slot in &self.frameworks[framework_key].slots {
            if let Some(bundle) = self.agents[key].held_by(*slot) {
                held.push((*slot, bundle.clone()));
            }
        }
        let mut steps = Vec::new();
        for conversion in conversions {
            crate::agent_calls::check_allocated(conversion.consumed())?;
            crate::agent_calls::check_allocated(conversion.produced())?;
            let mut produced = conversion.produced().allocations();
            for (role, resources) in conversion.consumed().allocations() {
                let first = resources.iter().next();
                let slot = self.roles.find(&role);
                let slot = slot.and_then(|role| self.slot_of(framework_key, role));
                let part = slot.and_then(|slot| held.iter_mut().find(|part| part.0 == slot));
                let Some((slot, have)) = part else {
                    return Err(
                        first.map_or_else(|| Error::UnknownFramework(framework.clone()), not_held)
                    );
                };
                let consumed = self.classes.bundle(&mut self.roles, &resources);
                if let Some(requested) = resources
                    .iter()
                    .find(|requested| !self.has_in(have, requested, &resources))
                {
                    return Err(not_held(requested));
                }
                let produced = produced.remove(&role).unwrap_or_default();
                let produced = self.classes.bundle(&mut self.roles, &produced);
                have.subtract(&consumed);
                have.add(&produced);
                steps.push((*slot, consumed, produced));
            }
            // A product for a role from which nothing was consumed.
            if let Some(odd) = produced.values().flat_map(Resources::iter).next() {
                return Err(not_held(odd));
            }
        }
        Ok(steps)
    }

    fn has_in(&self, have: &Bundle, requested: &Resource, all: &Resources) -> bool {
        self.classes
            .find_bundle(&all.filtered(|other| other == requested))
            .is_ok_and(|requested| {
                let Bundle { scalars, items } = &requested;
                scalars
                    .iter()
                    .all(|(class, amount)| have.amount(*class) >= *amount)
                    && items.iter().all(|(class, items)| {
                        have.items_of(*class)
                            .is_some_and(|mine| mine.contains(items))
                    })
            })
    }

    /// Applies an operator's RESERVE, CREATE and similar operations to free resources.
    ///
    /// # Errors
    /// If the consumed resources are not free at that point; nothing changes then.
    pub fn update_available(
        &mut self,
        agent: &AgentId,
        conversions: &[Conversion],
    ) -> Result<(), Error> {
        let key = self.agent_key(agent)?;
        let mut free = self.agents[key].free.clone();
        let mut total = self.agents[key].total.clone();
        for conversion in conversions {
            let (consumed, produced) = (conversion.consumed(), conversion.produced());
            let both = consumed.iter().chain(produced.iter());
            for resource in both {
                if resource.allocation_role().is_some() {
                    return Err(Error::UnexpectedAllocation(resource.clone()));
                }
            }
            for requested in consumed {
                if !self.has_in(&free, requested, consumed) {
                    let (agent, requested) = (agent.clone(), requested.clone());
                    return Err(Error::NotAvailable { agent, requested });
                }
            }
            let consumed = self.classes.bundle(&mut self.roles, consumed);
            let produced = self.classes.bundle(&mut self.roles, produced);
            for bundle in [&mut free, &mut total] {
                bundle.subtract(&consumed);
                bundle.add(&produced);
            }
        }
        self.replace_total(key, total);
        self.mark_dirty(key);
        Ok(())
    }

    /// Splits returned resources by the slots that hold them. Fails if a part is not held.
    fn held_parts(
        &self,
        framework: &FrameworkId,
        agent: &AgentId,
        key: AgentKey,
        resources: &Resources,
    ) -> Result<Parts, Error> {
        let framework_key = self.framework_keys.get(framework).copied();
        let framework_key =
            framework_key.ok_or_else(|| Error::UnknownFramework(framework.clone()))?;
        let not_held = |requested: &Resource| Error::NotAllocated {
            framework: framework.clone(),
            agent: agent.clone(),
            requested: requested.clone(),
        };
        let Some(first) = resources.iter().next() else {
            return Ok(Parts::new());
        };
        let role_of = |resource| {
            let role = Resource::allocation_role(resource);
            role.ok_or_else(|| Error::NoAllocationRole(resource.clone()))
        };
        let first_role = role_of(first)?;
        let mut parts = Parts::new();
        let single = resources
            .iter()
            .all(|resource| resource.allocation_role() == Some(first_role));
        let mut take = |role: &meseta_resources::Role, resources: &Resources| {
            let requested = resources.iter().next().unwrap_or(first);
            let slot = self.slot_of_name(framework_key, role);
            let slot = slot.ok_or_else(|| not_held(requested))?;
            let held = self.agents[key]
                .held_by(slot)
                .ok_or_else(|| not_held(requested))?;
            let bundle = self.classes.find_bundle(resources).map_err(not_held)?;
            if *held != bundle && !held.contains(&bundle) {
                let missing = resources
                    .iter()
                    .find(|requested| !self.has_in(held, requested, resources));
                return Err(not_held(missing.unwrap_or(requested)));
            }
            parts.push((slot, bundle));
            Ok(())
        };
        if single {
            take(first_role, resources)?;
            return Ok(parts);
        }
        for resource in resources {
            role_of(resource)?;
        }
        for (role, resources) in resources.allocations() {
            take(&role, &resources)?;
        }
        Ok(parts)
    }
}
