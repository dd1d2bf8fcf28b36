//! Carries out the actions that waited for a mutation to become durable.
//!
//! Entered through [`MasterCore::persisted`], in the order of the mutations. Invariant: agents and frameworks learn
//! of a mutation only through these actions.

use super::ids::Lsn;
use super::master::MasterCore;
use super::state::pending::Pending;

impl MasterCore {
    /// Carries out all actions that waited for this mutation or an earlier one.
    pub(super) fn persisted(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        while let Some((first, _)) = self.pending.front() {
            if *first > lsn {
                break;
            }
            if let Some((_, then)) = self.pending.pop_front() {
                self.take_effect(then);
            }
        }
    }

    fn take_effect(&mut self, pending: Pending) {
        match pending {
            Pending::Nothing => {}
            Pending::Removals => self.removals_stored(),
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
            Pending::RaiseEpoch {
                epoch,
                connection,
                report,
            } => self.epoch_raised(epoch, connection, *report),
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
                for agent in &agents {
                    self.unreachable_pruned(agent);
                }
            }
        }
    }
}
