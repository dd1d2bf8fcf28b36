//! The calls about agents: adding, changing and removing agents.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use meseta_resources::{AgentId, FrameworkId, Resource, Resources, Role};

use crate::Allocator;
use crate::agents::{Agent, AgentKey};
use crate::bundle::Bundle;
use crate::error::Error;
use crate::filters::AgentFilters;
use crate::maintenance::Maintenance;
use crate::roles::SlotKey;
use crate::spec::{AgentFacts, AgentSpec};

impl Allocator {
    /// Adds a new agent, active from now on.
    ///
    /// # Errors
    /// If the agent is known already, its total is allocated, or its used resources are not.
    pub fn add_agent(&mut self, id: &AgentId, spec: AgentSpec) -> Result<(), Error> {
        let Entry::Vacant(vacant) = self.agent_keys.entry(id.clone()) else {
            return Err(Error::DuplicateAgent(id.clone()));
        };
        check_unallocated(&spec.total)?;
        for used in spec.used.values() {
            check_allocated(used)?;
        }
        vacant.insert(self.agents.next_key());
        let total = self.classes.bundle(&mut self.roles, &spec.total);
        let whitelisted = self.is_whitelisted(&spec.facts.hostname);
        let is_remote = self.is_remote(&spec.facts);
        let key = self.agents.insert(Agent {
            id: id.clone(),
            facts: spec.facts,
            total,
            free: Bundle::default(),
            holdings: Vec::with_capacity(spec.used.len()),
            filters: AgentFilters::default(),
            active: true,
            whitelisted,
            has_gpus: false,
            is_remote,
            overallocated: false,
            is_mixed: false,
            maintenance: spec
                .unavailability
                .map(|when| Box::new(Maintenance::new(when))),
        });
        if self.agents[key].maintenance.is_some() {
            self.maintained.insert(key);
        }
        self.account_total(key, 1);
        self.agents[key].has_gpus = self.has_gpus(key);
        for (framework, used) in &spec.used {
            self.track_used(key, framework, used);
        }
        self.compute_free(key);
        self.apply_constraints(key);
        self.mark_dirty(key);
        self.relaxed = true;
        if let Some(recovery) = &mut self.recovery {
            recovery.agent_added(id);
        }
        Ok(())
    }

    /// Holds the resources that an agent reports as used for a framework, known or not. The caller recomputes the
    /// free resources afterwards.
    pub(crate) fn track_used(
        &mut self,
        agent: AgentKey,
        framework: &FrameworkId,
        used: &Resources,
    ) {
        let mut roles = used.iter().map(Resource::allocation_role);
        let Some(first) = roles.next().flatten() else {
            return;
        };
        if roles.all(|role| role == Some(first)) {
            let slot = self.slot_for_used(framework, first);
            let bundle = self.classes.bundle(&mut self.roles, used);
            return self.hold_used(agent, slot, &bundle);
        }
        for (role, resources) in used.allocations() {
            let slot = self.slot_for_used(framework, &role);
            let bundle = self.classes.bundle(&mut self.roles, &resources);
            self.hold_used(agent, slot, &bundle);
        }
    }

