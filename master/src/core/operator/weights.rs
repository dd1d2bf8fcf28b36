//! Weights of roles: the relative shares of the cluster that roles should get.

use std::collections::BTreeSet;

use meseta_proto::Invalid;
use meseta_resources::Role;

use super::refused;
use crate::core::answer::Answer;
use crate::core::ids::ReplyId;
use crate::core::master::MasterCore;
use crate::core::state::pending::{OperatorPending, Pending};
use crate::core::state::persisted::Mutation;

impl MasterCore {
    pub(super) fn update_weights(
        &mut self,
        reply: ReplyId,
        weights: &[(String, f64)],
    ) -> Result<(), Answer> {
        const FAILED: &str = "Failed to validate update weights request JSON";
        let mut changes = Vec::new();
        for (name, weight) in weights {
            let place = format_args!("{FAILED}: Invalid role '{name}'");
            let role = Role::new(name).map_err(Invalid::within(place))?;
            self.check_known(&role).map_err(Invalid::within(FAILED))?;
            if !weight.is_finite() || *weight <= 0.0 {
                return Err(refused(format!(
                    "{FAILED} for role '{role}': Invalid weight '{weight}': Weights must be positive"
                )));
            }
            changes.push((role, *weight));
        }
        if changes.is_empty() {
            self.reply(reply, Answer::Done);
            return Ok(());
        }
        let all = self.policies.request_weights(&changes).iter();
        let all = all
            .map(|(role, weight)| (role.to_string(), *weight))
            .collect();
        self.effects.persist(
            Mutation::PutWeights(all),
            Pending::Operator(OperatorPending::Weights { reply, changes }),
        );
        Ok(())
    }

    pub(super) fn weights_stored(&mut self, reply: ReplyId, changes: Vec<(Role, f64)>) {
        let updated = self.allocator.update_weights(&changes);
        self.agreed("updating weights", updated);
        let changed: BTreeSet<Role> = changes.iter().map(|(role, _)| role.clone()).collect();
        self.policies.apply_weights(changes);
        let offers = self.outstanding();
        let plan = self.allocator.rescind_for_weights(&changed, &offers);
        plan.iter().for_each(|offer| self.rescind(offer));
        self.allocate_due = true;
        self.reply(reply, Answer::Done);
    }
}
