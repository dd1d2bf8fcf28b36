//! The value of a resource: an amount, ranges or a set.

use std::fmt;

use crate::{ItemSet, Ranges, Scalar};

/// The kind of a value. Attributes know `Text`, resources do not.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValueKind {
    Scalar,
    Ranges,
    Set,
    Text,
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Scalar => "SCALAR",
            Self::Ranges => "RANGES",
            Self::Set => "SET",
            Self::Text => "TEXT",
        })
    }
}

/// The value of a resource. Values of different kinds never mix: adding them is a no-op, and [`crate::Resources`] never does
/// so.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    Scalar(Scalar),
    Ranges(Ranges),
    Set(ItemSet),
}

impl Value {
    #[must_use]
    pub const fn kind(&self) -> ValueKind {
        match self {
            Self::Scalar(_) => ValueKind::Scalar,
            Self::Ranges(_) => ValueKind::Ranges,
            Self::Set(_) => ValueKind::Set,
        }
    }

    #[must_use]
    pub const fn as_scalar(&self) -> Option<Scalar> {
        match self {
            Self::Scalar(scalar) => Some(*scalar),
            Self::Ranges(_) | Self::Set(_) => None,
        }
    }

    #[must_use]
    pub const fn as_ranges(&self) -> Option<&Ranges> {
        match self {
            Self::Ranges(ranges) => Some(ranges),
            Self::Scalar(_) | Self::Set(_) => None,
        }
    }

    /// Whether the value is empty, zero or negative.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match self {
            Self::Scalar(scalar) => !scalar.is_positive(),
            Self::Ranges(ranges) => ranges.is_empty(),
            Self::Set(set) => set.is_empty(),
        }
    }

    /// The amount: the scalar itself, or the number of numbers or items.
    #[must_use]
    pub fn quantity(&self) -> Scalar {
        match self {
            Self::Scalar(scalar) => *scalar,
            Self::Ranges(ranges) => Scalar::from_units(ranges.count()),
            Self::Set(set) => Scalar::from_units(u64::try_from(set.len()).unwrap_or(u64::MAX)),
        }
    }

    #[must_use]
    pub fn contains(&self, that: &Self) -> bool {
        match (self, that) {
            (Self::Scalar(mine), Self::Scalar(theirs)) => theirs <= mine,
            (Self::Ranges(mine), Self::Ranges(theirs)) => mine.contains(theirs),
            (Self::Set(mine), Self::Set(theirs)) => mine.contains(theirs),
            _ => false,
        }
    }

    /// The common part of both values; `None` if it is empty.
    pub(crate) fn common(&self, that: &Self) -> Option<Self> {
        let common = match (self, that) {
            (Self::Scalar(mine), Self::Scalar(theirs)) => Self::Scalar(*mine.min(theirs)),
            (Self::Ranges(mine), Self::Ranges(theirs)) => {
                Self::Ranges(mine.difference(&mine.difference(theirs)))
            }
            (Self::Set(mine), Self::Set(theirs)) => {
                Self::Set(mine.difference(&mine.difference(theirs)))
            }
            _ => return None,
        };
        (!common.is_empty()).then_some(common)
    }

    pub(crate) fn add(&mut self, that: &Self) {
        match (self, that) {
            (Self::Scalar(mine), Self::Scalar(theirs)) => *mine += *theirs,
            (Self::Ranges(mine), Self::Ranges(theirs)) => *mine = mine.union(theirs),
            (Self::Set(mine), Self::Set(theirs)) => *mine = mine.union(theirs),
            _ => debug_assert!(false, "values of different kinds"),
        }
    }

    pub(crate) fn subtract(&mut self, that: &Self) {
        match (self, that) {
            (Self::Scalar(mine), Self::Scalar(theirs)) => *mine -= *theirs,
            (Self::Ranges(mine), Self::Ranges(theirs)) => *mine = mine.difference(theirs),
            (Self::Set(mine), Self::Set(theirs)) => *mine = mine.difference(theirs),
            _ => debug_assert!(false, "values of different kinds"),
        }
    }
}

impl From<Scalar> for Value {
    fn from(scalar: Scalar) -> Self {
        Self::Scalar(scalar)
    }
}

impl From<Ranges> for Value {
    fn from(ranges: Ranges) -> Self {
        Self::Ranges(ranges)
    }
}

impl From<ItemSet> for Value {
    fn from(set: ItemSet) -> Self {
        Self::Set(set)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scalar(scalar) => scalar.fmt(f),
            Self::Ranges(ranges) => fmt::Display::fmt(ranges, f),
            Self::Set(set) => fmt::Display::fmt(set, f),
        }
    }
}

crate::display::debug_as_display!(Value);
