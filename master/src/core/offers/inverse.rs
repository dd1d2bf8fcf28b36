//! Inverse offers: frameworks are asked to leave agents that will be away for maintenance.
//!
//! The allocator says who has something to lose and has not answered yet; here each question becomes an
//! event, and each answer a status that operators see. Invariant: what is outstanding here is
//! outstanding with the allocator, and only with frameworks that are connected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use meseta_allocator::InverseAnswer;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::scheduler::event;
use meseta_resources::{AgentId, FrameworkId, OfferId};
use prost::Message as _;

use super::accept::{OFFERS_PER_ANSWER_MAX, refuse_time};
use super::outstanding::OfferEvents;
use crate::core::MasterCore;
use crate::core::effect::Answer;
use crate::core::state::agent::AgentProfile;
use crate::core::timers::{Timer, TimerKey};
use crate::core::wire::event_of;

/// A framework is asked to leave an agent.
#[derive(Debug)]
pub(in crate::core) struct InverseOffer {
    framework_id: FrameworkId,
    agent_id: AgentId,
    unavailability: v1::Unavailability,
    /// Withdraws it, if it lives only so long.
    timer: Option<TimerKey>,
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
    by_id: BTreeMap<OfferId, InverseOffer>,
    of_framework: BTreeMap<FrameworkId, BTreeSet<OfferId>>,
    of_agent: BTreeMap<AgentId, BTreeSet<OfferId>>,
    /// The agents of which a framework has answered for good.
    answered: BTreeMap<FrameworkId, BTreeSet<AgentId>>,
}

impl InverseOffers {
    fn insert(&mut self, id: OfferId, offer: InverseOffer) {
        let framework = self.of_framework.entry(offer.framework_id.clone());
        framework.or_default().insert(id.clone());
        let agent = self.of_agent.entry(offer.agent_id.clone());
        agent.or_default().insert(id.clone());
        self.by_id.insert(id, offer);
    }

    fn remove(&mut self, id: &OfferId) -> Option<InverseOffer> {
        let offer = self.by_id.remove(id)?;
        forget(&mut self.of_framework, &offer.framework_id, id);
        forget(&mut self.of_agent, &offer.agent_id, id);
        Some(offer)
    }
}

fn forget<K: Ord, V: Ord>(index: &mut BTreeMap<K, BTreeSet<V>>, key: &K, id: &V) {
    if let Some(ids) = index.get_mut(key) {
        ids.remove(id);
        if ids.is_empty() {
            index.remove(key);
        }
    }
}

impl MasterCore {
    /// Asks those who have not been asked yet.
    pub(in crate::core) fn send_inverse_offers(&mut self) {
        let due = self.allocator.inverse_offers(self.now.moment);
        let mut made: BTreeMap<FrameworkId, OfferEvents<v1::InverseOffer>> = BTreeMap::new();
        for (framework, agent) in due {
            match self.make_inverse_offer(&framework, &agent) {
                Some(offer) => {
                    let bytes = offer.encoded_len();
                    made.entry(framework).or_default().push(offer, bytes);
                }
                None => self.settle(&framework, &agent, None),
            }
        }
        let events = made.into_iter().flat_map(|(framework, sent)| {
            let events = sent.events.into_iter();
            events.map(move |offers| (framework.clone(), offers))
        });
        for (framework, inverse_offers) in events {
            let mut event = event_of(event::Type::InverseOffers);
            event.inverse_offers = Some(event::InverseOffers { inverse_offers });
            self.event(&framework, event);
        }
    }

