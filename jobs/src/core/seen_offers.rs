//! The last offer of each agent to each role, with the rest that its answer has left: for plans and reasons.
//!
//! Invariant: at most [`SEEN_MAX`] offers, the newest; none that was rescinded, and none of an agent that is known to be
//! gone.

use std::collections::BTreeMap;

use meseta_resources::Resources;

use crate::placement::Offer;

/// Agents and roles whose last offer is remembered.
pub(super) const SEEN_MAX: usize = 10_000;

/// An agent and a role.
type Key = (String, String);

#[derive(Debug, Default)]
pub(super) struct SeenOffers {
    /// The offers with their numbers, which grow with each new offer.
    by_key: BTreeMap<Key, (u64, Offer)>,
    by_number: BTreeMap<u64, Key>,
    by_offer: BTreeMap<String, Key>,
    last: u64,
}

impl SeenOffers {
    pub(super) fn insert(&mut self, offer: Offer) {
        let key = (offer.agent_id.clone(), offer.role.clone());
        self.remove(&key);
        if self.by_key.len() >= SEEN_MAX
            && let Some((_, oldest)) = self.by_number.first_key_value()
        {
            self.remove(&oldest.clone());
        }
        self.last += 1;
        self.by_number.insert(self.last, key.clone());
        self.by_offer.insert(offer.id.clone(), key.clone());
        self.by_key.insert(key, (self.last, offer));
    }

    fn remove(&mut self, key: &Key) {
        if let Some((number, offer)) = self.by_key.remove(key) {
            self.by_number.remove(&number);
            self.by_offer.remove(&offer.id);
        }
    }

    /// Handles a rescinded offer: its agent is gone, or other frameworks got the resources.
    pub(super) fn rescinded(&mut self, offer_id: &str) {
        if let Some(key) = self.by_offer.get(offer_id) {
            self.remove(&key.clone());
        }
    }

    /// Removes the offers of a lost agent.
    pub(super) fn agent_lost(&mut self, agent_id: &str) {
        let of_agent = self.by_key.range((agent_id.to_owned(), String::new())..);
        let of_agent = of_agent.take_while(|((agent, _), _)| agent == agent_id);
        let keys: Vec<Key> = of_agent.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    /// Notes the rest of an accepted offer.
    pub(super) fn left(&mut self, offer: &Offer) {
        let key = self.by_offer.get(&offer.id);
        if let Some((_, seen)) = key.and_then(|key| self.by_key.get_mut(key)) {
            seen.clone_from(offer);
        }
    }

    /// Adds resources of an agent that became free and that no offer shows yet.
    pub(super) fn freed(&mut self, agent_id: &str, role: &str, resources: &Resources) {
        let key = (agent_id.to_owned(), role.to_owned());
        if let Some((_, seen)) = self.by_key.get_mut(&key) {
            seen.resources += resources;
        }
    }

    pub(super) fn in_role(&self, role: &str) -> impl Iterator<Item = &Offer> {
        let offers = self.by_key.values().map(|(_, offer)| offer);
        offers.filter(move |offer| offer.role == role)
    }

    /// Returns the number of the last offer of all.
    pub(super) fn last(&self) -> u64 {
        self.last
    }

    /// Returns how many offers of a role came after a number.
    pub(super) fn count_since(&self, role: &str, number: u64) -> usize {
        let newer = self.by_number.range(number.saturating_add(1)..);
        newer.filter(|(_, (_, of))| of == role).count()
    }

    /// Forgets the answered offers of a role; present agents offer again.
    pub(super) fn forget_answered(&mut self, role: &str, is_held: impl Fn(&str) -> bool) {
        let old = self.by_key.iter();
        let old = old.filter(|((_, of), (_, offer))| of == role && !is_held(&offer.id));
        let keys: Vec<Key> = old.map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.remove(&key);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self {
            last: self.last,
            ..Self::default()
        };
    }
}
