//! What an agent's tables amount to, added up once for as long as the agent does not change.
//!
//! Entered through [`AgentView::digest`], by readers, never by the core.

use meseta_resources::{FrameworkId, ResourceQuantities, Resources, Role};

use super::by_framework::StateCounts;
use super::snapshot::AgentView;

/// What a role has of an agent.
#[derive(Clone, Debug, Default)]
pub struct RoleAmounts {
    pub allocated: ResourceQuantities,
    pub offered: ResourceQuantities,
    pub reserved: ResourceQuantities,
    /// Counts towards quota: what is used unreserved, and what is reserved.
    pub consumed: ResourceQuantities,
}

#[derive(Clone, Debug)]
pub struct AgentDigest {
    /// The states of the tasks of each framework.
    pub states: Vec<(FrameworkId, StateCounts)>,
    /// What all frameworks together hold.
    pub used: Resources,
    pub roles: Vec<(Role, RoleAmounts)>,
}

impl AgentDigest {
    pub(in crate::core) fn of(agent: &AgentView) -> Self {
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
        Self {
            states,
            used: agent.used_total(),
            roles: roles(agent),
        }
    }
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

/// There are a handful of roles on an agent.
fn entry<'a>(roles: &'a mut Vec<(Role, RoleAmounts)>, role: &Role) -> &'a mut RoleAmounts {
    let index = roles.iter().position(|(known, _)| known == role);
    let index = index.unwrap_or_else(|| {
        roles.push((role.clone(), RoleAmounts::default()));
        roles.len() - 1
    });
    &mut roles[index].1
}