    fn make_inverse_offer(
        &mut self,
        framework: &FrameworkId,
        agent: &AgentId,
    ) -> Option<v1::InverseOffer> {
        self.frameworks.get(framework)?.connection()?;
        let profile = self.agents.get(agent)?.profile.clone();
        let unavailability = *self.operator.maintenance.of_agent(&profile)?;
        let id = self.new_offer_id()?;
        let timer = self.config.offer_timeout.map(|timeout| {
            let offer = id.clone();
            let due = self.now.moment + timeout;
            self.timers.set(due, Timer::InverseOffer { offer })
        });
        let offer = InverseOffer {
            framework_id: framework.clone(),
            agent_id: agent.clone(),
            unavailability,
            timer,
        };
        let message = to_wire(&id, &offer, &profile);
        self.inverse_offers.insert(id, offer);
        Some(message)
    }

    /// Takes the framework's answer to its inverse offers; others are no longer there to be answered.
    pub(in crate::core) fn answer_inverse_offers(
        &mut self,
        framework: &FrameworkId,
        ids: &[v1::OfferId],
        filters: Option<&v1::Filters>,
        answer: InverseAnswer,
    ) -> Answer {
        if ids.len() > OFFERS_PER_ANSWER_MAX {
            return Answer::BadRequest(format!(
                "A call may name at most {OFFERS_PER_ANSWER_MAX} inverse offers"
            ));
        }
        for id in ids {
            let known = self.inverse_offers.by_id.get_key_value(id.value.as_str());
            let own = known.filter(|(_, offer)| offer.framework_id == *framework);
            let Some(id) = own.map(|(id, _)| id.clone()) else {
                tracing::info!(framework_id = %framework, inverse_offer_id = %id.value.escape_debug(), "answer to an inverse offer that is not valid any more");
                continue;
            };
            let Some(offer) = self.take_inverse_offer(&id) else {
                continue;
            };
            let refuse = Some((answer, refuse_time(filters)));
            self.settle(&offer.framework_id, &offer.agent_id, refuse);
            let reply = Reply {
                accepted: answer == InverseAnswer::Accept,
                at: self.now.unix,
            };
            if let Some(agent) = self.agents.get_mut(&offer.agent_id) {
                let answered = &mut self.inverse_offers.answered;
                let of_framework = answered.entry(offer.framework_id.clone()).or_default();
                of_framework.insert(offer.agent_id);
                agent.inverse_replies.insert(offer.framework_id, reply);
            }
        }
        Answer::Accepted
    }

    /// Forgets what frameworks have answered about an agent.
    pub(in crate::core) fn forget_inverse_replies_on(&mut self, id: &AgentId) {
        let agent = self.agents.get(id);
        if agent.is_none_or(|agent| agent.inverse_replies.is_empty()) {
            return;
        }
        if let Some(agent) = self.agents.get_mut(id) {
            for framework in std::mem::take(&mut agent.inverse_replies).keys() {
                forget(&mut self.inverse_offers.answered, framework, id);
            }
        }
    }

    /// Forgets what a framework has answered.
    pub(in crate::core) fn forget_inverse_replies_of(&mut self, id: &FrameworkId) {
        let answered = self.inverse_offers.answered.remove(id);
        for agent in answered.into_iter().flatten() {
            if let Some(agent) = self.agents.get_mut(&agent) {
                agent.inverse_replies.remove(id);
            }
        }
    }

    fn take_inverse_offer(&mut self, id: &OfferId) -> Option<InverseOffer> {
        let offer = self.inverse_offers.remove(id)?;
        if let Some(timer) = offer.timer {
            self.timers.cancel(timer);
        }
        Some(offer)
    }

    /// Tells the allocator that an inverse offer is not outstanding any more, and what was answered.
    fn settle(
        &mut self,
        framework: &FrameworkId,
        agent: &AgentId,
        answer: Option<(InverseAnswer, Duration)>,
    ) {
        let now = self.now.moment;
        let (answer, refuse) = answer.unzip();
        let settled = self
            .allocator
            .update_inverse_offer(now, agent, framework, answer, refuse);
        self.agreed("ending an inverse offer", settled);
    }

