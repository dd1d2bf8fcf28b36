//! Outstanding inverse offers, and the last answers of frameworks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1;
use meseta_resources::{AgentId, FrameworkId, OfferId};

use crate::core::timers::TimerKey;

/// A request to a framework to leave an agent.
#[derive(Debug)]
pub struct InverseOffer {
    pub id: OfferId,
    pub framework_id: FrameworkId,
    pub agent_id: AgentId,
    pub unavailability: v1::Unavailability,
    /// The timer that withdraws the inverse offer, if its life is limited.
    pub(in crate::core) timer: Option<TimerKey>,
}

/// A framework's last answer to an inverse offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply {
    pub accepted: bool,
    /// The time of the answer since the Unix epoch.
    pub at: Duration,
}

/// The outstanding inverse offers, by framework and by agent.
#[derive(Debug, Default)]
pub(in crate::core) struct InverseOffers {
    by_id: BTreeMap<OfferId, Arc<InverseOffer>>,
    /// The offers for readers, ordered by id; rebuilt after each change.
    view: Option<Arc<Vec<Arc<InverseOffer>>>>,
    pub(in crate::core) of_framework: BTreeMap<FrameworkId, BTreeSet<OfferId>>,
    pub(in crate::core) of_agent: BTreeMap<AgentId, BTreeSet<OfferId>>,
    /// The agents about which each framework has answered permanently.
    pub(in crate::core) answered: BTreeMap<FrameworkId, BTreeSet<AgentId>>,
}

impl InverseOffers {
    pub(in crate::core) fn get(&self, id: &str) -> Option<&Arc<InverseOffer>> {
        self.by_id.get(id)
    }

    #[cfg(test)]
    pub(in crate::core) fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<InverseOffer>> {
        self.by_id.values()
    }

    /// All inverse offers for readers; the same object until the next change.
    pub(in crate::core) fn view(&mut self) -> Arc<Vec<Arc<InverseOffer>>> {
        let all = || Arc::new(self.by_id.values().cloned().collect());
        self.view.get_or_insert_with(all).clone()
    }

    pub(in crate::core) fn insert(&mut self, offer: InverseOffer) {
        let id = &offer.id;
        let framework = self.of_framework.entry(offer.framework_id.clone());
        framework.or_default().insert(id.clone());
        let agent = self.of_agent.entry(offer.agent_id.clone());
        agent.or_default().insert(id.clone());
        self.view = None;
        self.by_id.insert(id.clone(), Arc::new(offer));
    }

    pub(in crate::core) fn remove(&mut self, id: &OfferId) -> Option<Arc<InverseOffer>> {
        let offer = self.by_id.remove(id)?;
        self.view = None;
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
