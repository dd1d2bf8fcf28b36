//! Sums over an agent's tables: each sum is computed for its first reader, and kept until the agent changes.
//!
//! Readers enter through [`AgentView`]; the core never does.

use std::fmt;
use std::sync::OnceLock;

use meseta_resources::{FrameworkId, ResourceQuantities, Resources, Role};

use super::by_framework::StateCounts;
use super::snapshot::AgentView;

/// The amounts of one role on an agent.
#[derive(Clone, Debug, Default)]
pub struct RoleAmounts {
    pub allocated: ResourceQuantities,
    pub offered: ResourceQuantities,
    pub reserved: ResourceQuantities,
    /// The amount that counts towards quota: used unreserved resources, and reservations.
    pub consumed: ResourceQuantities,
}

/// The sums of an agent that readers have requested.
#[derive(Clone, Default)]
pub struct AgentDigest {
    states: OnceLock<Vec<(FrameworkId, StateCounts)>>,
    used: OnceLock<Resources>,
    roles: OnceLock<Vec<(Role, RoleAmounts)>>,
}

impl fmt::Debug for AgentDigest {
    /// Prints no sums, because the set of computed sums says nothing about the agent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentDigest").finish_non_exhaustive()
    }
}

impl AgentView {
    /// The states of the tasks of each framework.
    #[must_use]
    pub fn task_states(&self) -> &[(FrameworkId, StateCounts)] {
        self.digest.states.get_or_init(|| task_states(self))
    }

    /// The resources that all frameworks together hold on this agent.
    #[must_use]
    pub fn used_total(&self) -> &Resources {
        let used = &self.digest.used;
        used.get_or_init(|| self.used.values().sum())
    }

    /// The amounts of each role on this agent.
    #[must_use]
    pub fn role_amounts(&self) -> &[(Role, RoleAmounts)] {
        self.digest.roles.get_or_init(|| roles(self))
    }
}

fn task_states(agent: &AgentView) -> Vec<(FrameworkId, StateCounts)> {
    let mut states: Vec<(FrameworkId, StateCounts)> = Vec::new();
    for ((framework, _), task) in agent.tasks.iter() {
        match states.last_mut() {
            Some((last, counts)) if last == framework => counts.add(task.state, 1),
            _ => {
                let mut counts = StateCounts::default();
                counts.add(task.state, 1);
                states.push((framework.clone(), counts));
            }
        }
    }
    states
}

fn roles(agent: &AgentView) -> Vec<(Role, RoleAmounts)> {
    let mut roles = Vec::new();
    for resource in agent.used.values().flatten() {
        let Some(role) = resource.allocation_role() else {
            continue;
        };
        let (of_role, amount) = (entry(&mut roles, role), resource.value().quantity());
        of_role.allocated.increase(resource.name(), amount);
        if resource.is_unreserved() && !resource.is_revocable() {
            of_role.consumed.increase(resource.name(), amount);
        }
    }
    for resource in &agent.offered {
        if let Some(role) = resource.allocation_role() {
            let offered = &mut entry(&mut roles, role).offered;
            offered.increase(resource.name(), resource.value().quantity());
        }
    }
    for resource in &agent.profile.total {
        if let Some(role) = resource.reservation_role() {
            let (of_role, amount) = (entry(&mut roles, role), resource.value().quantity());
            of_role.reserved.increase(resource.name(), amount);
            of_role.consumed.increase(resource.name(), amount);
        }
    }
    roles
}

/// Finds or adds a role's entry; an agent has a handful of roles.
fn entry<'a>(roles: &'a mut Vec<(Role, RoleAmounts)>, role: &Role) -> &'a mut RoleAmounts {
    let index = roles.iter().position(|(known, _)| known == role);
    let index = index.unwrap_or_else(|| {
        roles.push((role.clone(), RoleAmounts::default()));
        roles.len() - 1
    });
    &mut roles[index].1
}
