//! Collections of resources, and their arithmetic.
//!
//! Invariant: entries are valid, not empty and sorted. Values of the same thing are one entry, unless the thing is
//! indivisible (a volume, a file system, a device) and never sums. Shared volumes carry a count of copies. Hence equal
//! collections are equal entry by entry, regardless of the order of their construction.

use std::cmp::Ordering;
use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};

use crate::work_counter::count_entries;
use crate::{NotContained, Resource, ResourceQuantities, Value};

/// The length up to which checking each entry is faster than a binary search.
const SCAN_MAX: usize = 16;

/// A collection; see the module. Cloning costs one allocation.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Resources {
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) resource: Resource,
    /// The number of copies; 1 unless the resource is shared.
    pub(crate) copies: u32,
}

impl Resources {
    #[must_use]
    pub const fn new() -> Self {
        Self {
            entries: Vec::new(),
        }
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The number of different resources.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Frees spare capacity of the collection.
    pub fn shrink_to_fit(&mut self) {
        self.entries.shrink_to_fit();
    }

    /// Iterates in order; a shared volume comes once, regardless of its copies.
    pub fn iter(&self) -> Iter<'_> {
        Iter(self.entries.iter())
    }

    /// The number of copies of exactly this resource: more than one only if it is shared.
    #[must_use]
    pub fn count(&self, resource: &Resource) -> u32 {
        self.find(resource)
            .ok()
            .map(|index| &self.entries[index])
            .filter(|entry| entry.resource == *resource)
            .map_or(0, |entry| entry.copies)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Collects resources: faster when they come in the order of a collection and are all different.
    pub fn from_ascending<I: IntoIterator<Item = Resource>>(resources: I) -> Self {
        let resources = resources.into_iter();
        let mut all = Self {
            entries: Vec::with_capacity(resources.size_hint().0),
        };
        for resource in resources {
            let last = all.entries.last();
            if last.is_none_or(|last| last.resource.compare_thing(&resource).is_lt())
                && !resource.is_empty()
            {
                all.entries.push(Entry {
                    resource,
                    copies: 1,
                });
            } else {
                all.insert(resource);
            }
        }
        all
    }

    /// Collects like [`Resources::from_ascending`] without checks. The caller guarantees that no resource is empty, that each is
    /// ordered before the next, and that no shared resource comes twice. Anything else breaks the invariant.
    pub fn from_ascending_unchecked<I: IntoIterator<Item = Resource>>(resources: I) -> Self {
        let resources = resources.into_iter();
        let mut entries: Vec<Entry> = Vec::with_capacity(resources.size_hint().0);
        for resource in resources {
            debug_assert!(!resource.is_empty());
            debug_assert!(
                entries
                    .last()
                    .is_none_or(|last| last.resource.compare_thing(&resource).is_lt())
            );
            entries.push(Entry {
                resource,
                copies: 1,
            });
        }
        Self { entries }
    }

    /// Adds a resource, or a copy of a shared resource. An empty resource changes nothing.
    pub fn insert(&mut self, resource: Resource) {
        self.add_copies(resource, 1);
    }

    pub(crate) fn add_copies(&mut self, resource: Resource, copies: u32) {
        if resource.is_empty() || copies == 0 {
            return;
        }
        match self.find(&resource) {
            Ok(index) if resource.is_shared() => {
                let entry = &mut self.entries[index];
                entry.copies = entry.copies.saturating_add(copies);
            }
            Ok(index) if !resource.is_exclusive() => {
                self.entries[index]
                    .resource
                    .value_mut()
                    .add(resource.value());
            }
            Ok(index) | Err(index) => self.entries.insert(index, Entry { resource, copies }),
        }
    }

    /// Subtracts the available part of `that`: a scalar stops at zero, and a volume or file system is removed only if it is
    /// exactly the same.
    pub fn remove(&mut self, that: &Resource) {
        self.remove_copies(that, 1);
    }

    fn remove_copies(&mut self, that: &Resource, copies: u32) {
        let Ok(index) = self.find(that) else { return };
        let entry = &mut self.entries[index];
        let gone = if that.is_shared() {
            entry.copies = entry.copies.saturating_sub(copies);
            entry.copies == 0
        } else if that.is_exclusive() {
            true
        } else {
            entry.resource.value_mut().subtract(that.value());
            entry.resource.is_empty()
        };
        if gone {
            self.entries.remove(index);
        }
    }

    /// Whether all of `that` could be subtracted.
    #[must_use]
    pub fn contains(&self, that: &Self) -> bool {
        self.missing(that).is_none()
    }

    /// Whether the resource could be subtracted. An empty one always can.
    #[must_use]
    pub fn contains_resource(&self, that: &Resource) -> bool {
        that.is_empty()
            || self
                .find(that)
                .is_ok_and(|at| self.entries[at].covers(that, 1))
    }

    /// The first resource of `that` which is missing here.
    fn missing<'a>(&self, that: &'a Self) -> Option<&'a Resource> {
        let mut previous: Option<(&Resource, usize)> = None;
        for requested in &that.entries {
            // Equal exclusive resources stand side by side in both collections: each needs a match of its own.
            let from = match previous {
                Some((resource, at))
                    if requested.resource.is_exclusive()
                        && resource.compare_thing(&requested.resource).is_eq() =>
                {
                    Some(at + 1).filter(|next| {
                        self.entries.get(*next).is_some_and(|entry| {
                            entry.resource.compare_thing(&requested.resource).is_eq()
                        })
                    })
                }
                _ => self.find(&requested.resource).ok(),
            };
            match from {
                Some(at) if self.entries[at].covers(&requested.resource, requested.copies) => {
                    previous = Some((&requested.resource, at));
                }
                _ => return Some(&requested.resource),
            }
        }
        None
    }

    /// # Errors
    /// When a resource of `that` is missing.
    pub fn checked_sub(&self, that: &Self) -> Result<Self, NotContained> {
        let mut rest = self.clone();
        rest.try_sub_assign(that)?;
        Ok(rest)
    }

    /// # Errors
    /// When a resource of `that` is missing; nothing is changed then.
    pub fn try_sub_assign(&mut self, that: &Self) -> Result<(), NotContained> {
        if let Some(requested) = self.missing(that) {
            return Err(NotContained::new(requested.clone(), self));
        }
        *self -= that;
        Ok(())
    }

    /// The resources of the same kind as one of `those`, which need not be in order.
    pub(crate) fn alike<'a>(&self, those: impl IntoIterator<Item = &'a Resource>) -> Self {
        let mut those: Vec<&Resource> = those.into_iter().collect();
        those.sort_by(|one, other| one.compare_thing(other));
        those.dedup_by(|one, other| one.compare_thing(other).is_eq());
        let mut entries = Vec::new();
        for one in those {
            let from = self.find(one).unwrap_or_else(|index| index);
            let here = self.entries[from..].iter();
            let same = here.take_while(|entry| entry.resource.compare_thing(one).is_eq());
            entries.extend(same.cloned());
        }
        Self { entries }
    }

    /// Whether there is a resource of the same kind.
    pub(crate) fn has_alike(&self, that: &Resource) -> bool {
        self.find(that).is_ok()
    }

    /// Puts `after` in the place of `before`, which is part of this collection and holds all resources of the kinds of both.
    pub(crate) fn replace(&mut self, before: &Self, after: &Self) {
        for entry in &before.entries {
            if let Ok(index) = self.find(&entry.resource) {
                self.entries.remove(index);
            }
        }
        for entry in &after.entries {
            let index = self.find(&entry.resource).unwrap_or_else(|index| index);
            self.entries.insert(index, entry.clone());
        }
    }

    /// The amounts by name, regardless of reservation, allocation and use. Ranges and sets count their members; a shared volume
    /// counts once.
    #[must_use]
    pub fn quantities(&self) -> ResourceQuantities {
        let amounts = self
            .iter()
            .map(|resource| (resource.name(), resource.value().quantity()));
        ResourceQuantities::from_sorted(amounts)
    }

    /// The amounts of scalars alone, as in [`Resources::quantities`].
    #[must_use]
    pub fn scalar_quantities(&self) -> ResourceQuantities {
        let amounts = self
            .iter()
            .filter_map(|resource| Some((resource.name(), resource.scalar()?)));
        ResourceQuantities::from_sorted(amounts)
    }

    /// The resources for which `keep` returns true.
    #[must_use]
    pub fn filtered(&self, keep: impl Fn(&Resource) -> bool) -> Self {
        // Removing entries keeps a sorted collection sorted.
        let entries = self
            .entries
            .iter()
            .filter(|entry| keep(&entry.resource))
            .cloned()
            .collect();
        Self { entries }
    }

    /// Changes each entry in a way that keeps them sorted and distinct.
    pub(crate) fn map_in_place(mut self, change: impl Fn(&mut Resource)) -> Self {
        for entry in &mut self.entries {
            change(&mut entry.resource);
        }
        debug_assert!(self.entries.is_sorted_by(|before, after| {
            let order = before.resource.compare_thing(&after.resource);
            order.is_lt() || order.is_eq() && after.resource.is_exclusive()
        }));
        self
    }

    /// Converts each resource; shared ones keep their copies.
    pub(crate) fn try_map<E>(
        &self,
        change: impl Fn(&Resource) -> Result<Resource, E>,
    ) -> Result<Self, E> {
        let mut changed = Self::new();
        for entry in &self.entries {
            let resource = change(&entry.resource)?;
            let copies = if resource.is_shared() {
                entry.copies
            } else {
                1
            };
            changed.add_copies(resource, copies);
        }
        Ok(changed)
    }

    /// The fast path of adding: a scalar of a thing that is already present, most often at the same position. False in any other
    /// case.
    fn add_at_a_glance(&mut self, likely: usize, that: &Resource) -> bool {
        let Value::Scalar(amount) = that.value() else {
            return false;
        };
        if that.is_exclusive() {
            return false;
        }
        let same = |entry: &Entry| entry.resource.is_same_at_a_glance(that);
        let index = if self.entries.get(likely).is_some_and(same) {
            Some(likely)
        } else {
            self.entries.iter().take(SCAN_MAX).position(same)
        };
        let entry = index.and_then(|index| self.entries.get_mut(index));
        let Some(Value::Scalar(total)) = entry.map(|entry| entry.resource.value_mut()) else {
            return false;
        };
        *total += *amount;
        true
    }

    /// The position of the first entry of the same thing, or the position to insert it.
    fn find(&self, resource: &Resource) -> Result<usize, usize> {
        if self.entries.len() <= SCAN_MAX && !resource.is_exclusive() {
            let same = |entry: &Entry| entry.resource.is_same_at_a_glance(resource);
            if let Some(index) = self.entries.iter().position(same) {
                return Ok(index);
            }
        }
        let before = |entry: &Entry| entry.resource.compare_thing(resource) == Ordering::Less;
        let index = self.entries.partition_point(before);
        match self.entries.get(index) {
            Some(entry) if entry.resource.compare_thing(resource).is_eq() => Ok(index),
            _ => Err(index),
        }
    }
}

