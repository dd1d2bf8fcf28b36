//! The versions of the state that readers see, and the snapshots that readers share.
//!
//! Invariant: [`Readers`] keeps a snapshot only until the next step.

use std::sync::Arc;

use super::snapshot::{DerivedViews, Snapshot};
use crate::core::state::inverse_offers::InverseOffer;
use crate::core::state::offer::Offer;

/// The steps that changed the visible state, and the snapshots of the newest step.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The number of steps so far.
    sequence: u64,
    /// The last step that may have changed the state visible to readers.
    changed: u64,
    /// Whether this step may have changed the state visible to readers.
    is_dirty: bool,
    /// Whether an operator has ever subscribed to events.
    is_watching: bool,
    full: Option<Arc<Snapshot>>,
    /// The snapshot without agents, frameworks and offers.
    policies: Option<Arc<Snapshot>>,
    /// The views derived from the last full snapshot.
    derived: Arc<DerivedViews>,
    derived_from: DerivedFrom,
}

/// The data from which [`DerivedViews`] are derived.
#[derive(Debug, Default)]
struct DerivedFrom {
    /// The version of the agents' views.
    agents_version: u64,
    offers: Vec<Arc<Offer>>,
    inverse_offers: Arc<Vec<Arc<InverseOffer>>>,
}

impl Readers {
    /// Begins a step, and drops the snapshots of the last one.
    pub(crate) fn begin_step(&mut self) {
        self.sequence += 1;
        (self.full, self.policies) = (None, None);
    }

    /// Records that this step may have changed the visible state.
    pub(crate) fn mark_dirty(&mut self) {
        self.is_dirty = true;
    }

    /// Ends a step; `shows_change` tells whether the effects of an otherwise clean step show a change.
    pub(crate) fn end_step(&mut self, shows_change: impl FnOnce() -> bool) {
        if std::mem::take(&mut self.is_dirty) || shows_change() {
            self.changed = self.sequence;
        }
    }

    /// Starts the creation of operator events.
    pub(crate) fn watch(&mut self) {
        self.is_watching = true;
    }

    pub(crate) const fn is_watching(&self) -> bool {
        self.is_watching
    }

    pub(crate) const fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) const fn changed(&self) -> u64 {
        self.changed
    }

    /// The full snapshot of this step, if a reader has asked for one.
    pub(crate) const fn full(&self) -> Option<&Arc<Snapshot>> {
        self.full.as_ref()
    }

    /// A snapshot of this step that has at least the policies.
    pub(crate) fn policies(&self) -> Option<&Arc<Snapshot>> {
        self.full.as_ref().or(self.policies.as_ref())
    }

    /// Keeps the full snapshot of this step.
    pub(crate) fn keep_full(&mut self, snapshot: Snapshot) -> Arc<Snapshot> {
        self.full.insert(Arc::new(snapshot)).clone()
    }

    /// Keeps the policies of this step.
    pub(crate) fn keep_policies(&mut self, policies: Snapshot) -> Arc<Snapshot> {
        self.policies.insert(Arc::new(policies)).clone()
    }

    /// The views derived from the previous snapshot, if neither agents nor offers of either kind have changed since.
    pub(crate) fn derived(
        &mut self,
        agents_version: u64,
        offers: &[Arc<Offer>],
        inverse_offers: &Arc<Vec<Arc<InverseOffer>>>,
    ) -> Arc<DerivedViews> {
        let known = &self.derived_from;
        let is_same = known.agents_version == agents_version
            && Arc::ptr_eq(&known.inverse_offers, inverse_offers)
            && known.offers.len() == offers.len()
            && known
                .offers
                .iter()
                .zip(offers)
                .all(|(known, offer)| Arc::ptr_eq(known, offer));
        if !is_same {
            self.derived = Arc::default();
            self.derived_from = DerivedFrom {
                agents_version,
                offers: offers.to_vec(),
                inverse_offers: inverse_offers.clone(),
            };
        }
        self.derived.clone()
    }
}