    /// Withdraws an inverse offer and tells the framework, if it is there to be told.
    pub(in crate::core) fn rescind_inverse(&mut self, id: &OfferId) {
        let Some(offer) = self.take_inverse_offer(id) else {
            return;
        };
        self.settle(&offer.framework_id, &offer.agent_id, None);
        self.tell_inverse_rescinded(id, &offer.framework_id);
    }

    fn tell_inverse_rescinded(&mut self, id: &OfferId, framework: &FrameworkId) {
        let mut event = event_of(event::Type::RescindInverseOffer);
        event.rescind_inverse_offer = Some(event::RescindInverseOffer {
            inverse_offer_id: v1::OfferId {
                value: id.to_string(),
            },
        });
        self.event(framework, event);
    }

    pub(in crate::core) fn rescind_inverse_of_agent(&mut self, agent: &AgentId) {
        let ids = self.inverse_offers.of_agent.get(agent).cloned();
        for id in ids.into_iter().flatten() {
            self.rescind_inverse(&id);
        }
    }

    /// The same for an agent that the allocator has forgotten already.
    pub(in crate::core) fn void_inverse_of_agent(&mut self, agent: &AgentId) {
        let ids = self.inverse_offers.of_agent.get(agent).cloned();
        for id in ids.into_iter().flatten() {
            if let Some(offer) = self.take_inverse_offer(&id) {
                self.tell_inverse_rescinded(&id, &offer.framework_id);
            }
        }
    }

    /// Ends the inverse offers of a framework that is no longer there to be told.
    pub(in crate::core) fn discard_inverse_offers(&mut self, framework: &FrameworkId) {
        let ids = self.inverse_offers.of_framework.get(framework).cloned();
        for id in ids.into_iter().flatten() {
            if let Some(offer) = self.take_inverse_offer(&id) {
                self.settle(&offer.framework_id, &offer.agent_id, None);
            }
        }
    }
}

fn to_wire(id: &OfferId, offer: &InverseOffer, agent: &AgentProfile) -> v1::InverseOffer {
    v1::InverseOffer {
        id: v1::OfferId {
            value: id.to_string(),
        },
        url: Some(agent.url()),
        framework_id: v1::FrameworkId {
            value: offer.framework_id.to_string(),
        },
        agent_id: Some(v1::AgentId {
            value: offer.agent_id.to_string(),
        }),
        unavailability: offer.unavailability,
        resources: Vec::new(),
    }
}

#[cfg(test)]
impl MasterCore {
    pub(in crate::core) fn inverse_offers_are_empty(&self) -> bool {
        self.inverse_offers.by_id.is_empty()
    }
}

#[cfg(test)]
impl InverseOffers {
    /// Whether its tables agree, and all that is outstanding is with somebody who is there.
    pub(in crate::core) fn check(&self, core: &MasterCore) {
        let mut answered: BTreeMap<FrameworkId, BTreeSet<AgentId>> = BTreeMap::new();
        for (id, agent) in core.agents.iter() {
            for framework in agent.inverse_replies.keys() {
                let of_framework = answered.entry(framework.clone()).or_default();
                of_framework.insert(id.clone());
            }
        }
        assert_eq!(self.answered, answered);
        for (id, offer) in &self.by_id {
            assert!(self.of_framework[&offer.framework_id].contains(id));
            assert!(self.of_agent[&offer.agent_id].contains(id));
            let framework = &core.frameworks[&offer.framework_id];
            assert!(framework.connection().is_some());
            let agent = &core.agents[&offer.agent_id];
            let planned = core.operator.maintenance.of_agent(&agent.profile);
            assert_eq!(planned, Some(&offer.unavailability));
        }
        let count = |ids: &BTreeSet<OfferId>| ids.len();
        assert_eq!(
            self.of_framework.values().map(count).sum::<usize>(),
            self.by_id.len()
        );
        assert_eq!(
            self.of_agent.values().map(count).sum::<usize>(),
            self.by_id.len()
        );
    }
}
