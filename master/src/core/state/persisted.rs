//! The content of the registry, in the core's types.
//!
//! The core requests [`Mutation`]s and starts from [`Recovered`]; the registry decides how to store them. Agent
//! descriptions stay encoded, so that fields unknown to this build survive a restart.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use meseta_allocator::Quota;
use meseta_resources::Role;

use super::deactivation::Deactivation;
use super::maintenance::Maintenance;

/// A change of the registry, atomic and durable before it takes effect.
#[derive(Clone, Debug, PartialEq)]
pub enum Mutation {
    /// Admits an agent or replaces its record; removes it from the unreachable agents.
    PutAgent(AgentRecord),
    /// Raises the epoch to at least this one, above an epoch that an agent has obeyed.
    RaiseEpoch { epoch: u64 },
    /// Marks an agent as unreachable after too long a silence; it may come back.
    MarkUnreachable(UnreachableRecord),
    /// Removes an agent permanently.
    RemoveAgent { agent_id: String },
    /// Removes these agents permanently, in one change.
    RemoveAgents { agent_ids: Vec<String> },
    /// Drops the oldest entries of the list of unreachable agents.
    PruneUnreachable { agent_ids: Vec<String> },
    /// Replaces the weights of all roles.
    PutWeights(Vec<(String, f64)>),
    /// Replaces the quotas of these roles; a default quota removes the role's.
    UpdateQuota(Vec<(Role, Quota)>),
    /// Stores the owner of a framework's id: a principal, or a user of the master's machine. Deletes an earlier
    /// removal.
    PutFramework(FrameworkRecord),
    /// Forgets the owners of these framework ids.
    RemoveFrameworks { framework_ids: Vec<String> },
    /// Records these frameworks as removed, so that their ids are never assigned again, and forgets some of the
    /// removals.
    EndFrameworks {
        removed: Vec<RemovedRecord>,
        forgotten: Vec<String>,
    },
    /// Records the deadline of a disconnected framework, which ends if it does not return in time.
    PutDeadline(DeadlineRecord),
    /// Removes the deadlines of frameworks that returned or ended.
    RemoveDeadlines { framework_ids: Vec<String> },
    /// Replaces the schedule of maintenance and the list of machines that are down.
    PutMaintenance(Arc<Maintenance>),
    /// Records that an agent gets no work or, with `None`, that it gets work again.
    PutDeactivation {
        agent_id: String,
        deactivation: Option<Deactivation>,
    },
    /// Marks an agent as permanently gone, with the time since the Unix epoch.
    MarkGone { agent_id: String, since: Duration },
    /// Drops the oldest entries of the list of gone agents.
    PruneGone { agent_ids: Vec<String> },
}

#[derive(Clone, Debug, PartialEq)]
pub struct AgentRecord {
    pub agent_id: String,
    /// An encoded `mesos.v1.AgentInfo` with the id set.
    pub info: Bytes,
}

/// An agent that stopped answering.
#[derive(Clone, Debug, PartialEq)]
pub struct UnreachableRecord {
    pub agent_id: String,
    /// The time since the Unix epoch from which the agent is unreachable.
    pub since: Duration,
    /// The host from which the agent was admitted; empty in a record of an older master.
    pub hostname: String,
}

/// The owner of a framework's id.
#[derive(Clone, Debug, PartialEq)]
pub struct FrameworkRecord {
    pub framework_id: String,
    /// The principal, or `None` if the framework belongs to a user of the master's machine.
    pub principal: Option<String>,
    /// The user of the master's machine that the framework runs as, if no principal is proven.
    pub user: Option<u32>,
    /// The time since the Unix epoch from which the master had no contact with the framework.
    pub absent: Option<Duration>,
}

/// A framework that was removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemovedRecord {
    pub framework_id: String,
    /// The time of the removal since the Unix epoch.
    pub since: Duration,
    /// The owner's principal; `None` without a principal, or in a record of an older master.
    pub principal: Option<String>,
    /// The owner as a user of the master's machine.
    pub user: Option<u32>,
    /// Whether an operator who is not the owner ended the framework.
    pub by_operator: bool,
}

/// The deadline for the return of a disconnected framework.
#[derive(Clone, Debug, PartialEq)]
pub struct DeadlineRecord {
    pub framework_id: String,
    /// The deadline since the Unix epoch.
    pub deadline: Duration,
}

