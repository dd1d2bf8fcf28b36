//! Amounts by name, and limits by name.
//!
//! Both are small sorted vectors. [`ResourceQuantities`]: a missing name counts as zero, and zero is never stored.
//! [`ResourceLimits`]: a missing name is unlimited, and zero is a limit.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use crate::{ResourceName, Scalar};

type Amount = (ResourceName, Scalar);

#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ResourceQuantities(Vec<Amount>);

#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct ResourceLimits(Vec<Amount>);

fn position(amounts: &[Amount], name: &str) -> Result<usize, usize> {
    // A handful of names: a linear search is faster than a binary one.
    for (index, (mine, _)) in amounts.iter().enumerate() {
        match mine.as_str().cmp(name) {
            Ordering::Less => {}
            Ordering::Equal => return Ok(index),
            Ordering::Greater => return Err(index),
        }
    }
    Err(amounts.len())
}

impl ResourceQuantities {
    /// The amount of a resource; zero if absent.
    #[must_use]
    pub fn get(&self, name: &str) -> Scalar {
        position(&self.0, name).map_or(Scalar::ZERO, |index| self.0[index].1)
    }

    /// Replaces the amount; zero and negative amounts remove it.
    pub fn set(&mut self, name: &ResourceName, amount: Scalar) {
        match position(&self.0, name.as_str()) {
            Ok(index) if amount.is_positive() => self.0[index].1 = amount,
            Ok(index) => drop(self.0.remove(index)),
            Err(index) if amount.is_positive() => self.0.insert(index, (name.clone(), amount)),
            Err(_) => {}
        }
    }

    /// Adds to the amount; zero and negative amounts add nothing.
    pub fn increase(&mut self, name: &ResourceName, amount: Scalar) {
        if !amount.is_positive() {
            return;
        }
        match position(&self.0, name.as_str()) {
            Ok(index) => self.0[index].1 += amount,
            Err(index) => self.0.insert(index, (name.clone(), amount)),
        }
    }

    /// Collects amounts that come in the order of their names.
    pub(crate) fn from_sorted<'a>(
        amounts: impl Iterator<Item = (&'a ResourceName, Scalar)>,
    ) -> Self {
        let mut sorted: Vec<Amount> = Vec::with_capacity(amounts.size_hint().1.unwrap_or(0));
        for (name, amount) in amounts.filter(|(_, amount)| amount.is_positive()) {
            match sorted.last_mut() {
                Some((last, total)) if last == name => *total += amount,
                _ => sorted.push((name.clone(), amount)),
            }
        }
        debug_assert!(sorted.is_sorted_by(|(before, _), (after, _)| before < after));
        Self(sorted)
    }

    /// Whether every amount is at least as large as in `that`.
    #[must_use]
    pub fn contains(&self, that: &Self) -> bool {
        let mut mine = self.0.iter();
        that.0.iter().all(|(name, requested)| {
            mine.by_ref()
                .find_map(|(have, amount)| match have.compare(name) {
                    Ordering::Less => None,
                    Ordering::Equal => Some(requested <= amount),
                    Ordering::Greater => Some(false),
                })
                .unwrap_or(false)
        })
    }

    fn merge(&mut self, that: &Self) {
        let mut at = 0;
        for (name, amount) in &that.0 {
            // The usual case: both sides have the same names.
            if let Some((mine, total)) = self.0.get_mut(at)
                && mine.is_shared_with(name)
            {
                *total += *amount;
                at += 1;
                continue;
            }
            while self
                .0
                .get(at)
                .is_some_and(|(mine, _)| mine.compare(name).is_lt())
            {
                at += 1;
            }
            match self.0.get_mut(at) {
                Some((mine, total)) if mine == name => *total += *amount,
                _ => self.0.insert(at, (name.clone(), *amount)),
            }
            at += 1;
        }
    }

