//! Explanations: the first rule that prevents an offer of an agent to a framework, with the numbers.
//!
//! An explanation composes offers like the cycle does, so in every state an offer is possible exactly when there is
//! no blocker.

use std::collections::BTreeSet;

use meseta_resources::{
    AgentId, FrameworkId, Moment, ResourceName, ResourceQuantities, Resources, Role, Scalar,
};

use crate::Allocator;
use crate::agents::AgentKey;
use crate::bundle::Bundle;
use crate::compose::{Composed, Mismatch, Reduction, Stage};
use crate::error::Error;
use crate::roles::SlotKey;

/// The first rule that prevents an offer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Blocker {
    #[error(
        "offers are held up until enough agents are back after a failover: {returned} of {known} are, \
         {required} are required"
    )]
    Recovering {
        returned: usize,
        known: usize,
        required: usize,
    },
    #[error("the agent is deactivated, draining or away: `meseta agents` says which")]
    AgentInactive,
    #[error("the agent is not on the whitelist")]
    NotWhitelisted,
    #[error("the framework is not connected")]
    FrameworkInactive,
    #[error("the framework is not subscribed to the role")]
    NotSubscribed,
    #[error("the framework has suppressed offers for the role")]
    Suppressed,
    #[error("nothing is free on the agent")]
    NothingFree,
    #[error("the framework's offer constraints rule the agent out")]
    OfferConstraints,
    #[error("the agent has gpus, and the framework did not opt in to those")]
    Gpus,
    #[error("the agent is in another region, and the framework is not region-aware")]
    Region,
    #[error("the framework has several roles, which the agent does not support")]
    MultiRole,
    #[error("the role is below another, which the agent does not support")]
    HierarchicalRole,
    #[error(
        "the free resources ({free}) are reserved for others, or the framework did not opt in to them"
    )]
    NothingForRole { free: Resources },
    #[error("role '{role}' has {consumed} {name} of its limit of {limit}; left to offer: {left}")]
    Limit {
        role: Role,
        name: ResourceName,
        limit: Scalar,
        consumed: Scalar,
        left: Resources,
    },
    #[error(
        "{available} {name} are free in the cluster and {required} are held back for guarantees{}; \
         left to offer: {left}",
        out_of_reach(*.required, *.total)
    )]
    Headroom {
        name: ResourceName,
        available: Scalar,
        required: Scalar,
        /// The sum over all agents.
        total: Scalar,
        left: Resources,
    },
    #[error("the role has all that its quota guarantees, which is also its limit")]
    QuotaMet,
    #[error("{offer} is less than an offer must hold: {minimum:?}")]
    BelowMinimum {
        offer: Resources,
        minimum: Vec<ResourceQuantities>,
    },
    #[error("the framework declined {offer} on this agent, for another {}", meseta_resources::duration::format_duration(rounded(*.left)))]
    Filtered {
        offer: Resources,
        left: std::time::Duration,
    },
}

/// The answer for one framework in one role on one agent.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub framework: FrameworkId,
    pub role: Role,
    pub agent: AgentId,
    /// The first rule that prevents an offer; `None` if an offer is possible.
    pub blocker: Option<Blocker>,
    /// The offer that the framework would get if it came first.
    pub offer: Resources,
    /// The quota rule that withholds a part of the free resources from the offer.
    pub withheld: Option<Blocker>,
    /// The dominant share of the role, which decides its place in the order; below, that of the framework within the
    /// role.
    pub role_share: f64,
    pub framework_share: f64,
}

impl Explanation {
    /// The resources of the agent available to the framework without the blocker; `None` if the blocker does not
    /// depend on amounts.
    #[must_use]
    pub fn available(&self) -> Option<ResourceQuantities> {
        match &self.blocker {
            None => Some(self.offer.quantities()),
            Some(Blocker::NothingFree) => Some(ResourceQuantities::new()),
            Some(Blocker::Limit { left, .. } | Blocker::Headroom { left, .. }) => {
                Some(left.quantities())
            }
            Some(Blocker::BelowMinimum { offer, .. } | Blocker::Filtered { offer, .. }) => {
                Some(offer.quantities())
            }
            Some(_) => None,
        }
    }
}

/// The note for guarantees that require more than the cluster has.
fn out_of_reach(required: Scalar, total: Scalar) -> String {
    match required > total {
        true => format!(
            ", more than the {total} of all agents: `/quota` says for whom, and until there are more, or \
             that quota is removed, others wait"
        ),
        false => String::new(),
    }
}

/// Rounds up to whole milliseconds or, from ten seconds on, whole seconds, for easy reading.
fn rounded(left: std::time::Duration) -> std::time::Duration {
    let unit = if left.as_secs() < 10 { 1 } else { 1_000 };
    let millis = left.as_micros().div_ceil(unit * 1_000) * unit;
    std::time::Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
}

