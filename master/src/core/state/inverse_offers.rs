//! Inverse offers that are outstanding, and what frameworks last answered.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_proto::mesos::v1;
use meseta_resources::{AgentId, FrameworkId, OfferId};

use crate::core::timers::TimerKey;

/// A framework is asked to leave an agent.
#[derive(Debug)]
pub(in crate::core) struct InverseOffer {
    pub(in crate::core) framework_id: FrameworkId,
    pub(in crate::core) agent_id: AgentId,
    pub(in crate::core) unavailability: v1::Unavailability,
    /// Withdraws it, if it lives only so long.
    pub(in crate::core) timer: Option<TimerKey>,
}

/// What a framework last said to that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub accepted: bool,
    /// Since the Unix epoch.
    pub at: Duration,
}

/// What is outstanding, and with whom.
#[derive(Debug, Default)]
pub(in crate::core) struct InverseOffers {
    pub(in crate::core) by_id: BTreeMap<OfferId, InverseOffer>,
    pub(in crate::core) of_framework: BTreeMap<FrameworkId, BTreeSet<OfferId>>,
    pub(in crate::core) of_agent: BTreeMap<AgentId, BTreeSet<OfferId>>,
    /// The agents of which a framework has answered for good.
    pub(in crate::core) answered: BTreeMap<FrameworkId, BTreeSet<AgentId>>,
}

impl InverseOffers {
    pub(in crate::core) fn insert(&mut self, id: OfferId, offer: InverseOffer) {
        let framework = self.of_framework.entry(offer.framework_id.clone());
        framework.or_default().insert(id.clone());
        let agent = self.of_agent.entry(offer.agent_id.clone());
        agent.or_default().insert(id.clone());
        self.by_id.insert(id, offer);
    }

    pub(in crate::core) fn remove(&mut self, id: &OfferId) -> Option<InverseOffer> {
        let offer = self.by_id.remove(id)?;
        forget(&mut self.of_framework, &offer.framework_id, id);
        forget(&mut self.of_agent, &offer.agent_id, id);
        Some(offer)
    }
}

pub(in crate::core) fn forget<K: Ord, V: Ord>(
    index: &mut BTreeMap<K, BTreeSet<V>>,
    key: &K,
    id: &V,
) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}
