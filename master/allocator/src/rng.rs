//! The allocator's randomness: a seeded generator, so that the same calls give the same answers.

use crate::sorter::{NodeKey, SiblingSums, Sorter};

/// SplitMix64: small, and good enough for the order of a list.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let bound = u64::try_from(last + 1).unwrap_or(u64::MAX);
            // The high half of the product: uniform up to a bias of one in 2^64 / bound.
            let high = (u128::from(self.next()) * u128::from(bound)) >> 64;
            items.swap(last, usize::try_from(high).unwrap_or(0));
        }
    }

    /// A random number above 0 and at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A weighted random order: each position goes to one of the remaining nodes with a chance in proportion to its
    /// weight, by keys `u^(1/weight)`, largest first.
    pub(crate) fn weighted_shuffle(&mut self, sorter: &Sorter, nodes: &[NodeKey]) -> Vec<NodeKey> {
        let mut sums = SiblingSums::default();
        let mut keyed: Vec<(f64, NodeKey)> = nodes
            .iter()
            .map(|node| {
                let weight = sorter.relative_weight(*node, &mut sums);
                (self.unit().ln() / weight, *node)
            })
            .collect();
        keyed.sort_by(|a, b| b.0.total_cmp(&a.0));
        keyed.into_iter().map(|entry| entry.1).collect()
    }
}
