//! Offers: created from the allocator's allocations, and rescinded.
//!
//! Invariants: an offer leaves the table exactly once; its resources are then held by tasks or are back with the
//! allocator. The offers for a framework in one cycle are limited in bytes, and so is each event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1::scheduler::event;
use meseta_proto::mesos::v1::{self};
use meseta_resources::{AgentId, FrameworkId, OfferId, Resources, Role};
use prost::Message as _;

use crate::core::master::MasterCore;
use crate::core::state::agent::Agent;
use crate::core::state::allocator_adapter::Allocation;
use crate::core::state::framework::Framework;
use crate::core::state::offer::{Offer, RefuseFilter};
use crate::core::timers::Timer;
use crate::core::wire::{self, event_of};

/// The number of offers that one framework may hold. A framework at this limit leaves further resources to others.
const OFFERS_PER_FRAMEWORK_MAX: usize = 100_000;

/// The limit in bytes for the offers of one event, unless it holds a single offer: readers need an event as a whole.
const EVENT_BYTES_MAX: usize = 4 << 20;

/// The time for which a too large offer is not made again.
const TOO_LARGE_WAIT: Duration = Duration::from_secs(300);

/// The offers, or inverse offers, for a framework in one cycle, divided into events.
pub(in crate::core) struct OfferEvents<T> {
    pub(in crate::core) events: Vec<Vec<T>>,
    /// The size of all offers together.
    bytes: usize,
    of_last: usize,
}

impl<T> Default for OfferEvents<T> {
    fn default() -> Self {
        Self {
            events: Vec::new(),
            bytes: 0,
            of_last: 0,
        }
    }
}

impl<T> OfferEvents<T> {
    pub(in crate::core) fn push(&mut self, offer: T, bytes: usize) {
        self.bytes += bytes;
        self.of_last += bytes;
        match self.events.last_mut() {
            Some(last) if self.of_last <= EVENT_BYTES_MAX => last.push(offer),
            _ => {
                self.events.push(vec![offer]);
                self.of_last = bytes;
            }
        }
    }
}

impl MasterCore {
    /// Gets allocations from the allocator and makes offers of them.
    pub(in crate::core) fn allocate(&mut self) {
        self.counters.allocation_runs += 1;
        self.end_recovery_mode();
        let allocations = self.allocator.allocate(self.now.moment);
        let mut made: BTreeMap<FrameworkId, OfferEvents<v1::Offer>> = BTreeMap::new();
        for allocation in allocations {
            let framework = allocation.framework.clone();
            let sent = made.get(&framework).map_or(0, |sent| sent.bytes);
            if let Some((offer, bytes)) = self.make_offer(allocation, sent) {
                made.entry(framework).or_default().push(offer, bytes);
            }
        }
        for (framework, sent) in made {
            for offers in sent.events {
                let mut event = event_of(event::Type::Offers);
                event.offers = Some(event::Offers { offers });
                self.event(&framework, event);
            }
        }
        self.send_inverse_offers();
    }

    /// Makes an offer for a framework that has got `sent` bytes in this cycle. Returns the offer with its size.
    fn make_offer(&mut self, allocation: Allocation, sent: usize) -> Option<(v1::Offer, usize)> {
        let Allocation {
            framework: framework_id,
            agent: agent_id,
            role,
            resources,
        } = allocation;
        let framework = self.frameworks.get(&framework_id);
        let framework = framework.filter(|framework| framework.connection().is_some());
        let agent = self.agents.get(&agent_id);
        let agent = agent.filter(|agent| agent.connection.is_some());
        let Some(((framework, agent), id)) = framework.zip(agent).zip(self.issued_ids.next_offer())
        else {
            self.counters.invariant_violations += 1;
            self.recover_resources(&framework_id, &agent_id, &resources, RefuseFilter::None);
            return None;
        };
        let mut offer = Offer {
            id: id.clone(),
            framework_id,
            agent_id,
            role,
            resources,
            unavailability: self
                .policies
                .maintenance()
                .of_agent(&agent.profile)
                .copied(),
            timer: None,
        };
        let message = to_wire(&offer, framework, agent);
        let bytes = message.encoded_len();
        let is_full = framework.offers.len() >= OFFERS_PER_FRAMEWORK_MAX;
        if let Some(wait) = self.must_wait(&offer, is_full, bytes, sent) {
            let wait = RefuseFilter::For(wait);
            self.recover_resources(&offer.framework_id, &offer.agent_id, &offer.resources, wait);
            return None;
        }
        self.issued_ids.assign_offer();
        let timer = self.config.offer_timeout.map(|timeout| {
            let offer = id.clone();
            self.timers
                .set(self.now.moment + timeout, Timer::Offer { offer })
        });
        offer.timer = timer;
        if let Some(framework) = self.frameworks.get_mut(&offer.framework_id) {
            framework.offers.insert(id.clone());
            framework.counters().offers_sent += 1;
        }
        if let Some(agent) = self.agents.get_mut(&offer.agent_id) {
            agent.offers.insert(id.clone());
        }
        self.offers.insert(id, Arc::new(offer));
        self.counters.offers_made += 1;
        Some((message, bytes))
    }

