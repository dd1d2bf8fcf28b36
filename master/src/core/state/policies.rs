//! The policies that operators set: quotas, weights, maintenance and deactivated agents.
//!
//! Each policy exists twice: in effect, and as requested, which is the policy after all pending writes to the
//! registry. Invariant: a policy takes effect only once it is durable.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_allocator::{Allocator, Quota};
use meseta_resources::{AgentId, Role};

use super::deactivation::{Deactivation, Deactivations};
use super::maintenance::Plan;
use super::persisted::Recovered;

/// The policies in effect, and the requested ones.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    quotas: Arc<BTreeMap<Role, Quota>>,
    requested_quotas: BTreeMap<Role, Quota>,
    weights: BTreeMap<Role, f64>,
    requested_weights: BTreeMap<Role, f64>,
    maintenance: Arc<Plan>,
    requested_maintenance: Arc<Plan>,
    deactivations: Deactivations,
    requested_deactivations: Deactivations,
}

impl Policies {
    pub(crate) fn recovered(recovered: &Recovered, weights: BTreeMap<Role, f64>) -> Self {
        let quotas: BTreeMap<Role, Quota> = recovered
            .quotas
            .iter()
            .filter(|(_, quota)| !quota.is_default())
            .cloned()
            .collect();
        let deactivations: Deactivations = recovered
            .deactivations
            .iter()
            .filter_map(|(id, deactivation)| Some((AgentId::new(id).ok()?, deactivation.clone())))
            .collect();
        let plan = Arc::new(Plan::from_maintenance(Arc::new(
            recovered.maintenance.clone(),
        )));
        Self {
            requested_quotas: quotas.clone(),
            quotas: Arc::new(quotas),
            requested_weights: weights.clone(),
            weights,
            maintenance: plan.clone(),
            requested_maintenance: plan,
            deactivations: deactivations.clone(),
            requested_deactivations: deactivations,
        }
    }

    /// The quotas in effect.
    pub(crate) const fn quotas(&self) -> &Arc<BTreeMap<Role, Quota>> {
        &self.quotas
    }

    pub(crate) const fn requested_quotas(&self) -> &BTreeMap<Role, Quota> {
        &self.requested_quotas
    }

    /// Records changed quotas that wait for the registry.
    pub(crate) fn request_quotas(&mut self, changes: &[(Role, Quota)]) {
        set_quotas(&mut self.requested_quotas, changes);
    }

    /// Puts changed quotas into effect.
    pub(crate) fn apply_quotas(&mut self, changes: &[(Role, Quota)]) {
        set_quotas(Arc::make_mut(&mut self.quotas), changes);
    }

    /// The weights in effect.
    pub(crate) const fn weights(&self) -> &BTreeMap<Role, f64> {
        &self.weights
    }

    /// Records changed weights that wait for the registry, and returns all requested weights.
    pub(crate) fn request_weights(&mut self, changes: &[(Role, f64)]) -> &BTreeMap<Role, f64> {
        self.requested_weights.extend(changes.iter().cloned());
        &self.requested_weights
    }

    /// Puts changed weights into effect.
    pub(crate) fn apply_weights(&mut self, changes: Vec<(Role, f64)>) {
        self.weights.extend(changes);
    }

    /// The maintenance plan in effect.
    pub(crate) const fn maintenance(&self) -> &Arc<Plan> {
        &self.maintenance
    }

    pub(crate) const fn requested_maintenance(&self) -> &Arc<Plan> {
        &self.requested_maintenance
    }

    /// Records a maintenance plan that waits for the registry.
    pub(crate) fn request_maintenance(&mut self, plan: Arc<Plan>) {
        self.requested_maintenance = plan;
    }

    /// Puts a maintenance plan into effect, and returns the former plan.
    pub(crate) fn apply_maintenance(&mut self, plan: Arc<Plan>) -> Arc<Plan> {
        std::mem::replace(&mut self.maintenance, plan)
    }

    /// The deactivation of an agent that is in effect.
    pub(crate) fn deactivation(&self, agent: &AgentId) -> Option<&Deactivation> {
        self.deactivations.get(agent)
    }

    pub(crate) fn requested_deactivation(&self, agent: &AgentId) -> Option<&Deactivation> {
        self.requested_deactivations.get(agent)
    }

    /// Whether an agent's tasks are being ended.
    pub(crate) fn is_draining(&self, agent: &AgentId) -> bool {
        self.deactivations.is_draining(agent)
    }

    /// Whether an operator has requested to end an agent's tasks.
    pub(crate) fn is_drain_requested(&self, agent: &AgentId) -> bool {
        self.requested_deactivations.is_draining(agent)
    }

    /// Records a deactivation, or its end, that waits for the registry.
    pub(crate) fn request_deactivation(
        &mut self,
        agent: &AgentId,
        requested: Option<Deactivation>,
    ) {
        self.requested_deactivations.set(agent, requested);
    }

    /// Puts a deactivation, or its end, into effect.
    pub(crate) fn apply_deactivation(&mut self, agent: &AgentId, durable: Option<Deactivation>) {
        self.deactivations.set(agent, durable);
    }

    /// The agents whose tasks are being ended.
    #[cfg(test)]
    pub(crate) fn draining(&self) -> impl Iterator<Item = &AgentId> {
        self.deactivations.draining()
    }

    /// Whether no agent is deactivated, or requested to be.
    #[cfg(test)]
    pub(crate) fn has_no_deactivations(&self) -> bool {
        self.deactivations.is_empty() && self.requested_deactivations.is_empty()
    }
}

fn set_quotas(quotas: &mut BTreeMap<Role, Quota>, changes: &[(Role, Quota)]) {
    for (role, quota) in changes {
        if quota.is_default() {
            quotas.remove(role);
        } else {
            quotas.insert(role.clone(), quota.clone());
        }
    }
}

/// Parses a role from the registry. The master ignores an invalid role together with its stored value, and nothing
/// else.
pub(in crate::core) fn stored_role(name: &str) -> Option<Role> {
    let role = Role::new(name).map_err(|error| error.to_string());
    let checked = role.and_then(|role| match Allocator::check_role(&role) {
        Ok(()) => Ok(role),
        Err(error) => Err(error.to_string()),
    });
    checked
        .inspect_err(|reason| {
            tracing::error!(role = %name.escape_debug(), %reason, "weight of the registry left out");
        })
        .ok()
}
