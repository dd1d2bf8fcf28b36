//! The offers that have not been answered.
//!
//! Invariant: the offers of tasks whose records are being written are in no other answer.

use std::collections::BTreeMap;

use crate::placement::Offer;

/// The open offers, by id.
#[derive(Debug, Default)]
pub(super) struct OpenOffers(BTreeMap<String, OpenOffer>);

/// An offer that has not been answered.
#[derive(Clone, Debug)]
struct OpenOffer {
    offer: Offer,
    /// Whether tasks for the offer are being made durable.
    is_committed: bool,
}

impl OpenOffers {
    pub(super) fn insert(&mut self, offer: Offer) {
        let open = OpenOffer {
            offer,
            is_committed: false,
        };
        self.0.insert(open.offer.id.clone(), open);
    }

    pub(super) fn remove(&mut self, id: &str) {
        self.0.remove(id);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn contains(&self, id: &str) -> bool {
        self.0.contains_key(id)
    }

    /// Returns the offers without tasks.
    pub(super) fn free(&self) -> impl Iterator<Item = &Offer> {
        let free = self.0.values().filter(|open| !open.is_committed);
        free.map(|open| &open.offer)
    }

    /// Returns the offers without tasks by their roles.
    pub(super) fn free_by_role(&self) -> BTreeMap<String, Vec<Offer>> {
        let mut by_role: BTreeMap<String, Vec<Offer>> = BTreeMap::new();
        for offer in self.free() {
            let offers = by_role.entry(offer.role.clone()).or_default();
            offers.push(offer.clone());
        }
        by_role
    }

    /// Removes the offers without tasks, and returns their ids.
    pub(super) fn take_free(&mut self) -> Vec<String> {
        let ids = self.free().map(|offer| offer.id.clone()).collect();
        self.0.retain(|_, open| open.is_committed);
        ids
    }

    /// Reserves an offer for tasks that are being made durable.
    pub(super) fn commit(&mut self, id: &str) {
        self.set_committed(id, true);
    }

    /// Frees an offer whose tasks are not launched.
    pub(super) fn free_again(&mut self, id: &str) {
        self.set_committed(id, false);
    }

    /// A missing offer was rescinded.
    fn set_committed(&mut self, id: &str, is_committed: bool) {
        if let Some(open) = self.0.get_mut(id) {
            open.is_committed = is_committed;
        }
    }

    pub(super) fn is_committed(&self, id: &str) -> bool {
        self.0.get(id).is_some_and(|open| open.is_committed)
    }
}
