//! What operators ask for: quota, weights, maintenance, agents drained or gone.
//!
//! Entered through [`MasterCore::administer`]. A request is judged against what is durable and what is on
//! its way there, stored, and only then put into effect and answered. Invariant: a request that is
//! refused has changed nothing.

mod drain;
mod maintenance;
mod quota;
pub(super) mod watch;
mod weights;

use meseta_access::Approver;
use meseta_allocator::Allocator;
use meseta_proto::{Invalid, invalid};
use meseta_resources::Role;

use crate::core::answer::Answer;
use crate::core::config::PENDING_MUTATIONS_MAX;
use crate::core::ids::ReplyId;
use crate::core::input::Administration;
use crate::core::master::MasterCore;
use crate::core::state::pending::OperatorPending;

impl MasterCore {
    /// Judges a request; the answer comes now if it is refused, else when it is durable.
    pub(super) fn administer(
        &mut self,
        reply: ReplyId,
        request: Administration,
        approver: &Approver,
    ) {
        if self.pending.len() >= PENDING_MUTATIONS_MAX {
            let busy = "The registry is busy: try again".to_owned();
            self.reply(reply, Answer::Unavailable(busy));
            return;
        }
        let result = match request {
            Administration::SetQuota(request) => self.set_quota(reply, &request, approver),
            Administration::UpdateQuota { force, configs } => {
                self.update_quota(reply, force, &configs)
            }
            Administration::RemoveQuota { role } => self.remove_quota(reply, &role, approver),
            Administration::UpdateWeights(weights) => self.update_weights(reply, &weights),
            Administration::UpdateSchedule(schedule) => self.update_schedule(reply, *schedule),
            Administration::AddWindow(window) => self.add_window(reply, *window),
            Administration::StartMaintenance(machines) => self.start_maintenance(reply, &machines),
            Administration::StopMaintenance(machines) => self.stop_maintenance(reply, &machines),
            Administration::DrainAgent {
                agent_id,
                max_grace,
                mark_gone,
            } => self.drain_agent(reply, &agent_id, max_grace, mark_gone),
            Administration::DeactivateAgent { agent_id } => self.deactivate_agent(reply, &agent_id),
            Administration::ReactivateAgent { agent_id } => self.reactivate_agent(reply, &agent_id),
            Administration::MarkAgentGone { agent_id } => self.mark_agent_gone(reply, &agent_id),
        };
        if let Err(answer) = result {
            self.reply(reply, answer);
        }
    }

    pub(super) fn administered(&mut self, pending: OperatorPending) {
        match pending {
            OperatorPending::Quota {
                reply,
                changes,
                rescind,
                answer,
            } => self.quota_stored(reply, changes, &rescind, answer),
            OperatorPending::Weights { reply, changes } => self.weights_stored(reply, changes),
            OperatorPending::Maintenance { reply, plan } => self.maintenance_stored(reply, plan),
            OperatorPending::Deactivation {
                reply,
                agent,
                deactivation,
            } => self.deactivation_stored(reply, &agent, deactivation),
            OperatorPending::Gone {
                reply,
                agent,
                since,
            } => self.gone_stored(reply, &agent, since),
        }
    }

    /// The only roles there are, if the master was told of any; and none that the allocator does not take.
    fn check_known(&self, role: &Role) -> Result<(), Invalid> {
        Allocator::check_role(role).map_err(Invalid::of)?;
        match &self.config.roles {
            Some(roles) if !roles.contains(role) => Err(invalid!("Unknown role '{role}'")),
            Some(_) | None => Ok(()),
        }
    }
}

fn refused(message: impl Into<String>) -> Answer {
    Answer::BadRequest(message.into())
}