impl Allocator {
    /// The reason why the framework gets no offer of the agent in the role; see [`Blocker`].
    ///
    /// # Errors
    /// For an unknown agent or framework.
    pub fn explain(
        &self,
        now: Moment,
        framework: &FrameworkId,
        role: &Role,
        agent: &AgentId,
    ) -> Result<Explanation, Error> {
        let agent_key = self.agent_key(agent)?;
        let framework_key = self.framework_key(framework)?;
        let role_key = self.roles.find(role);
        let slot = role_key.and_then(|role| self.slot_of(framework_key, role));
        if let Some(slot) = slot {
            return Ok(self.explain_slot(now, slot, agent_key));
        }
        Ok(Explanation {
            framework: framework.clone(),
            role: role.clone(),
            agent: agent.clone(),
            blocker: Some(Blocker::NotSubscribed),
            offer: Resources::new(),
            withheld: None,
            role_share: 0.0,
            framework_share: 0.0,
        })
    }

    fn explain_slot(&self, now: Moment, slot: SlotKey, agent: AgentKey) -> Explanation {
        let entry = &self.slots[slot];
        let role = &self.roles[entry.role];
        let (offer, withheld, blocker) = match self.first_blocker(now, agent, slot) {
            Ok((offer, withheld)) => {
                let offer = self.classes.resources(&offer, Some(&role.role));
                (offer, withheld, None)
            }
            Err(blocker) => (Resources::new(), None, Some(blocker)),
        };
        Explanation {
            framework: self.frameworks[entry.framework].id.clone(),
            role: role.role.clone(),
            agent: self.agents[agent].id.clone(),
            blocker,
            offer,
            withheld,
            role_share: self.sorter.share_of(role.own),
            framework_share: self.sorter.share_of(entry.node),
        }
    }

    /// Explains each role of the framework, ordered by name, at most `at_most` roles.
    ///
    /// # Errors
    /// For an unknown agent or framework.
    pub fn explain_framework(
        &self,
        now: Moment,
        framework: &FrameworkId,
        agent: &AgentId,
        at_most: usize,
    ) -> Result<Vec<Explanation>, Error> {
        let agent = self.agent_key(agent)?;
        let key = self.framework_key(framework)?;
        let mut slots: Vec<SlotKey> = self.frameworks[key].slots.clone();
        let role_of = |slot: &SlotKey| &self.roles[self.slots[*slot].role].role;
        slots.sort_unstable_by(|a, b| role_of(a).cmp(role_of(b)));
        let slots = slots.into_iter().take(at_most);
        Ok(slots
            .map(|slot| self.explain_slot(now, slot, agent))
            .collect())
    }

    /// Explains each framework of a role, or those `among` the given ones, in the order of the next offers, at most
    /// `at_most` frameworks.
    ///
    /// # Errors
    /// For an unknown agent.
    pub fn explain_role(
        &self,
        now: Moment,
        role: &Role,
        among: Option<&BTreeSet<FrameworkId>>,
        agent: &AgentId,
        at_most: usize,
    ) -> Result<Vec<Explanation>, Error> {
        let agent = self.agent_key(agent)?;
        let Some(key) = self.roles.find(role) else {
            return Ok(Vec::new());
        };
        let slot_of = |id| self.slot_of(self.framework_key(id).ok()?, key);
        let mut slots: Vec<SlotKey> = match among {
            Some(frameworks) => frameworks.iter().filter_map(slot_of).collect(),
            None => {
                let all = self.roles[key].slots.iter();
                all.map(|(_, slot)| *slot).collect()
            }
        };
        slots.retain(|slot| self.frameworks[self.slots[*slot].framework].added);
        slots.sort_by(|a, b| {
            let (left, right) = (self.slots[*a].node, self.slots[*b].node);
            let shares = self
                .sorter
                .share_of(left)
                .total_cmp(&self.sorter.share_of(right));
            let counts = || self.sorter.count(left).cmp(&self.sorter.count(right));
            let id = |slot: &SlotKey| &self.frameworks[self.slots[*slot].framework].id;
            shares.then_with(counts).then_with(|| id(a).cmp(id(b)))
        });
        let slots = slots.into_iter().take(at_most);
        Ok(slots
            .map(|slot| self.explain_slot(now, slot, agent))
            .collect())
    }

