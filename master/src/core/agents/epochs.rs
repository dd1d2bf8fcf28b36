//! Raises the registry's epoch above the epoch that an agent has obeyed.
//!
//! Entered from [`registration`](super::registration) when an agent reregisters. Invariant: an agent that reports an
//! obeyed epoch gets its answer only once a higher epoch is durable.

use std::ops::Range;

use meseta_proto::meseta::v1 as meseta;
use meseta_resources::AgentId;

use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::epochs::EpochRequest;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::Mutation;
use crate::core::state::rejection::Rejection;

impl MasterCore {
    /// The epoch that this master needs for the agent to obey it; `None` if the current one suffices.
    pub(super) fn epoch_needed(
        &self,
        register: &meseta::Register,
    ) -> Result<Option<u64>, Rejection> {
        let own = self.config.identity.id.as_str();
        let rise_max = self.config.registry_epoch_rise_max;
        self.epochs
            .find_needed(register.obeyed.as_ref(), own, rise_max)
    }

    /// Writes a higher epoch; the agent's reregistration continues when the epoch is durable.
    pub(super) fn raise_epoch(
        &mut self,
        agent: &AgentId,
        needed: u64,
        connection: ConnectionId,
        report: meseta::Reregister,
    ) -> Result<(), Rejection> {
        let epoch = match self.epochs.request(needed, self.now.moment)? {
            EpochRequest::Earlier(epoch) => epoch,
            EpochRequest::New(epoch) => {
                let from = self.epochs.current();
                let is_registered = self.agents.contains_key(agent);
                let obeyed = report.register.obeyed.as_ref();
                log_rise(agent, is_registered, from..epoch, obeyed);
                epoch
            }
        };
        self.agent_connections.begin_handshake(connection);
        self.effects.persist(
            Mutation::RaiseEpoch { epoch },
            Pending::RaiseEpoch {
                epoch,
                connection,
                report: Box::new(report),
            },
        );
        Ok(())
    }

    /// Continues the reregistration of the agent for which the epoch was raised.
    pub(in crate::core) fn epoch_raised(
        &mut self,
        epoch: u64,
        connection: ConnectionId,
        report: meseta::Reregister,
    ) {
        self.epochs.raise(epoch);
        if self.agent_connections.end_handshake(connection) {
            let result = self.reregister(connection, report);
            self.conclude_handshake(connection, result);
        }
    }
}

/// Logs the reason for raising the epoch. An agent that this master registered and that has since obeyed another
/// epoch shows that another master runs, or ran a moment ago, on a copy of the registry. Agents are accepted
/// nevertheless: they cannot know which master is the right one, and a master started by mistake and stopped again
/// must not keep them.
fn log_rise(
    agent: &AgentId,
    is_registered: bool,
    rise: Range<u64>,
    obeyed: Option<&meseta::ObeyedEpoch>,
) {
    let other = obeyed.and_then(|obeyed| obeyed.master_id.as_deref());
    let other = other.unwrap_or_default().escape_debug();
    let Range {
        start: from,
        end: to,
    } = rise;
    if is_registered {
        tracing::error!(
            agent_id = %agent, from, to, %other,
            "an agent of this master has obeyed another one with a higher epoch since: another master runs on a copy \
             of this registry; stop one of the two. The epoch is made a higher one"
        );
    } else {
        tracing::warn!(
            agent_id = %agent, from, to, %other,
            "an agent has obeyed a higher epoch, so the registry was restored from an older copy: its epoch is made \
             a higher one"
        );
    }
}