impl Entry {
    /// Whether this entry, known to be of the same thing, covers the request.
    fn covers(&self, requested: &Resource, copies: u32) -> bool {
        if requested.is_shared() {
            self.copies >= copies
        } else if requested.is_exclusive() {
            true
        } else {
            self.resource.value().contains(requested.value())
        }
    }
}

impl AddAssign<&Self> for Resources {
    fn add_assign(&mut self, that: &Self) {
        if self.is_empty() {
            self.clone_from(that);
            return;
        }
        for (index, entry) in that.entries.iter().enumerate() {
            if !self.add_at_a_glance(index, &entry.resource) {
                self.add_copies(entry.resource.clone(), entry.copies);
            }
        }
    }
}

impl AddAssign for Resources {
    fn add_assign(&mut self, that: Self) {
        if self.is_empty() {
            *self = that;
        } else {
            *self += &that;
        }
    }
}

impl AddAssign<Resource> for Resources {
    fn add_assign(&mut self, that: Resource) {
        self.insert(that);
    }
}

impl AddAssign<&Resource> for Resources {
    fn add_assign(&mut self, that: &Resource) {
        self.insert(that.clone());
    }
}

/// Removes each resource as in [`Resources::remove`].
impl SubAssign<&Self> for Resources {
    fn sub_assign(&mut self, that: &Self) {
        for entry in &that.entries {
            self.remove_copies(&entry.resource, entry.copies);
        }
    }
}