    /// Removes an agent with everything held on it.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn remove_agent(&mut self, id: &AgentId) -> Result<(), Error> {
        let key = self.agent_key(id)?;
        for holding in self.agents[key].holdings.clone() {
            self.release(key, holding.slot, &holding.resources);
            self.drop_slot_if_unused(holding.slot);
        }
        self.count_headroom(key, -1);
        self.account_total(key, -1);
        self.agents[key].filters.clear(&mut self.filters, key);
        let constrained = self.constrained > 0;
        for (_, slot) in self.slots.iter_mut().take_while(|_| constrained) {
            if let Some(excluded) = &mut slot.excluded {
                excluded.remove(key);
            }
        }
        self.dirty.remove(key);
        self.deferred.remove(key);
        self.held_back.remove(key);
        self.maintained.remove(key);
        self.inverse_due.remove(key);
        if let Some(agent) = self.agents.remove(key) {
            self.prune_owners(&agent.total);
        }
        self.agent_keys.remove(id);
        if let Some(recovery) = &mut self.recovery {
            recovery.agent_removed(id);
        }
        self.relaxed = true;
        Ok(())
    }

    /// Updates an agent with a new total, attributes and so on; `None` keeps the former value. Changed attributes,
    /// domain or hostname clear all filters on the agent. Returns false if nothing changed.
    ///
    /// # Errors
    /// For an unknown agent, or if the total is allocated.
    pub fn update_agent(
        &mut self,
        id: &AgentId,
        facts: Option<AgentFacts>,
        total: Option<&Resources>,
    ) -> Result<bool, Error> {
        let key = self.agent_key(id)?;
        if let Some(total) = total {
            check_unallocated(total)?;
        }
        let mut changed = false;
        if let Some(facts) = facts
            && facts != self.agents[key].facts
        {
            changed = true;
            self.replace_facts(key, facts);
        }
        if let Some(total) = total {
            let total = self.classes.bundle(&mut self.roles, total);
            if total != self.agents[key].total {
                changed = true;
                self.replace_total(key, total);
            }
        }
        if changed {
            self.mark_dirty(key);
        }
        Ok(changed)
    }

    fn replace_facts(&mut self, key: AgentKey, facts: AgentFacts) {
        let old = &self.agents[key].facts;
        let selects = old.attributes != facts.attributes
            || old.hostname != facts.hostname
            || old.domain != facts.domain;
        let (whitelisted, is_remote) =
            (self.is_whitelisted(&facts.hostname), self.is_remote(&facts));
        self.count_headroom(key, -1);
        let agent = &mut self.agents[key];
        agent.facts = facts;
        (agent.whitelisted, agent.is_remote) = (whitelisted, is_remote);
        if selects {
            agent.filters.clear(&mut self.filters, key);
        }
        self.count_headroom(key, 1);
        self.relaxed = true;
        self.apply_constraints(key);
    }

    /// Adds the total and the used resources of a resource provider on the agent.
    ///
    /// # Errors
    /// The same as [`Allocator::add_agent`].
    pub fn add_provider(
        &mut self,
        id: &AgentId,
        total: &Resources,
        used: &std::collections::BTreeMap<FrameworkId, Resources>,
    ) -> Result<(), Error> {
        let key = self.agent_key(id)?;
        check_unallocated(total)?;
        for used in used.values() {
            check_allocated(used)?;
        }
        let mut all = self.agents[key].total.clone();
        all.add(&self.classes.bundle(&mut self.roles, total));
        self.replace_total(key, all);
        self.count_headroom(key, -1);
        for (framework, used) in used {
            self.track_used(key, framework, used);
        }
        self.compute_free(key);
        self.mark_dirty(key);
        Ok(())
    }

    /// Allows offers of the agent again.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn activate_agent(&mut self, id: &AgentId) -> Result<(), Error> {
        let key = self.agent_key(id)?;
        self.set_active(key, true);
        self.mark_dirty(key);
        Ok(())
    }

    /// Stops offers of the agent.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn deactivate_agent(&mut self, id: &AgentId) -> Result<(), Error> {
        let key = self.agent_key(id)?;
        self.set_active(key, false);
        Ok(())
    }

    fn set_active(&mut self, key: AgentKey, active: bool) {
        self.count_headroom(key, -1);
        self.agents[key].active = active;
        self.count_headroom(key, 1);
        self.relaxed = true;
    }

    /// Restricts offers to agents with these hostnames; `None` allows all.
    pub fn update_whitelist(&mut self, whitelist: Option<BTreeSet<Arc<str>>>) {
        self.whitelist = whitelist;
        let keys: Vec<AgentKey> = self.agents.iter().map(|(key, _)| key).collect();
        for key in keys {
            let whitelisted = self.is_whitelisted(&self.agents[key].facts.hostname);
            if whitelisted != self.agents[key].whitelisted {
                self.count_headroom(key, -1);
                self.agents[key].whitelisted = whitelisted;
                self.count_headroom(key, 1);
                self.mark_dirty(key);
                self.relaxed = true;
            }
        }
    }

    fn is_whitelisted(&self, hostname: &str) -> bool {
        self.whitelist
            .as_ref()
            .is_none_or(|whitelist| whitelist.contains(hostname))
    }

    /// Whether the agent is in another region. An agent without a domain is in the master's region.
    fn is_remote(&self, facts: &AgentFacts) -> bool {
        match (&facts.domain, &self.options.domain) {
            (Some(theirs), Some(ours)) => theirs.region != ours.region,
            _ => false,
        }
    }

    /// Updates the slots whose constraints exclude the agent.
    fn apply_constraints(&mut self, key: AgentKey) {
        if self.constrained == 0 {
            return;
        }
        for (_, slot) in self.slots.iter_mut() {
            if let Some(excluded) = &mut slot.excluded {
                if slot.constraints.allow(&self.agents[key].facts) {
                    excluded.remove(key);
                } else {
                    excluded.insert(key);
                }
            }
        }
    }

    /// Returns the slot that a framework's use in a role is charged to; creates the slot if necessary.
    fn slot_for_used(&mut self, framework: &FrameworkId, role: &Role) -> SlotKey {
        let key = self.framework_or_placeholder(framework);
        self.ensure_slot(key, role)
    }
}

fn check_unallocated(resources: &Resources) -> Result<(), Error> {
    match resources
        .iter()
        .find(|resource| resource.allocation_role().is_some())
    {
        Some(allocated) => Err(Error::UnexpectedAllocation(allocated.clone())),
        None => Ok(()),
    }
}

pub(crate) fn check_allocated(resources: &Resources) -> Result<(), Error> {
    let mut checked = None;
    for resource in resources {
        let Some(role) = resource.allocation_role() else {
            return Err(Error::NoAllocationRole(resource.clone()));
        };
        // Usually all parts have the same role.
        if checked != Some(role) {
            Allocator::check_role(role)?;
            checked = Some(role);
        }
    }
    Ok(())
}