    fn reduce(&mut self, that: &Self) {
        let mut taken = that.0.iter().peekable();
        self.0.retain_mut(|(name, amount)| {
            while taken
                .next_if(|(other, _)| other.compare(name).is_lt())
                .is_some()
            {}
            if let Some((_, less)) = taken.next_if(|(other, _)| other == name) {
                *amount -= *less;
            }
            amount.is_positive()
        });
    }
}

impl AddAssign<&Self> for ResourceQuantities {
    fn add_assign(&mut self, that: &Self) {
        self.merge(that);
    }
}

/// Subtracts; amounts stop at zero.
impl SubAssign<&Self> for ResourceQuantities {
    fn sub_assign(&mut self, that: &Self) {
        self.reduce(that);
    }
}

impl Add<&ResourceQuantities> for &ResourceQuantities {
    type Output = ResourceQuantities;
    fn add(self, that: &ResourceQuantities) -> ResourceQuantities {
        let mut sum = self.clone();
        sum += that;
        sum
    }
}

/// Subtracts; amounts stop at zero.
impl Sub<&ResourceQuantities> for &ResourceQuantities {
    type Output = ResourceQuantities;
    fn sub(self, that: &ResourceQuantities) -> ResourceQuantities {
        let mut rest = self.clone();
        rest -= that;
        rest
    }
}

impl<'a> FromIterator<(&'a ResourceName, Scalar)> for ResourceQuantities {
    fn from_iter<I: IntoIterator<Item = (&'a ResourceName, Scalar)>>(amounts: I) -> Self {
        let mut quantities = Self::new();
        for (name, amount) in amounts {
            quantities.increase(name, amount);
        }
        quantities
    }
}

impl FromIterator<Amount> for ResourceQuantities {
    fn from_iter<I: IntoIterator<Item = Amount>>(amounts: I) -> Self {
        let mut quantities = Self::new();
        for (name, amount) in amounts {
            quantities.increase(&name, amount);
        }
        quantities
    }
}

impl ResourceLimits {
    /// The limit; `None` if unlimited.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Scalar> {
        position(&self.0, name).ok().map(|index| self.0[index].1)
    }

    pub fn set(&mut self, name: &ResourceName, limit: Scalar) {
        match position(&self.0, name.as_str()) {
            Ok(index) => self.0[index].1 = limit,
            Err(index) => self.0.insert(index, (name.clone(), limit)),
        }
    }

    /// Whether the quantities are within the limits.
    #[must_use]
    pub fn allows(&self, quantities: &ResourceQuantities) -> bool {
        self.0
            .iter()
            .all(|(name, limit)| quantities.get(name.as_str()) <= *limit)
    }
}

impl FromIterator<Amount> for ResourceLimits {
    fn from_iter<I: IntoIterator<Item = Amount>>(limits: I) -> Self {
        let mut all = Self::new();
        for (name, limit) in limits {
            all.set(&name, limit);
        }
        all
    }
}

fn write_amounts(f: &mut fmt::Formatter<'_>, amounts: &[Amount]) -> fmt::Result {
    if amounts.is_empty() {
        return f.write_str("{}");
    }
    let text = amounts
        .iter()
        .map(|(name, amount)| format!("{name}:{amount}"));
    crate::display::separated(f, text, "; ")
}

macro_rules! amounts {
    ($name:ident) => {
        impl $name {
            #[must_use]
            pub const fn new() -> Self {
                Self(Vec::new())
            }

            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.0.is_empty()
            }

            #[must_use]
            pub const fn len(&self) -> usize {
                self.0.len()
            }

            /// Iterates in the order of the names.
            pub fn iter(&self) -> impl ExactSizeIterator<Item = (&ResourceName, Scalar)> {
                self.0.iter().map(|(name, amount)| (name, *amount))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_amounts(f, &self.0)
            }
        }

        crate::display::debug_as_display!($name);
    };
}

amounts!(ResourceQuantities);
amounts!(ResourceLimits);
