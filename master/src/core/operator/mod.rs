//! Requests of operators: quota, weights, maintenance, draining and removal of agents.
//!
//! Entered through [`MasterCore::administer`]. The core checks a request against the durable state and the pending
//! writes, stores it, and only then applies and answers it. Invariant: a refused request has changed nothing.

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
use crate::core::ids::ReplyId;
use crate::core::input::Administration;
use crate::core::master::MasterCore;
use crate::core::state::pending::OperatorPending;

impl MasterCore {
    /// Handles a request; the answer comes now for a refusal, else when the change is durable.
    pub(super) fn administer(
        &mut self,
        reply: ReplyId,
        request: Administration,
        approver: &Approver,
    ) {
        if self.effects.is_busy() {
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

    /// Checks that the allocator accepts the role, and that the configured roles, if any, include it.
    fn check_known(&self, role: &Role) -> Result<(), Invalid> {
        Allocator::check_role(role).map_err(Invalid::from_error)?;
        match &self.config.roles {
            Some(roles) if !roles.contains(role) => Err(invalid!("Unknown role '{role}'")),
            Some(_) | None => Ok(()),
        }
    }
}

fn refused(message: impl Into<String>) -> Answer {
    Answer::BadRequest(message.into())
}
