//! Labels: free-form keys with optional values.
//!
//! They are kept as they were written, repeated ones too, and compared without regard to order. No
//! labels and an empty list of labels are the same thing.

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

/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Labels(Arc<[Label]>);

impl Labels {
    #[must_use]
    pub fn new(labels: Vec<Label>) -> Self {
        Self(labels.into())
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Label> {
        self.0.iter()
    }
}

impl Labels {
    fn sorted(&self) -> Vec<&Label> {
        let mut sorted: Vec<&Label> = self.0.iter().collect();
        sorted.sort_unstable();
        sorted
    }
}

impl Ord for Labels {
    fn cmp(&self, that: &Self) -> Ordering {
        if self.0 == that.0 {
            Ordering::Equal
        } else {
            self.sorted().cmp(&that.sorted())
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
        self.sorted().hash(state);
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

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
