//! Ranges: sets of whole numbers kept as sorted, disjoint, inclusive intervals.
//!
//! Invariant: neighbours are neither overlapping nor adjacent, so equal sets are equal values.

use std::fmt;
use std::sync::Arc;

/// An inclusive interval, `begin <= end`.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Range {
    begin: u64,
    end: u64,
}

/// A range that ends before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("begin > end: the range {begin}-{end} is inverted")]
pub struct InvertedRange {
    pub begin: u64,
    pub end: u64,
}

impl Range {
    /// # Errors
    /// When `begin > end`.
    pub const fn new(begin: u64, end: u64) -> Result<Self, InvertedRange> {
        if begin > end {
            Err(InvertedRange { begin, end })
        } else {
            Ok(Self { begin, end })
        }
    }

    #[must_use]
    pub const fn single(value: u64) -> Self {
        Self {
            begin: value,
            end: value,
        }
    }

    #[must_use]
    pub const fn begin(self) -> u64 {
        self.begin
    }

    #[must_use]
    pub const fn end(self) -> u64 {
        self.end
    }

    /// The count of numbers; saturates, for the one range that has 2^64.
    #[must_use]
    pub const fn count(self) -> u64 {
        (self.end - self.begin).saturating_add(1)
    }

    #[must_use]
    pub const fn overlaps(self, that: Self) -> bool {
        self.begin <= that.end && that.begin <= self.end
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.begin, self.end)
    }
}

crate::display::debug_as_display!(Range);

/// A set of whole numbers. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ranges(Arc<[Range]>);

impl Ranges {
    /// Coalesces any ranges: order, overlap and adjacency do not matter.
    #[must_use]
    pub fn new(mut ranges: Vec<Range>) -> Self {
        ranges.sort_unstable();
        ranges.dedup_by(|next, kept| {
            let joins = next.begin <= kept.end.saturating_add(1);
            if joins {
                kept.end = kept.end.max(next.end);
            }
            joins
        });
        Self(ranges.into())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The count of numbers in all ranges; saturates.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0
            .iter()
            .fold(0, |count, range| count.saturating_add(range.count()))
    }

    /// The intervals in ascending order.
    #[must_use]
    pub fn as_slice(&self) -> &[Range] {
        &self.0
    }

    pub fn iter(&self) -> std::iter::Copied<std::slice::Iter<'_, Range>> {
        self.0.iter().copied()
    }

    /// Whether `that` is a subset of this set.
    #[must_use]
    pub fn contains(&self, that: &Self) -> bool {
        let mut mine = self.0.iter();
        let mut current = mine.next();
        that.0.iter().all(|requested| {
            while current.is_some_and(|range| range.end < requested.begin) {
                current = mine.next();
            }
            current
                .is_some_and(|range| range.begin <= requested.begin && requested.end <= range.end)
        })
    }

    #[must_use]
    pub fn union(&self, that: &Self) -> Self {
        if that.is_empty() {
            return self.clone();
        }
        if self.is_empty() {
            return that.clone();
        }
        Self::new(self.iter().chain(that.iter()).collect())
    }

    /// The numbers of `self` that are not in `that`.
    #[must_use]
    pub fn difference(&self, that: &Self) -> Self {
        if self.is_empty() || that.is_empty() {
            return self.clone();
        }
        let mut kept = Vec::with_capacity(self.0.len() + that.0.len());
        let mut first = 0;
        for range in self.iter() {
            // Both lists ascend: a range that ends before this one ends before all later ones.
            first += that.0[first..].partition_point(|taken| taken.end < range.begin);
            let mut begin = Some(range.begin);
            for taken in that.0[first..]
                .iter()
                .take_while(|taken| taken.begin <= range.end)
            {
                if let Some(start) = begin
                    && start < taken.begin
                {
                    kept.push(Range {
                        begin: start,
                        end: taken.begin - 1,
                    });
                }
                begin = taken.end.checked_add(1).filter(|next| *next <= range.end);
            }
            if let Some(start) = begin {
                kept.push(Range {
                    begin: start,
                    end: range.end,
                });
            }
        }
        Self(kept.into())
    }

    #[must_use]
    pub fn intersection(&self, that: &Self) -> Self {
        let (mut i, mut j, mut common) = (0, 0, Vec::new());
        while let (Some(mine), Some(theirs)) = (self.0.get(i), that.0.get(j)) {
            if mine.overlaps(*theirs) {
                common.push(Range {
                    begin: mine.begin.max(theirs.begin),
                    end: mine.end.min(theirs.end),
                });
            }
            if mine.end <= theirs.end {
                i += 1;
            } else {
                j += 1;
            }
        }
        Self(common.into())
    }
}

impl FromIterator<Range> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range>>(ranges: I) -> Self {
        Self::new(ranges.into_iter().collect())
    }
}

impl From<Range> for Ranges {
    fn from(range: Range) -> Self {
        Self([range].into())
    }
}

impl<'a> IntoIterator for &'a Ranges {
    type Item = Range;
    type IntoIter = std::iter::Copied<std::slice::Iter<'a, Range>>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::display::list(f, "[", self.iter(), "]")
    }
}

crate::display::debug_as_display!(Ranges);
