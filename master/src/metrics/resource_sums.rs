//! The total resources of all agents, for the kinds with series of their own.

use meseta_resources::{Resources, Scalar};

use super::RESOURCES;
use crate::core::Snapshot;

/// Amounts of several kinds of resources.
#[derive(Debug, Default)]
pub(super) struct Amounts {
    /// The amounts in the order of [`RESOURCES`].
    regular: [Scalar; RESOURCES.len()],
    revocable: [Scalar; RESOURCES.len()],
    /// The shared resources, each once, however many frameworks hold it.
    shared: Resources,
}

impl Amounts {
    fn add(&mut self, resources: &Resources) {
        for resource in resources {
            if resource.is_shared() {
                self.shared += resource.clone().with_allocation(None);
                continue;
            }
            let amounts = if resource.is_revocable() {
                &mut self.revocable
            } else {
                &mut self.regular
            };
            let kinds = RESOURCES.iter().zip(amounts);
            let amount = kinds
                .into_iter()
                .find(|((name, ..), _)| resource.name() == *name);
            if let (Some((_, amount)), Some(scalar)) = (amount, resource.scalar()) {
                *amount += scalar;
            }
        }
    }

    /// The revocable or the non-revocable amount of a resource.
    pub(super) fn get(&self, name: &str, revocable: bool) -> f64 {
        self.scalar(name, revocable).to_f64()
    }

    /// The total amount of a resource.
    pub(super) fn all(&self, name: &str) -> Scalar {
        self.scalar(name, false) + self.scalar(name, true)
    }

    fn scalar(&self, name: &str, revocable: bool) -> Scalar {
        let amounts = if revocable {
            &self.revocable
        } else {
            &self.regular
        };
        let shared = self.shared.filtered(|one| one.is_revocable() == revocable);
        let kinds = RESOURCES.iter().zip(amounts);
        let amount = kinds.into_iter().find(|((known, ..), _)| *known == name);
        amount.map_or(Scalar::ZERO, |(_, amount)| *amount) + shared.scalar(name).unwrap_or_default()
    }
}

/// The sums over all registered agents.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) total: Amounts,
    pub(super) used: Amounts,
    pub(super) offered: Amounts,
}

impl Sums {
    pub(super) fn from_snapshot(snapshot: &Snapshot) -> Self {
        let mut sums = Self::default();
        for agent in snapshot.agents.iter() {
            sums.total.add(&agent.profile.total);
            sums.used.add(agent.used_total());
            sums.offered.add(&agent.offered);
        }
        sums
    }
}

/// The totals of one resource over all registered agents; memory and disk in megabytes.
#[derive(Clone, Debug)]
pub(crate) struct ResourceTotals {
    pub(crate) name: &'static str,
    pub(crate) total: f64,
    pub(crate) allocated: f64,
    pub(crate) offered: f64,
    pub(crate) revocable_total: f64,
    pub(crate) revocable_allocated: f64,
}

/// The totals of each kind with series of its own.
pub(crate) fn totals(snapshot: &Snapshot) -> Vec<ResourceTotals> {
    let sums = Sums::from_snapshot(snapshot);
    let totals = RESOURCES.iter().map(|(name, ..)| ResourceTotals {
        name,
        total: sums.total.get(name, false),
        allocated: sums.used.get(name, false),
        offered: sums.offered.get(name, false),
        revocable_total: sums.total.get(name, true),
        revocable_allocated: sums.used.get(name, true),
    });
    totals.collect()
}
