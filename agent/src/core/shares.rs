//! The amounts that frameworks take of a shared capacity, with a limit for each and for the total.
//!
//! Pure. Invariant: the total is at most a quarter above its limit. Up to that, a framework that takes very little
//! always finds room.

use std::collections::BTreeMap;

use meseta_resources::FrameworkId;

/// The amount that each framework holds of a shared capacity.
#[derive(Debug, Default)]
pub(super) struct Shares {
    max: usize,
    of_one_max: usize,
    all: usize,
    frameworks: BTreeMap<FrameworkId, usize>,
}

impl Shares {
    /// Creates an empty table, with a limit for the total and for one framework.
    pub(super) fn new(max: usize, of_one_max: usize) -> Self {
        Self {
            max,
            of_one_max,
            ..Self::default()
        }
    }

    /// The total of all frameworks.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Whether a framework may take this much more.
    pub(super) fn has_room(&self, framework: &FrameworkId, amount: usize) -> bool {
        let own = self.frameworks.get(framework).copied().unwrap_or_default();
        let own = own.saturating_add(amount);
        let all = self.all.saturating_add(amount);
        let is_little = own <= self.max / 64 && all <= self.max.saturating_add(self.max / 4);
        own <= self.of_one_max && (all <= self.max || is_little)
    }

    pub(super) fn add(&mut self, framework: &FrameworkId, amount: usize) {
        if amount > 0 {
            *self.frameworks.entry(framework.clone()).or_default() += amount;
            self.all += amount;
        }
    }

    pub(super) fn take_off(&mut self, framework: &FrameworkId, amount: usize) {
        if let Some(own) = self.frameworks.get_mut(framework) {
            let amount = amount.min(*own);
            *own -= amount;
            self.all -= amount;
            if *own == 0 {
                self.frameworks.remove(framework);
            }
        }
    }

    /// Removes all amounts of a framework.
    pub(super) fn forget(&mut self, framework: &FrameworkId) {
        self.all -= self.frameworks.remove(framework).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framework(name: &str) -> FrameworkId {
        FrameworkId::new(name).expect("an id")
    }

    #[test]
    fn framework_share_and_total_are_bounded() {
        let mut shares = Shares::new(6400, 4800);
        let [a, b] = ["a", "b"].map(framework);
        shares.add(&a, 4800);
        assert!(!shares.has_room(&a, 1) && shares.has_room(&b, 1600));
        shares.add(&b, 1600);
        assert!(!shares.has_room(&b, 1));
        let mut small = 0;
        while shares.has_room(&framework(&format!("c{small}")), 100) {
            shares.add(&framework(&format!("c{small}")), 100);
            small += 1;
        }
        assert_eq!((small, shares.all()), (16, 8000));
        shares.take_off(&a, 100);
        assert!(shares.has_room(&framework("d"), 100) && !shares.has_room(&b, 100));
        shares.forget(&a);
        assert!(shares.has_room(&b, 100));
        shares.take_off(&a, 100);
        assert_eq!(shares.all(), 3200);
    }
}
