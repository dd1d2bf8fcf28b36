//! Inverse offers: requests to frameworks to leave agents that will be away for maintenance.
//!
//! The allocator names the frameworks that hold resources there and have not answered yet. This module sends each
//! request as an event, and records each answer as a status for operators. Invariant: the inverse offers outstanding
//! here are outstanding with the allocator, and only with connected frameworks. However many agents a schedule names,
//! the master sends no more requests between two ticks than reading schedulers can take.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use meseta_allocator::InverseAnswer;
use meseta_proto::mesos::v1;
use meseta_proto::mesos::v1::scheduler::event;
use meseta_resources::{AgentId, FrameworkId, OfferId};
use prost::Message as _;

use super::accept::{OFFERS_PER_ANSWER_MAX, refuse_time};
use super::outstanding::OfferEvents;
use crate::core::answer::Answer;
use crate::core::master::MasterCore;
use crate::core::state::agent::AgentProfile;
use crate::core::state::inverse_offers::{InverseOffer, Reply, forget};
use crate::core::timers::Timer;
use crate::core::wire::event_of;

impl MasterCore {
    /// Sends due inverse offers, up to the limit of a tick.
    pub(super) fn send_inverse_offers(&mut self) {
        let left = self.paced_messages.inverse_offers_left();
        let due = self.allocator.inverse_offers(self.now.moment, left);
        self.paced_messages.count_inverse_offers(due.len());
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
        let unavailability = *self.policies.maintenance().of_agent(&profile)?;
        let id = self.issued_ids.assign_offer()?;
        let timer = self.config.offer_timeout.map(|timeout| {
            let offer = id.clone();
            let due = self.now.moment + timeout;
            self.timers.set(due, Timer::InverseOffer { offer })
        });
        let offer = InverseOffer {
            id,
            framework_id: framework.clone(),
            agent_id: agent.clone(),
            unavailability,
            timer,
        };
        let message = to_wire(&offer, &profile);
        self.inverse_offers.insert(offer);
        Some(message)
    }

    /// Records the framework's answer to its inverse offers; ignores other ids.
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
            let known = self.inverse_offers.get(&id.value);
            let own = known.filter(|offer| offer.framework_id == *framework);
            let Some(id) = own.map(|offer| offer.id.clone()) else {
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
                of_framework.insert(offer.agent_id.clone());
                let replies = &mut agent.inverse_replies;
                replies.insert(offer.framework_id.clone(), reply);
            }
        }
        Answer::Accepted
    }

    /// Forgets the answers of frameworks about an agent.
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

    /// Forgets the answers of a framework.
    pub(in crate::core) fn forget_inverse_replies_of(&mut self, id: &FrameworkId) {
        let answered = self.inverse_offers.answered.remove(id);
        for agent in answered.into_iter().flatten() {
            if let Some(agent) = self.agents.get_mut(&agent) {
                agent.inverse_replies.remove(id);
            }
        }
    }

    fn take_inverse_offer(&mut self, id: &OfferId) -> Option<Arc<InverseOffer>> {
        let offer = self.inverse_offers.remove(id)?;
        if let Some(timer) = offer.timer {
            self.timers.cancel(timer);
        }
        Some(offer)
    }

    /// Reports to the allocator that an inverse offer is no longer outstanding, together with the answer.
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

    /// Withdraws an inverse offer and informs the framework, if it is connected.
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
            inverse_offer_id: id.into(),
        });
        self.event(framework, event);
    }

    pub(in crate::core) fn rescind_inverse_of_agent(&mut self, agent: &AgentId) {
        let ids = self.inverse_offers.of_agent.get(agent).cloned();
        for id in ids.into_iter().flatten() {
            self.rescind_inverse(&id);
        }
    }

    /// Withdraws the inverse offers of an agent that the allocator has already removed.
    pub(in crate::core) fn void_inverse_of_agent(&mut self, agent: &AgentId) {
        let ids = self.inverse_offers.of_agent.get(agent).cloned();
        for id in ids.into_iter().flatten() {
            if let Some(offer) = self.take_inverse_offer(&id) {
                self.tell_inverse_rescinded(&id, &offer.framework_id);
            }
        }
    }

    /// Ends the inverse offers of a framework that is no longer connected.
    pub(super) fn discard_inverse_offers(&mut self, framework: &FrameworkId) {
        let ids = self.inverse_offers.of_framework.get(framework).cloned();
        for id in ids.into_iter().flatten() {
            if let Some(offer) = self.take_inverse_offer(&id) {
                self.settle(&offer.framework_id, &offer.agent_id, None);
            }
        }
    }
}

/// Converts an inverse offer to the message for the framework.
pub(crate) fn to_wire(offer: &InverseOffer, agent: &AgentProfile) -> v1::InverseOffer {
    v1::InverseOffer {
        id: (&offer.id).into(),
        url: Some(agent.url()),
        framework_id: (&offer.framework_id).into(),
        agent_id: Some((&offer.agent_id).into()),
        unavailability: offer.unavailability,
        resources: Vec::new(),
    }
}
