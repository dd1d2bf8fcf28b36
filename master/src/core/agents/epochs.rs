//! Raises the registry's epoch above the epoch that an agent has obeyed.
//!
//! Such an agent no longer obeys this master: the registry was restored from an older copy. Entered from
//! [`registration`](super::registration) when an agent reregisters. Invariant: an agent that reports an obeyed epoch
//! gets its answer only once a higher epoch is durable.

use std::time::Duration;

use meseta_proto::meseta::v1 as meseta;
use meseta_resources::AgentId;

use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::pending::Pending;
use crate::core::state::persisted::Mutation;
use crate::core::state::rejection::Rejection;

/// The shortest time between two raises. Each raise makes all agents write to disk, and an agent with invented epochs
/// must not keep them busy.
const EPOCH_RISE_INTERVAL: Duration = Duration::from_secs(10);

impl MasterCore {
    /// The epoch that this master needs for the agent to obey it; `None` if the current one suffices.
    pub(super) fn epoch_needed(
        &self,
        register: &meseta::Register,
    ) -> Result<Option<u64>, Rejection> {
        let obeyed = register.obeyed.as_ref();
        let same = obeyed.filter(|obeyed| self.cluster_id.as_ref() == Some(&obeyed.cluster_id));
        let Some(obeyed) = same else {
            return Ok(None);
        };
        // If another start has used the same epoch, this master needs a higher one.
        let own = self.config.identity.id.as_str();
        let is_another = obeyed.master_id.as_deref().is_some_and(|id| id != own);
        let is_enough = match is_another {
            true => self.epoch > obeyed.epoch,
            false => self.epoch >= obeyed.epoch,
        };
        if is_enough {
            return Ok(None);
        }
        let next = obeyed.epoch.checked_add(1);
        // The limit for all raises of one master: an agent with invented epochs must not outrun every copy of the
        // registry.
        let max = self.config.registry_epoch_rise_max;
        let rise = next.map(|next| next.saturating_sub(self.first_epoch));
        match next.filter(|_| rise.is_some_and(|rise| rise <= max)) {
            Some(next) => Ok(Some(next)),
            None => Err(Rejection::for_now(format!(
                "the agent says that it has obeyed epoch {} of this cluster, whose registry was at {} when this master began: \
                 a difference above {max} is not believed; if the registry is the right one and most agents say so, start the \
                 master once with --registry_epoch_rise_max={}",
                obeyed.epoch,
                self.first_epoch,
                rise.unwrap_or(u64::MAX)
            ))),
        }
    }

    /// Writes a higher epoch; the agent's reregistration continues when the epoch is durable.
    pub(super) fn raise_epoch(
        &mut self,
        agent: &AgentId,
        needed: u64,
        connection: ConnectionId,
        report: meseta::Reregister,
    ) -> Result<(), Rejection> {
        if needed > self.requested_epoch {
            if self.now.moment < self.next_epoch_rise {
                return Err(Rejection::for_now(
                    "the epoch was made a higher one just now for another agent",
                ));
            }
            self.log_rise(agent, needed, report.register.obeyed.as_ref());
            self.requested_epoch = needed;
            self.next_epoch_rise = self.now.moment + EPOCH_RISE_INTERVAL;
        }
        let epoch = self.requested_epoch;
        self.handshakes.insert(connection);
        self.persist(
            Mutation::RaiseEpoch { epoch },
            Pending::RaiseEpoch {
                epoch,
                connection,
                report: Box::new(report),
            },
        );
        Ok(())
    }

    /// Logs the reason for raising the epoch. An agent that this master registered and that has since obeyed another
    /// epoch shows that another master runs, or ran a moment ago, on a copy of the registry. Agents are accepted
    /// nevertheless: they cannot know which master is the right one, and a master started by mistake and stopped
    /// again must not keep them.
    fn log_rise(&self, agent: &AgentId, to: u64, obeyed: Option<&meseta::ObeyedEpoch>) {
        let other = obeyed.and_then(|obeyed| obeyed.master_id.as_deref());
        let other = other.unwrap_or_default().escape_debug();
        let from = self.epoch;
        if self.agents.contains_key(agent) {
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

    /// Continues the reregistration of the agent for which the epoch was raised.
    pub(in crate::core) fn epoch_raised(
        &mut self,
        epoch: u64,
        connection: ConnectionId,
        report: meseta::Reregister,
    ) {
        self.epoch = self.epoch.max(epoch);
        if self.handshakes.remove(&connection) {
            let result = self.reregister(connection, report);
            self.conclude_handshake(connection, result);
        }
    }
}
