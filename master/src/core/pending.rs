//! What happens once a mutation is durable.
//!
//! Entered through [`MasterCore::take_effect`], in the order in which mutations were made. Invariant: what an agent
//! or a framework is told of a mutation follows from here.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::meseta::v1 as meseta;
use meseta_resources::AgentId;

use crate::core::MasterCore;
use crate::core::frameworks::ownership::Subscription;
use crate::core::ids::ConnectionId;
use crate::core::operator;
use crate::core::state::agent::AgentProfile;

/// What happens once a mutation is durable.
#[derive(Debug)]
pub(super) enum Pending {
    /// A new agent is admitted.
    Admit {
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
    },
    /// An agent that this master does not hold may come back with what it runs.
    Readmit {
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
        report: Box<meseta::Reregister>,
    },
    /// An agent that this master holds has changed and goes on.
    Refresh {
        connection: ConnectionId,
        profile: Arc<AgentProfile>,
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
    Operator(operator::Pending),
    /// Nothing: it is only to be known after a restart.
    Nothing,
}

impl Pending {
    /// The agent that waits for admission.
    pub(super) fn newcomer(&self) -> Option<&AgentProfile> {
        match self {
            Self::Admit { profile, .. } | Self::Readmit { profile, .. } => Some(profile),
            _ => None,
        }
    }
}

impl MasterCore {
    pub(super) fn take_effect(&mut self, pending: Pending) {
        match pending {
            Pending::Nothing => {}
            Pending::Removals => self.write_removals(),
            Pending::Admit {
                connection,
                profile,
            } => self.admit_agent(connection, profile),
            Pending::Readmit {
                connection,
                profile,
                report,
            } => self.readmit(connection, profile, *report),
            Pending::Refresh {
                connection,
                profile,
                report,
            } => {
                if self.handshakes.remove(&connection) {
                    self.resume(connection, profile, *report);
                } else {
                    self.keep_former_description(&profile.id);
                }
            }
            Pending::Unreachable { agent, since } => self.agent_unreachable(&agent, since),
            Pending::RecoveredUnreachable { agent, since } => {
                self.recovered_unreachable(agent, since);
            }
            Pending::Removed { agent, why } => self.agent_removed(&agent, why),
            Pending::AllRemoved { agents, why } => {
                for agent in &agents {
                    self.agent_removed(agent, why);
                }
            }
            Pending::PruneGone { agents } => self.forget_gone_agents(&agents),
            Pending::Subscribe(subscription) => self.subscription_stored(*subscription),
            Pending::Operator(pending) => self.administered(pending),
            Pending::Prune { agents } => {
                for agent in agents {
                    self.unreachable_agents.remove(&agent);
                    self.forget_deactivation(&agent);
                }
            }
        }
    }
}
