//! The master's record of an outstanding offer.

use std::time::Duration;

use meseta_allocator::Outstanding;
use meseta_proto::mesos::v1::Unavailability;
use meseta_resources::{AgentId, FrameworkId, OfferId, Resources, Role};

use crate::core::timers::TimerKey;

/// Resources of one agent, offered to one framework in one role.
#[derive(Clone, Debug)]
pub struct Offer {
    pub id: OfferId,
    pub framework_id: FrameworkId,
    pub agent_id: AgentId,
    pub role: Role,
    /// The resources, allocated to the role.
    pub resources: Resources,
    /// The planned unavailability of the agent when the offer was made.
    pub unavailability: Option<Unavailability>,
    /// The timer that rescinds the offer, if its life is limited.
    pub(in crate::core) timer: Option<TimerKey>,
}

impl From<&Offer> for Outstanding {
    fn from(offer: &Offer) -> Self {
        Self {
            id: offer.id.clone(),
            framework: offer.framework_id.clone(),
            agent: offer.agent_id.clone(),
            role: offer.role.clone(),
            resources: offer.resources.clone(),
        }
    }
}

/// The filter for the resources of an ended offer.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) enum RefuseFilter {
    /// The resources may be offered to anyone at once.
    None,
    /// The framework declines the resources for this duration.
    For(Duration),
}
