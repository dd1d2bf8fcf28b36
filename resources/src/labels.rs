//! Labels: free-form keys with optional values.
//!
//! They are kept as they were written, duplicates too, and compared without regard to order. No labels and an empty list of
//! labels are equal.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Label {
    pub key: String,
    pub value: Option<String>,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}: {value}", self.key),
            None => f.write_str(&self.key),
        }
    }
}

/// A list of labels that is cheap to clone.
#[derive(Clone, Default)]
pub struct Labels(Option<Arc<Written>>);

/// The labels and their order, which is computed once: they are compared very often.
struct Written {
    labels: Vec<Label>,
    /// The indices of the labels, the least label first.
    order: Vec<usize>,
}

impl Labels {
    #[must_use]
    pub fn new(labels: Vec<Label>) -> Self {
        if labels.is_empty() {
            return Self(None);
        }
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.sort_unstable_by_key(|index| &labels[*index]);
        Self(Some(Arc::new(Written { labels, order })))
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Label> {
        let written = self.0.as_ref().map(|written| written.labels.as_slice());
        written.unwrap_or_default().iter()
    }

    fn sorted(&self) -> impl Iterator<Item = &Label> {
        let written = self.0.iter();
        written.flat_map(|written| written.order.iter().map(|index| &written.labels[*index]))
    }
}

impl Ord for Labels {
    fn cmp(&self, that: &Self) -> Ordering {
        match (&self.0, &that.0) {
            (Some(one), Some(other)) if Arc::ptr_eq(one, other) => Ordering::Equal,
            _ => self.sorted().cmp(that.sorted()),
        }
    }
}

impl PartialOrd for Labels {
    fn partial_cmp(&self, that: &Self) -> Option<Ordering> {
        Some(self.cmp(that))
    }
}

impl PartialEq for Labels {
    fn eq(&self, that: &Self) -> bool {
        self.cmp(that).is_eq()
    }
}

impl Eq for Labels {}

impl Hash for Labels {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let sorted: Vec<&Label> = self.sorted().collect();
        sorted.hash(state);
    }
}

impl FromIterator<Label> for Labels {
    fn from_iter<I: IntoIterator<Item = Label>>(labels: I) -> Self {
        Self::new(labels.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a Labels {
    type Item = &'a Label;
    type IntoIter = std::slice::Iter<'a, Label>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Display for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        crate::display::list(f, "{", self.iter(), "}")
    }
}

crate::display::debug_as_display!(Labels);