impl SubAssign<&Resource> for Resources {
    fn sub_assign(&mut self, that: &Resource) {
        self.remove(that);
    }
}

impl Add<&Resources> for &Resources {
    type Output = Resources;
    fn add(self, that: &Resources) -> Resources {
        self.clone() + that
    }
}

impl Add<&Self> for Resources {
    type Output = Self;
    fn add(mut self, that: &Self) -> Self {
        self += that;
        self
    }
}

impl Add for Resources {
    type Output = Self;
    fn add(mut self, that: Self) -> Self {
        self += that;
        self
    }
}

/// Removes each resource as in [`Resources::remove`]; missing resources are ignored.
impl Sub<&Resources> for &Resources {
    type Output = Resources;
    fn sub(self, that: &Resources) -> Resources {
        self.clone() - that
    }
}

impl Sub<&Self> for Resources {
    type Output = Self;
    fn sub(mut self, that: &Self) -> Self {
        self -= that;
        self
    }
}

impl Add<&Resource> for Resources {
    type Output = Self;
    fn add(mut self, that: &Resource) -> Self {
        self += that;
        self
    }
}

/// Subtracts as [`Resources::remove`] does.
impl Sub<&Resource> for Resources {
    type Output = Self;
    fn sub(mut self, that: &Resource) -> Self {
        self -= that;
        self
    }
}

