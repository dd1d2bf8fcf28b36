//! The indexes of a run without a task or an outcome, by their start time.
//!
//! Invariant: an index that has never had a task takes no memory, so a run costs only as much as it has launched.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

#[derive(Clone, Debug, Default)]
pub(super) struct Waiting {
    /// The range of indexes that have never had a task; [`Self::others`] has all other waiting indexes.
    fresh: Range<u32>,
    /// All other indexes. Those that may start at any time are below the fresh ones.
    others: BTreeSet<(Duration, u32)>,
}

impl Waiting {
    /// Returns a list of all indexes below `count`.
    pub(super) fn all(count: u32) -> Self {
        Self {
            fresh: 0..count,
            others: BTreeSet::new(),
        }
    }

    /// Returns a list of the given entries and all fresh indexes from `from`.
    pub(super) fn restored(
        &self,
        from: u32,
        others: impl Iterator<Item = (Duration, u32)>,
    ) -> Self {
        Self {
            fresh: from..self.fresh.end.max(from),
            others: others.collect(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.fresh.len() + self.others.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the indexes in the order of their start: by time, then by index.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Duration, u32)> {
        let start = (Duration::ZERO, self.fresh.start);
        let fresh = self.fresh.clone().map(|index| (Duration::ZERO, index));
        let before = self.others.range(..start).copied();
        let after = self.others.range(start..).copied();
        before.chain(fresh).chain(after)
    }

    /// Returns the time when the first may start.
    pub(super) fn first(&self) -> Option<Duration> {
        self.iter().next().map(|(not_before, _)| not_before)
    }

    /// Returns the time when the last may start.
    pub(super) fn last(&self) -> Option<Duration> {
        let last = self.others.last().map(|(not_before, _)| *not_before);
        last.or((!self.fresh.is_empty()).then_some(Duration::ZERO))
    }

    /// Returns the indexes that may start by now.
    pub(super) fn ready(&self, at: Duration) -> impl Iterator<Item = u32> {
        let ready = self.iter().take_while(move |(from, _)| *from <= at);
        ready.map(|(_, index)| index)
    }

    pub(super) fn insert(&mut self, one: (Duration, u32)) {
        self.others.insert(one);
    }

    pub(super) fn remove(&mut self, one: &(Duration, u32)) {
        let (not_before, index) = *one;
        if !not_before.is_zero() || !self.fresh.contains(&index) {
            self.others.remove(one);
            return;
        }
        // The index is mostly the first, and then no task is passed over.
        let passed_over = self.fresh.start..index;
        let passed_over = passed_over.map(|index| (Duration::ZERO, index));
        self.others.extend(passed_over);
        self.fresh.start = index + 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_matches_a_plain_set() {
        for seed in 0..50_u32 {
            let (mut waiting, mut all) = (Waiting::all(20), BTreeSet::new());
            all.extend((0..20).map(|index| (Duration::ZERO, index)));
            for step in 0..40_u32 {
                let index = (seed * 7 + step * step * 3) % 20;
                let later = Duration::from_secs(u64::from(step % 5) + 1);
                let present = all.iter().find(|(_, one)| *one == index).copied();
                match present {
                    Some(one) => {
                        all.remove(&one);
                        waiting.remove(&one);
                    }
                    None => {
                        all.insert((later, index));
                        waiting.insert((later, index));
                    }
                }
                let expected: Vec<_> = all.iter().copied().collect();
                assert_eq!(waiting.iter().collect::<Vec<_>>(), expected);
                assert_eq!(
                    (waiting.len(), waiting.is_empty()),
                    (all.len(), all.is_empty())
                );
                assert_eq!(waiting.first(), expected.first().map(|one| one.0));
                assert_eq!(waiting.last(), expected.last().map(|one| one.0));
                let at = Duration::from_secs(2);
                let ready = expected.iter().filter(|one| one.0 <= at).map(|one| one.1);
                assert_eq!(
                    waiting.ready(at).collect::<Vec<_>>(),
                    ready.collect::<Vec<_>>()
                );
            }
        }
    }
}
