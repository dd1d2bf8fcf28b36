//! What operators ask for: quota, weights.
//!
//! Entered through [`MasterCore::administer`]. A request is judged against what is durable and what is on
//! its way there, stored, and only then put into effect and answered. Invariant: a request that is
//! refused has changed nothing.

mod quota;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_allocator::Quota;
use meseta_proto::mesos::v1::quota::{QuotaConfig, QuotaRequest};
use meseta_resources::Role;

use super::io::{Answer, ReplyId};
use super::persisted::Recovered;
use super::{MasterCore, PENDING_MUTATIONS_MAX};

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
}

/// What happens once an operator's mutation is durable.
#[derive(Debug)]
pub(super) enum Pending {
    Quota {
        reply: ReplyId,
        changes: Vec<(Role, Quota)>,
        rescind: quota::Rescind,
    },
    Weights {
        reply: ReplyId,
        changes: Vec<(Role, f64)>,
    },
}

/// What operators have set.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Durable and in effect.
    pub(super) quotas: Arc<BTreeMap<Role, Quota>>,
    /// The same once all that is on its way to the registry has arrived.
    quotas_wanted: BTreeMap<Role, Quota>,
    weights_wanted: BTreeMap<Role, f64>,
}

impl State {
    pub(super) fn recovered(recovered: &Recovered, weights: &BTreeMap<Role, f64>) -> Self {
        let quotas: BTreeMap<Role, Quota> = recovered
            .quotas
            .iter()
            .filter(|(_, quota)| !quota.is_default())
            .cloned()
            .collect();
        Self {
            quotas_wanted: quotas.clone(),
            quotas: Arc::new(quotas),
            weights_wanted: weights.clone(),
        }
    }
}

impl MasterCore {
    /// Judges a request; the answer comes now if it is refused, else when it is durable.
    pub(super) fn administer(&mut self, reply: ReplyId, request: Request) {
        if self.pending.len() >= PENDING_MUTATIONS_MAX {
            let busy = "The registry is busy: try again".to_owned();
            self.reply(reply, Answer::Unavailable(busy));
            return;
        }
        let result = match request {
            Request::SetQuota(request) => self.set_quota(reply, &request),
            Request::UpdateQuota { force, configs } => self.update_quota(reply, force, &configs),
            Request::RemoveQuota { role } => self.remove_quota(reply, &role),
            Request::UpdateWeights(weights) => self.update_weights(reply, &weights),
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
            } => self.quota_stored(reply, changes, &rescind),
            Pending::Weights { reply, changes } => self.weights_stored(reply, changes),
        }
    }

    /// The only roles there are, if the master was told of any.
    fn check_known(&self, role: &Role) -> Result<(), String> {
        match &self.config.roles {
            Some(roles) if !roles.contains(role) => Err(format!("Unknown role '{role}'")),
            Some(_) | None => Ok(()),
        }
    }
}

fn refused(message: impl Into<String>) -> Answer {
    Answer::BadRequest(message.into())
}
