//! The registry, played: what would be on disk.

use super::*;

/// The agent is neither known nor unreachable.
fn forget(registry: &mut Recovered, id: &str) {
    registry.agents.retain(|agent| agent.agent_id != id);
    registry.unreachable.retain(|agent| agent.agent_id != id);
}

/// What a master reads of the records in which this is stored.
pub(super) fn through_records(registry: Recovered) -> Recovered {
    let epoch = registry.epoch;
    let maintenance = [Mutation::PutMaintenance(registry.maintenance)].into_iter();
    let agents = registry.agents.into_iter().map(Mutation::PutAgent);
    let unreachable = registry.unreachable.into_iter();
    let gone = registry.gone.into_iter();
    let deactivations = registry.deactivations.into_iter();
    let mutations = maintenance
        .chain([Mutation::UpdateQuota(registry.quotas)])
        .chain(registry.weights.map(Mutation::PutWeights))
        .chain(agents)
        .chain(unreachable.map(Mutation::MarkUnreachable))
        .chain(gone.map(|(agent_id, since)| Mutation::MarkGone { agent_id, since }))
        .chain(deactivations.map(|(agent_id, deactivation)| {
            let deactivation = Some(deactivation);
            Mutation::PutDeactivation {
                agent_id,
                deactivation,
            }
        }))
        .chain([Mutation::EndFrameworks {
            removed: registry.removed_frameworks,
            forgotten: Vec::new(),
        }])
        .chain(registry.frameworks.into_iter().map(Mutation::PutFramework))
        .chain(registry.deadlines.into_iter().map(Mutation::PutDeadline));
    let mutations: Vec<_> = mutations.collect();
    Recovered {
        epoch,
        ..crate::registry::read_back(&mutations)
    }
}

impl World {
    pub(super) fn apply(&mut self, mutation: Mutation) {
        let registry = &mut self.registry;
        match mutation {
            Mutation::PutAgent(record) => {
                forget(registry, &record.agent_id);
                registry.agents.push(record);
            }
            Mutation::RaiseEpoch { epoch } => registry.epoch = registry.epoch.max(epoch),
            Mutation::MarkUnreachable(record) => {
                forget(registry, &record.agent_id);
                registry.unreachable.push(record);
            }
            Mutation::RemoveAgent { agent_id } => {
                forget(registry, &agent_id);
            }
            Mutation::RemoveAgents { agent_ids } => {
                let stays = |id: &String| !agent_ids.contains(id);
                registry.agents.retain(|agent| stays(&agent.agent_id));
                registry.unreachable.retain(|agent| stays(&agent.agent_id));
            }
            Mutation::PruneUnreachable { agent_ids } => {
                registry
                    .unreachable
                    .retain(|agent| !agent_ids.contains(&agent.agent_id));
            }
            Mutation::PutWeights(weights) => registry.weights = Some(weights),
            Mutation::PutMaintenance(maintenance) => registry.maintenance = maintenance,
            Mutation::PutDeactivation {
                agent_id,
                deactivation,
            } => {
                registry.deactivations.retain(|(id, _)| *id != agent_id);
                registry
                    .deactivations
                    .extend(deactivation.map(|deactivation| (agent_id, deactivation)));
            }
            Mutation::MarkGone { agent_id, since } => {
                forget(registry, &agent_id);
                registry.deactivations.retain(|(id, _)| *id != agent_id);
                registry.gone.push((agent_id, since));
            }
            Mutation::PruneGone { agent_ids } => {
                registry.gone.retain(|(id, _)| !agent_ids.contains(id));
            }
            Mutation::UpdateQuota(changes) => {
                for (role, quota) in changes {
                    registry.quotas.retain(|(known, _)| *known != role);
                    if !quota.is_default() {
                        registry.quotas.push((role, quota));
                    }
                }
            }
            Mutation::PutFramework(record) => {
                let id = record.framework_id.clone();
                registry.frameworks.retain(|known| known.framework_id != id);
                registry.frameworks.push(record);
            }
            Mutation::RemoveFrameworks { framework_ids } => registry
                .frameworks
                .retain(|known| !framework_ids.contains(&known.framework_id)),
            Mutation::EndFrameworks { removed, forgotten } => {
                for (id, since) in removed {
                    registry.frameworks.retain(|known| known.framework_id != id);
                    registry.removed_frameworks.push((id, since));
                }
                registry
                    .removed_frameworks
                    .retain(|(id, _)| !forgotten.contains(id));
            }
            Mutation::PutDeadline(record) => registry.deadlines.push(record),
            Mutation::RemoveDeadlines { framework_ids } => registry
                .deadlines
                .retain(|record| !framework_ids.contains(&record.framework_id)),
        }
    }
}
