//! An offer as the master keeps it while it is outstanding.

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
    /// Allocated to the role.
    pub resources: Resources,
    /// The maintenance of its agent that was planned when it was made.
    pub unavailability: Option<Unavailability>,
    /// Rescinds it, if it lives only so long.
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

/// The filter that the resources of an ended offer get.
#[derive(Clone, Copy, Debug)]
pub(in crate::core) enum RefuseFilter {
    /// The resources may be offered to anyone at once.
    None,
    /// The framework declines the resources for this duration.
    For(Duration),
}