    /// The offer for the slot with the quota rule that reduces it, or the first rule against an offer.
    fn first_blocker(
        &self,
        now: Moment,
        agent: AgentKey,
        slot: SlotKey,
    ) -> Result<(Bundle, Option<Blocker>), Blocker> {
        let (entry, slot_entry) = (&self.agents[agent], &self.slots[slot]);
        if let Some(recovery) = self.recovery_at(now) {
            return Err(Blocker::Recovering {
                returned: recovery.returned(),
                known: recovery.known(),
                required: recovery.required(),
            });
        }
        if !entry.active {
            return Err(Blocker::AgentInactive);
        }
        if !entry.whitelisted {
            return Err(Blocker::NotWhitelisted);
        }
        if !self.frameworks[slot_entry.framework].active {
            return Err(Blocker::FrameworkInactive);
        }
        if !slot_entry.subscribed {
            return Err(Blocker::NotSubscribed);
        }
        if slot_entry.suppressed {
            return Err(Blocker::Suppressed);
        }
        if entry.free.is_empty() {
            return Err(Blocker::NothingFree);
        }
        if let Some(mismatch) = self.mismatch(agent, slot) {
            return Err(match mismatch {
                Mismatch::Constraint => Blocker::OfferConstraints,
                Mismatch::Gpus => Blocker::Gpus,
                Mismatch::Region => Blocker::Region,
                Mismatch::MultiRole => Blocker::MultiRole,
                Mismatch::HierarchicalRole => Blocker::HierarchicalRole,
            });
        }
        let mut offer = Bundle::default();
        if self.roles.guarantees > 0 && self.roles.has_claimable_guarantee(slot_entry.role) {
            let composed = self.compose(agent, slot, Stage::Guarantees, &mut offer);
            if composed.serves_guarantee && self.check_offer(now, agent, slot, &offer).is_ok() {
                let withheld = self.reduction_blocker(slot, composed, &offer);
                return Ok((offer, withheld));
            }
        }
        let composed = self.compose(agent, slot, Stage::Rest, &mut offer);
        let checked = self.check_offer(now, agent, slot, &offer);
        match checked {
            Ok(()) => {
                let withheld = self.reduction_blocker(slot, composed, &offer);
                Ok((offer, withheld))
            }
            // The framework may have declined the amount that quota left: the small amount is then the actual
            // blocker.
            Err(blocker) => Err(self
                .reduction_blocker(slot, composed, &offer)
                .unwrap_or(blocker)),
        }
    }

    fn check_offer(
        &self,
        now: Moment,
        agent: AgentKey,
        slot: SlotKey,
        offer: &Bundle,
    ) -> Result<(), Blocker> {
        let resources = || self.classes.resources(offer, None);
        if offer.is_empty() {
            let free = self.classes.resources(&self.agents[agent].free, None);
            return Err(Blocker::NothingForRole { free });
        }
        if !self.is_allocatable(slot, offer) {
            let minimum = self.slots[slot].minimum.as_deref().unwrap_or(&self.minimum);
            return Err(Blocker::BelowMinimum {
                offer: resources(),
                minimum: minimum.alternatives().collect(),
            });
        }
        let filters = &self.agents[agent].filters;
        match filters.refuses(self.slots[slot].filters, offer, self.counts_items()) {
            // A filter still holds at its expiry time.
            Some(until) if until >= now => Err(Blocker::Filtered {
                offer: resources(),
                left: until.saturating_since(now),
            }),
            _ => Ok(()),
        }
    }

    /// Names the quota rule, if it made the offer too small.
    fn reduction_blocker(
        &self,
        slot: SlotKey,
        composed: Composed,
        offer: &Bundle,
    ) -> Option<Blocker> {
        let left = self.classes.resources(offer, None);
        let role = self.slots[slot].role;
        match composed.reduction? {
            Reduction::Legacy => Some(Blocker::QuotaMet),
            Reduction::Limit(kind) => {
                let (limited, limit) = self.roles.tightest(role, kind)?;
                Some(Blocker::Limit {
                    role: self.roles[limited].role.clone(),
                    name: self.classes.name(kind).clone(),
                    limit: Scalar::from_millis(limit),
                    consumed: Scalar::from_millis(self.roles[limited].consumed(kind)),
                    left,
                })
            }
            Reduction::Headroom(kind) => {
                let available = self
                    .headroom
                    .get(crate::slab::at(kind))
                    .copied()
                    .unwrap_or(0);
                Some(Blocker::Headroom {
                    name: self.classes.name(kind).clone(),
                    available: Scalar::from_millis(available),
                    required: Scalar::from_millis(self.roles.required(kind)),
                    total: Scalar::from_millis(self.sorter.total(kind)),
                    left,
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn filter_time_left_is_human_readable() {
        let told = |millis| {
            let left = Duration::from_millis(millis);
            let declined = Blocker::Filtered {
                offer: Resources::default(),
                left,
            };
            let text = declined.to_string();
            text.rsplit(' ').next().map(str::to_owned)
        };
        assert_eq!(told(1_234).as_deref(), Some("1234ms"));
        // The former text was "16.5316333333333mins".
        assert_eq!(told(991_898).as_deref(), Some("992secs"));
        assert_eq!(told(7_199_001).as_deref(), Some("2hrs"));
    }
}