    /// The time for which an offer of this size is not made to its framework: until the next cycle if the framework
    /// has got enough in this one.
    fn must_wait(
        &self,
        offer: &Offer,
        is_full: bool,
        bytes: usize,
        sent: usize,
    ) -> Option<Duration> {
        let max = self.config.memory.offers;
        if bytes > max {
            tracing::warn!(framework_id = %offer.framework_id, agent_id = %offer.agent_id, bytes, max, "offer not made: it is too large; give the agent fewer attributes, reservations and volumes, or raise --memory_budget");
            return Some(TOO_LARGE_WAIT);
        }
        (is_full || sent.saturating_add(bytes) > max).then_some(Duration::ZERO)
    }

    /// Removes an offer from the tables; the caller accounts for its resources.
    pub(super) fn take_offer(&mut self, id: &OfferId) -> Option<Arc<Offer>> {
        let offer = self.offers.remove(id)?;
        if let Some(timer) = offer.timer {
            self.timers.cancel(timer);
        }
        if let Some(framework) = self.frameworks.get_mut(&offer.framework_id) {
            framework.offers.remove(id);
        }
        if let Some(agent) = self.agents.get_mut(&offer.agent_id) {
            agent.offers.remove(id);
        }
        Some(offer)
    }

    /// Ends an offer and returns its resources to the allocator.
    pub(in crate::core) fn end_offer(
        &mut self,
        id: &OfferId,
        refuse_filter: RefuseFilter,
    ) -> Option<Arc<Offer>> {
        let offer = self.take_offer(id)?;
        let resources = offer.resources.clone();
        self.recover_resources(
            &offer.framework_id,
            &offer.agent_id,
            &resources,
            refuse_filter,
        );
        Some(offer)
    }

    /// Ends an offer and informs the framework.
    pub(in crate::core) fn rescind(&mut self, id: &OfferId) {
        let Some(offer) = self.end_offer(id, RefuseFilter::None) else {
            return;
        };
        self.tell_rescinded(&offer);
    }

    /// Sends a framework the RESCIND event of an ended offer.
    pub(in crate::core) fn tell_rescinded(&mut self, offer: &Offer) {
        self.counters.offers_rescinded += 1;
        if let Some(framework) = self.frameworks.get_mut(&offer.framework_id) {
            framework.counters().offers_rescinded += 1;
        }
        let mut event = event_of(event::Type::Rescind);
        event.rescind = Some(event::Rescind {
            offer_id: (&offer.id).into(),
        });
        self.event(&offer.framework_id, event);
    }

    /// Ends all offers and inverse offers of a framework that is no longer connected.
    pub(in crate::core) fn discard_offers(&mut self, framework: &FrameworkId) {
        self.discard_inverse_offers(framework);
        let Some(framework) = self.frameworks.get(framework) else {
            return;
        };
        for id in framework.offers.clone() {
            self.end_offer(&id, RefuseFilter::None);
        }
    }

    pub(in crate::core) fn rescind_offers_of_agent(&mut self, agent: &AgentId) {
        let Some(agent) = self.agents.get(agent) else {
            return;
        };
        let id = agent.id().clone();
        for offer in agent.offers.clone() {
            self.rescind(&offer);
        }
        self.rescind_inverse_of_agent(&id);
    }

    pub(in crate::core) fn rescind_offers_of_roles(
        &mut self,
        framework: &FrameworkId,
        roles: &[Role],
    ) {
        let Some(framework) = self.frameworks.get(framework) else {
            return;
        };
        let roles: BTreeSet<&Role> = roles.iter().collect();
        let ids: Vec<_> = framework
            .offers
            .iter()
            .filter(|id| {
                self.offers
                    .get(*id)
                    .is_some_and(|offer| roles.contains(&offer.role))
            })
            .cloned()
            .collect();
        for id in ids {
            self.rescind(&id);
        }
    }

    /// Returns resources to the allocator.
    pub(in crate::core) fn recover_resources(
        &mut self,
        framework: &FrameworkId,
        agent: &AgentId,
        resources: &Resources,
        refuse_filter: RefuseFilter,
    ) {
        if resources.is_empty() {
            return;
        }
        let refuse = match refuse_filter {
            RefuseFilter::None => None,
            RefuseFilter::For(time) => Some(time),
        };
        let result =
            self.allocator
                .recover_resources(self.now.moment, framework, agent, resources, refuse);
        if let Err(error) = result {
            self.counters.invariant_violations += 1;
            tracing::error!(%framework, %agent, %error, "the allocator did not take resources back");
        }
    }
}

/// Converts an offer to the message for the framework.
pub(in crate::core) fn to_wire(offer: &Offer, framework: &Framework, agent: &Agent) -> v1::Offer {
    let capabilities = framework.terms.capabilities;
    let profile = &agent.profile;
    let mut resources = wire::to_wire(&offer.resources, wire::format_of(capabilities));
    // A framework without multiple roles would not recognise its own resources otherwise.
    if !capabilities.multi_role {
        for resource in &mut resources {
            resource.allocation_info = None;
        }
    }
    v1::Offer {
        id: (&offer.id).into(),
        framework_id: (&offer.framework_id).into(),
        agent_id: (&offer.agent_id).into(),
        hostname: profile.info.hostname.clone(),
        url: Some(profile.url()),
        domain: profile.info.domain.clone(),
        resources,
        attributes: profile.info.attributes.clone(),
        executor_ids: agent
            .executors_of(&offer.framework_id)
            .map(|executor| (&executor.executor_id).into())
            .collect(),
        unavailability: offer.unavailability,
        allocation_info: capabilities
            .multi_role
            .then(|| v1::resource::AllocationInfo {
                role: Some(offer.role.to_string()),
            }),
    }
}
