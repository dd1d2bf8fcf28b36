//! What frameworks take of something that all of them share, with a bound for each and for all together.
//!
//! Pure. Invariant: all together take at most a quarter more than their bound, and a framework that takes next to nothing
//! finds room whatever the others take, up to that.

use std::collections::BTreeMap;

use meseta_resources::FrameworkId;

/// What each framework has of something that is shared.
#[derive(Debug, Default)]
pub(super) struct Shares {
    max: usize,
    of_one_max: usize,
    all: usize,
    frameworks: BTreeMap<FrameworkId, usize>,
}

impl Shares {
    /// Nothing is taken; so much there is for all frameworks together, and so much for one.
    pub(super) fn new(max: usize, of_one_max: usize) -> Self {
        Self {
            max,
            of_one_max,
            ..Self::default()
        }
    }

    /// What all of them take.
    pub(super) fn all(&self) -> usize {
        self.all
    }

    /// Whether a framework may take so much more.
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

    /// A framework has nothing any more.
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
    fn one_framework_leaves_room_to_others_and_all_together_are_bounded() {
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
