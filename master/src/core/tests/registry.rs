//! A simulated registry: the content of the disk.

use super::*;

/// The state that a master reads from the records written for this state.
pub(super) fn through_records(registry: Recovered) -> Recovered {
    let epoch = registry.epoch;
    let maintenance = [Mutation::PutMaintenance(Arc::new(registry.maintenance))].into_iter();
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
