//! What operators ask for: quota, weights, maintenance, agents drained or gone.
//!
//! Entered through [`MasterCore::administer`]. A request is judged against what is durable and what is on
//! its way there, stored, and only then put into effect and answered. Invariant: a request that is
//! refused has changed nothing.

mod drain;
mod machines;
mod maintenance;
mod quota;
pub(super) mod watch;
mod weights;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_access::Approver;
use meseta_allocator::{Allocator, Quota};
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::Schedule;
use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaRequest};
use meseta_resources::{AgentId, Role};

use crate::core::effect::Answer;
use crate::core::ids::ReplyId;
use crate::core::state::persisted::Recovered;
use crate::core::{MasterCore, PENDING_MUTATIONS_MAX};

pub(super) use drain::Deactivations;
pub use drain::{Deactivation, Drain};
pub(super) use machines::{Machine, Plan};
pub use maintenance::Maintenance;
pub(super) use weights::stored_role;

/// Something an operator wants.
#[derive(Clone, Debug)]
pub enum Request {
    /// Sets the quota of a role that has none.
    SetQuota(Box<QuotaRequest>),
    /// Replaces the quotas of roles, all or none; an empty one removes.
    UpdateQuota {
        force: bool,
        configs: Vec<QuotaConfig>,
    },
    /// Removes the quota of a role.
    RemoveQuota { role: String },
    /// Sets the weights of these roles; others keep theirs.
    UpdateWeights(Vec<(String, f64)>),
    /// Replaces the schedule of maintenance.
    UpdateSchedule(Box<Schedule>),
    /// Takes machines of the schedule down.
    StartMaintenance(Vec<MachineId>),
    /// Puts machines that are down back to work.
    StopMaintenance(Vec<MachineId>),
    /// Ends an agent's tasks and gives it no more.
    DrainAgent {
        agent_id: String,
        max_grace: Option<Duration>,
        mark_gone: bool,
    },
    /// Gives an agent no more work.
    DeactivateAgent { agent_id: String },
    /// Gives it work again.
    ReactivateAgent { agent_id: String },
    /// The agent will never be back.
    MarkAgentGone { agent_id: String },
}

/// What happens once an operator's mutation is durable.
#[derive(Debug)]
pub(super) enum Pending {
    Quota {
        reply: ReplyId,
        changes: Vec<(Role, Quota)>,
        rescind: quota::Rescind,
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
    /// Without a reply when the master itself wanted it.
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

/// What operators have set.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Durable and in effect.
    pub(super) quotas: Arc<BTreeMap<Role, Quota>>,
    /// The same once all that is on its way to the registry has arrived.
    requested_quotas: BTreeMap<Role, Quota>,
    requested_weights: BTreeMap<Role, f64>,
    pub(super) maintenance: Arc<Plan>,
    requested_maintenance: Arc<Plan>,
    pub(super) deactivations: Deactivations,
    requested_deactivations: Deactivations,
    /// Agents whose being gone is on its way to the registry.
    going: BTreeSet<AgentId>,
}

impl State {
    pub(super) fn recovered(recovered: &Recovered, weights: &BTreeMap<Role, f64>) -> Self {
        let quotas: BTreeMap<Role, Quota> = recovered
            .quotas
            .iter()
            .filter(|(_, quota)| !quota.is_default())
            .cloned()
            .collect();
        let deactivations: BTreeMap<AgentId, Deactivation> = recovered
            .deactivations
            .iter()
            .filter_map(|(id, deactivation)| Some((AgentId::new(id).ok()?, deactivation.clone())))
            .collect();
        let plan = Arc::new(Plan::of(Arc::new(recovered.maintenance.clone())));
        Self {
            requested_quotas: quotas.clone(),
            quotas: Arc::new(quotas),
            requested_weights: weights.clone(),
            maintenance: plan.clone(),
            requested_maintenance: plan,
            deactivations: Deactivations(deactivations.clone()),
            requested_deactivations: Deactivations(deactivations),
            going: BTreeSet::new(),
        }
    }
}

impl MasterCore {
    /// Judges a request; the answer comes now if it is refused, else when it is durable.
    pub(super) fn administer(&mut self, reply: ReplyId, request: Request, approver: &Approver) {
        if self.pending.len() >= PENDING_MUTATIONS_MAX {
            let busy = "The registry is busy: try again".to_owned();
            self.reply(reply, Answer::Unavailable(busy));
            return;
        }
        let result = match request {
            Request::SetQuota(request) => self.set_quota(reply, &request, approver),
            Request::UpdateQuota { force, configs } => self.update_quota(reply, force, &configs),
            Request::RemoveQuota { role } => self.remove_quota(reply, &role, approver),
            Request::UpdateWeights(weights) => self.update_weights(reply, &weights),
            Request::UpdateSchedule(schedule) => self.update_schedule(reply, *schedule),
            Request::StartMaintenance(machines) => self.start_maintenance(reply, &machines),
            Request::StopMaintenance(machines) => self.stop_maintenance(reply, &machines),
            Request::DrainAgent {
                agent_id,
                max_grace,
                mark_gone,
            } => self.drain_agent(reply, &agent_id, max_grace, mark_gone),
            Request::DeactivateAgent { agent_id } => self.deactivate_agent(reply, &agent_id),
            Request::ReactivateAgent { agent_id } => self.reactivate_agent(reply, &agent_id),
            Request::MarkAgentGone { agent_id } => self.mark_agent_gone(reply, &agent_id),
        };
        if let Err(answer) = result {
            self.reply(reply, answer);
        }
    }

    pub(super) fn administered(&mut self, pending: Pending) {
        match pending {
            Pending::Quota {
                reply,
                changes,
                rescind,
                answer,
            } => self.quota_stored(reply, changes, &rescind, answer),
            Pending::Weights { reply, changes } => self.weights_stored(reply, changes),
            Pending::Maintenance { reply, plan } => self.maintenance_stored(reply, plan),
            Pending::Deactivation {
                reply,
                agent,
                deactivation,
            } => self.deactivation_stored(reply, &agent, deactivation),
            Pending::Gone {
                reply,
                agent,
                since,
            } => self.gone_stored(reply, &agent, since),
        }
    }

    /// The only roles there are, if the master was told of any; and none that the allocator does not take.
    fn check_known(&self, role: &Role) -> Result<(), String> {
        Allocator::check_role(role).map_err(|error| error.to_string())?;
        match &self.config.roles {
            Some(roles) if !roles.contains(role) => Err(format!("Unknown role '{role}'")),
            Some(_) | None => Ok(()),
        }
    }
}

fn refused(message: impl Into<String>) -> Answer {
    Answer::BadRequest(message.into())
}