/// The whole state of a starting master.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recovered {
    /// The epoch, which grows with every start, so that agents ignore the frames of an older master.
    pub epoch: u64,
    /// The id of the registry for its whole life; empty without a registry.
    pub cluster_id: String,
    /// Whether the registry ends with this master: the next registry has another id.
    pub is_forgotten: bool,
    pub agents: Vec<AgentRecord>,
    pub unreachable: Vec<UnreachableRecord>,
    /// The gone agents, with the time since the Unix epoch.
    pub gone: Vec<(String, Duration)>,
    /// The frameworks with an owner that were not removed.
    pub frameworks: Vec<FrameworkRecord>,
    pub removed_frameworks: Vec<RemovedRecord>,
    /// The deadlines of frameworks that were disconnected when the last master ended.
    pub deadlines: Vec<DeadlineRecord>,
    /// The weights; `None` if none were ever written.
    pub weights: Option<Vec<(String, f64)>>,
    pub quotas: Vec<(Role, Quota)>,
    pub maintenance: Maintenance,
    pub deactivations: Vec<(String, Deactivation)>,
}

impl Recovered {
    /// Applies a mutation: the result equals the state that a master reads after it, except for the epoch of that
    /// start.
    pub fn apply(&mut self, mutation: Mutation) {
        let registry = self;
        match mutation {
            Mutation::PutAgent(record) => {
                registry.forget(&record.agent_id);
                registry.agents.push(record);
            }
            Mutation::RaiseEpoch { epoch } => registry.epoch = registry.epoch.max(epoch),
            Mutation::MarkUnreachable(record) => {
                registry.forget(&record.agent_id);
                registry.unreachable.push(record);
            }
            Mutation::RemoveAgent { agent_id } => {
                registry.forget(&agent_id);
                registry.deactivations.retain(|(id, _)| *id != agent_id);
            }
            Mutation::RemoveAgents { agent_ids } => {
                let stays = |id: &String| !agent_ids.contains(id);
                registry.agents.retain(|agent| stays(&agent.agent_id));
                registry.unreachable.retain(|agent| stays(&agent.agent_id));
                registry.deactivations.retain(|(id, _)| stays(id));
            }
            Mutation::PruneUnreachable { agent_ids } => {
                let stays = |id: &String| !agent_ids.contains(id);
                registry.unreachable.retain(|agent| stays(&agent.agent_id));
                registry.deactivations.retain(|(id, _)| stays(id));
            }
            Mutation::PutWeights(weights) => registry.weights = Some(weights),
            Mutation::PutMaintenance(maintenance) => {
                registry.maintenance = Arc::unwrap_or_clone(maintenance);
            }
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
                registry.forget(&agent_id);
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
                registry
                    .removed_frameworks
                    .retain(|removed| removed.framework_id != id);
                registry.frameworks.push(record);
            }
            Mutation::RemoveFrameworks { framework_ids } => registry
                .frameworks
                .retain(|known| !framework_ids.contains(&known.framework_id)),
            Mutation::EndFrameworks { removed, forgotten } => {
                registry.end_frameworks(removed, &forgotten);
            }
            Mutation::PutDeadline(record) => registry.deadlines.push(record),
            Mutation::RemoveDeadlines { framework_ids } => registry
                .deadlines
                .retain(|record| !framework_ids.contains(&record.framework_id)),
        }
    }

    fn end_frameworks(&mut self, removed: Vec<RemovedRecord>, forgotten: &[String]) {
        let ended: BTreeSet<_> = removed.iter().map(|record| &record.framework_id).collect();
        self.frameworks
            .retain(|known| !ended.contains(&known.framework_id));
        self.removed_frameworks
            .retain(|known| !ended.contains(&known.framework_id));
        self.removed_frameworks.extend(removed);
        let forgotten: BTreeSet<_> = forgotten.iter().collect();
        self.removed_frameworks
            .retain(|record| !forgotten.contains(&record.framework_id));
    }

    /// Removes the agent from the known and from the unreachable agents.
    fn forget(&mut self, id: &str) {
        self.agents.retain(|agent| agent.agent_id != id);
        self.unreachable.retain(|agent| agent.agent_id != id);
    }
}