impl From<Resource> for Resources {
    fn from(resource: Resource) -> Self {
        Self::from_iter([resource])
    }
}

impl FromIterator<Resource> for Resources {
    fn from_iter<I: IntoIterator<Item = Resource>>(resources: I) -> Self {
        let mut all = Self::new();
        all.extend(resources);
        all
    }
}

impl Extend<Resource> for Resources {
    fn extend<I: IntoIterator<Item = Resource>>(&mut self, resources: I) {
        for resource in resources {
            self.insert(resource);
        }
    }
}

impl<'a> FromIterator<&'a Resources> for Resources {
    fn from_iter<I: IntoIterator<Item = &'a Resources>>(collections: I) -> Self {
        let mut all = Self::new();
        for collection in collections {
            all += collection;
        }
        all
    }
}

impl<'a> std::iter::Sum<&'a Self> for Resources {
    fn sum<I: Iterator<Item = &'a Self>>(collections: I) -> Self {
        collections.collect()
    }
}

/// The resources of a collection, in order.
#[derive(Clone)]
pub struct Iter<'a>(std::slice::Iter<'a, Entry>);

impl fmt::Debug for Iter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Resource;
    fn next(&mut self) -> Option<&'a Resource> {
        self.0.next().map(|entry| &entry.resource)
    }
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

impl<'a> IntoIterator for &'a Resources {
    type Item = &'a Resource;
    type IntoIter = Iter<'a>;
    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("{}");
        }
        crate::display::separated(f, self.entries.iter().map(ToString::to_string), "; ")
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        count_entries(1);
        match self.resource.is_shared() {
            true => write!(f, "{}<{}>", self.resource, self.copies),
            false => write!(f, "{}", self.resource),
        }
    }
}

crate::display::debug_as_display!(Resources);
