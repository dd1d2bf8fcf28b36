//! Sets of named items.
//!
//! Invariant: items are sorted and unique, so equal sets are equal values.

use std::fmt;
use std::sync::Arc;

/// A set of named items. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ItemSet(Arc<[Arc<str>]>);

impl ItemSet {
    /// Sorts the items; duplicates count once.
    #[must_use]
    pub fn new(mut items: Vec<Arc<str>>) -> Self {
        items.sort_unstable();
        items.dedup();
        Self(items.into())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The items in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(AsRef::as_ref)
    }

    #[must_use]
    pub fn contains_item(&self, item: &str) -> bool {
        self.position(item).is_ok()
    }

    /// Whether `that` is a subset of this set.
    #[must_use]
    pub fn contains(&self, that: &Self) -> bool {
        that.len() <= self.len() && that.iter().all(|item| self.contains_item(item))
    }

    #[must_use]
    pub fn union(&self, that: &Self) -> Self {
        if that.is_empty() {
            return self.clone();
        }
        Self::new(self.0.iter().chain(that.0.iter()).cloned().collect())
    }

    /// The items of `self` that are not in `that`.
    #[must_use]
    pub fn difference(&self, that: &Self) -> Self {
        if that.is_empty() {
            return self.clone();
        }
        Self(
            self.0
                .iter()
                .filter(|item| !that.contains_item(item))
                .cloned()
                .collect(),
        )
    }

    fn position(&self, item: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|mine| mine.as_ref().cmp(item))
    }
}

impl<S: Into<Arc<str>>> FromIterator<S> for ItemSet {
    fn from_iter<I: IntoIterator<Item = S>>(items: I) -> Self {
        Self::new(items.into_iter().map(Into::into).collect())
    }
}

impl fmt::Display for ItemSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::display::list(f, "{", self.iter(), "}")
    }
}

crate::display::debug_as_display!(ItemSet);
