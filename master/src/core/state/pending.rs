//! Actions that wait for a durable mutation.
//!
//! `core/effect.rs` keeps the order of the mutations; `core/step.rs` carries the actions out.

use std::sync::Arc;
use std::time::Duration;

use meseta_allocator::Quota;
use meseta_proto::meseta::v1 as meseta;
use meseta_resources::{AgentId, ResourceQuantities, Role};

use super::agent::AgentProfile;
use super::deactivation::Deactivation;
use super::maintenance::Plan;
use super::ownership::Subscription;
use crate::core::answer::Answer;
use crate::core::ids::{ConnectionId, ReplyId};

/// An action that waits for a durable mutation.
#[derive(Debug)]
pub(in crate::core) enum Pending {
    /// Admits a new agent.
    Admit {
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
    },
    /// Readmits an agent without a record in this master, with its tasks.
    Readmit {
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
        report: Box<meseta::Reregister>,
    },
    /// Resumes a registered agent whose description has changed.
    Refresh {
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
        report: Box<meseta::Reregister>,
    },
    /// Raises the epoch, and continues with the agent that has obeyed a higher one than the former.
    RaiseEpoch {
        epoch: u64,
        connection: ConnectionId,
        report: Box<meseta::Reregister>,
    },
    Unreachable {
        agent: AgentId,
        since: Duration,
    },
    RecoveredUnreachable {
        agent: AgentId,
        since: Duration,
    },
    Removed {
        agent: AgentId,
        why: &'static str,
    },
    AllRemoved {
        agents: Vec<AgentId>,
        why: &'static str,
    },
    Prune {
        agents: Vec<AgentId>,
    },
    PruneGone {
        agents: Vec<AgentId>,
    },
    Subscribe(Box<Subscription>),
    Removals,
    Operator(OperatorPending),
    /// No action: the record matters only after a restart.
    Nothing,
}

impl Pending {
    /// Whether the action removes an agent and its deactivation from the registry.
    pub(in crate::core) fn removes(&self, id: &AgentId) -> bool {
        match self {
            Self::Removed { agent, .. } | Self::Operator(OperatorPending::Gone { agent, .. }) => {
                agent == id
            }
            Self::AllRemoved { agents, .. } | Self::Prune { agents } => agents.contains(id),
            _ => false,
        }
    }

    /// The agent that waits for admission.
    pub(in crate::core) fn newcomer(&self) -> Option<&AgentProfile> {
        match self {
            Self::Admit { profile, .. } | Self::Readmit { profile, .. } => Some(profile),
            _ => None,
        }
    }
}

/// An action that waits for an operator's durable mutation.
#[derive(Debug)]
pub(in crate::core) enum OperatorPending {
    Quota {
        reply: ReplyId,
        changes: Vec<(Role, Quota)>,
        rescind: Rescind,
        answer: Answer,
    },
    Weights {
        reply: ReplyId,
        changes: Vec<(Role, f64)>,
    },
    Maintenance {
        reply: ReplyId,
        plan: Arc<Plan>,
    },
    /// A deactivation, without a reply if the master itself requested it.
    Deactivation {
        reply: Option<ReplyId>,
        agent: AgentId,
        deactivation: Option<Deactivation>,
    },
    Gone {
        reply: Option<ReplyId>,
        agent: AgentId,
        since: Duration,
    },
}

/// The offers that a change rescinds.
#[derive(Debug)]
pub(in crate::core) enum Rescind {
    Nothing,
    /// Rescinds at least this amount, agent by agent.
    Request(Role, ResourceQuantities),
    /// Rescinds the excess over a limit, and the amount missing for a guarantee.
    Changes,
}
