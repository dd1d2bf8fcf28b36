//! Settings made by operators: quotas, weights, maintenance and deactivated agents.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_allocator::{Allocator, Quota};
use meseta_resources::{AgentId, Role};

use super::deactivation::{Deactivation, Deactivations};
use super::maintenance::Plan;
use super::persisted::Recovered;

/// The settings made by operators.
#[derive(Debug, Default)]
pub(in crate::core) struct OperatorSettings {
    /// Durable quotas, in effect.
    pub(in crate::core) quotas: Arc<BTreeMap<Role, Quota>>,
    /// The requested quotas: those in effect after all pending writes to the registry.
    pub(in crate::core) requested_quotas: BTreeMap<Role, Quota>,
    pub(in crate::core) requested_weights: BTreeMap<Role, f64>,
    pub(in crate::core) maintenance: Arc<Plan>,
    pub(in crate::core) requested_maintenance: Arc<Plan>,
    pub(in crate::core) deactivations: Deactivations,
    pub(in crate::core) requested_deactivations: Deactivations,
}

impl OperatorSettings {
    pub(in crate::core) fn recovered(recovered: &Recovered, weights: &BTreeMap<Role, f64>) -> Self {
        let quotas: BTreeMap<Role, Quota> = recovered
            .quotas
            .iter()
            .filter(|(_, quota)| !quota.is_default())
            .cloned()
            .collect();
        let deactivations: BTreeMap<AgentId, Deactivation> = recovered
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
            maintenance: plan.clone(),
            requested_maintenance: plan,
            deactivations: Deactivations(deactivations.clone()),
            requested_deactivations: Deactivations(deactivations),
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
