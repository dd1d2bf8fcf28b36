//! Sets of small integers as words of bits, so that "all frameworks here have declined" is one comparison.
//!
//! Invariant: the last word is not zero, so equal sets are equal values.

use smallvec::SmallVec;

use crate::slab::{Key, at};

/// The number of words stored without a heap allocation.
const WORDS_INLINE: usize = 2;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bits(SmallVec<[u64; WORDS_INLINE]>);

const fn word_and_mask(bit: Key) -> (usize, u64) {
    (at(bit / 64), 1 << (bit % 64))
}

impl Bits {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub(crate) fn contains(&self, bit: Key) -> bool {
        let (word, mask) = word_and_mask(bit);
        self.0.get(word).is_some_and(|bits| bits & mask != 0)
    }

    /// Adds a bit. Returns false if the set had it already.
    pub(crate) fn insert(&mut self, bit: Key) -> bool {
        let (word, mask) = word_and_mask(bit);
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let added = self.0[word] & mask == 0;
        self.0[word] |= mask;
        added
    }

    /// Removes a bit. Returns false if the set did not have it.
    pub(crate) fn remove(&mut self, bit: Key) -> bool {
        let (word, mask) = word_and_mask(bit);
        let Some(bits) = self.0.get_mut(word) else {
            return false;
        };
        let removed = *bits & mask != 0;
        *bits &= !mask;
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
        removed
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether `that` contains each of these bits.
    pub(crate) fn is_subset_of(&self, that: &Self) -> bool {
        self.0.len() <= that.0.len()
            && self
                .0
                .iter()
                .zip(&that.0)
                .all(|(mine, theirs)| mine & !theirs == 0)
    }

    pub(crate) fn bytes(&self) -> usize {
        let words = if self.0.spilled() {
            self.0.capacity()
        } else {
            0
        };
        words * size_of::<u64>()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| at(word.count_ones())).sum()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Key> {
        self.0.iter().zip(0..).flat_map(|(word, at)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.checked_sub(1)?;
                Some(at * 64 + bit)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_inserted_bits() {
        let mut bits = Bits::default();
        for bit in [3, 64, 200] {
            assert!(bits.insert(bit));
        }
        assert!(!bits.insert(64));
        assert_eq!(bits.iter().collect::<Vec<_>>(), [3, 64, 200]);
        assert!(bits.remove(200) && !bits.remove(200));
        assert_eq!(bits.len(), 2);
        let mut small = Bits::default();
        assert!(small.is_subset_of(&bits));
        small.insert(64);
        assert!(small.is_subset_of(&bits) && !bits.is_subset_of(&small));
        bits.remove(3);
        assert_eq!(bits, small);
    }
}
