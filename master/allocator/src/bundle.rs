//! Amounts of interned resource classes: the allocator's own, small form of a `Resources`.
//!
//! Invariant: entries are sorted by class, unique and not empty. Scalars are thousandths; amounts of an indivisible
//! resource are multiples of the whole.

use meseta_resources::{ItemSet, Ranges};
use smallvec::SmallVec;

use crate::slab::Key;

/// A class of resources: all properties of a resource except its amount.
pub(crate) type ClassKey = Key;

/// Resources that are named, not counted: ranges and sets.
#[derive(Clone, Debug)]
pub(crate) enum Items {
    Ranges(Ranges),
    Set(ItemSet),
}

impl PartialEq for Items {
    fn eq(&self, that: &Self) -> bool {
        match (self, that) {
            // Usually both are the same object, passed back and forth.
            (Self::Ranges(a), Self::Ranges(b)) => {
                std::ptr::eq(a.as_slice(), b.as_slice()) || a == b
            }
            (Self::Set(a), Self::Set(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Items {}

impl Items {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Ranges(ranges) => ranges.is_empty(),
            Self::Set(set) => set.is_empty(),
        }
    }

    /// The number of members in thousandths, the unit of scalars.
    pub(crate) fn quantity(&self) -> i64 {
        let count = match self {
            Self::Ranges(ranges) => i64::try_from(ranges.count()).unwrap_or(i64::MAX),
            Self::Set(set) => i64::try_from(set.len()).unwrap_or(i64::MAX),
        };
        count.saturating_mul(1000)
    }

    pub(crate) fn union(&self, that: &Self) -> Self {
        match (self, that) {
            (Self::Ranges(a), Self::Ranges(b)) => Self::Ranges(a.union(b)),
            (Self::Set(a), Self::Set(b)) => Self::Set(a.union(b)),
            _ => self.clone(),
        }
    }

    pub(crate) fn difference(&self, that: &Self) -> Self {
        match (self, that) {
            (Self::Ranges(a), Self::Ranges(b)) => Self::Ranges(a.difference(b)),
            (Self::Set(a), Self::Set(b)) => Self::Set(a.difference(b)),
            _ => self.clone(),
        }
    }

    pub(crate) fn contains(&self, that: &Self) -> bool {
        match (self, that) {
            (Self::Ranges(a), Self::Ranges(b)) => self == that || a.contains(b),
            (Self::Set(a), Self::Set(b)) => a.contains(b),
            _ => false,
        }
    }
}

/// The number of scalars stored without a heap allocation: cpus, mem, disk and gpus; below, of items: the ports.
const SCALARS_INLINE: usize = 4;
const ITEMS_INLINE: usize = 1;

/// The number of entries up to which single subtractions are faster than one pass.
const SCAN_MAX: usize = 16;

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Bundle {
    pub(crate) scalars: SmallVec<[(ClassKey, i64); SCALARS_INLINE]>,
    pub(crate) items: SmallVec<[(ClassKey, Items); ITEMS_INLINE]>,
}

impl Clone for Bundle {
    fn clone(&self) -> Self {
        Self {
            // A copy of memory, which the derived implementation does not use.
            scalars: SmallVec::from_slice(&self.scalars),
            items: self.items.clone(),
        }
    }
}

impl Bundle {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.scalars.is_empty() && self.items.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.scalars.clear();
        self.items.clear();
    }

    pub(crate) fn amount(&self, class: ClassKey) -> i64 {
        match self.scalars.binary_search_by_key(&class, |entry| entry.0) {
            Ok(at) => self.scalars[at].1,
            Err(_) => 0,
        }
    }

    pub(crate) fn items_of(&self, class: ClassKey) -> Option<&Items> {
        let at = self
            .items
            .binary_search_by_key(&class, |entry| entry.0)
            .ok()?;
        Some(&self.items[at].1)
    }

    pub(crate) fn classes(&self) -> impl Iterator<Item = ClassKey> {
        self.scalars
            .iter()
            .map(|entry| entry.0)
            .chain(self.items.iter().map(|entry| entry.0))
    }

    pub(crate) fn add_scalar(&mut self, class: ClassKey, amount: i64) {
        if amount == 0 {
            return;
        }
        if self.scalars.last().is_none_or(|last| last.0 < class) {
            self.scalars.push((class, amount));
            return;
        }
        match self.scalars.binary_search_by_key(&class, |entry| entry.0) {
            Ok(at) => {
                self.scalars[at].1 = self.scalars[at].1.saturating_add(amount);
                if self.scalars[at].1 == 0 {
                    self.scalars.remove(at);
                }
            }
            Err(at) => self.scalars.insert(at, (class, amount)),
        }
    }

    pub(crate) fn add_items(&mut self, class: ClassKey, items: Items) {
        if items.is_empty() {
            return;
        }
        if self.items.is_empty() {
            self.items.push((class, items));
            return;
        }
        match self.items.binary_search_by_key(&class, |entry| entry.0) {
            Ok(at) => self.items[at].1 = self.items[at].1.union(&items),
            Err(at) => self.items.insert(at, (class, items)),
        }
    }

    pub(crate) fn add(&mut self, that: &Self) {
        if self.is_empty() {
            self.clone_from(that);
            return;
        }
        let same = |(mine, theirs): (&(ClassKey, i64), &(ClassKey, i64))| mine.0 == theirs.0;
        if self.scalars.len() == that.scalars.len()
            && self.scalars.iter().zip(&that.scalars).all(same)
        {
            for (mine, theirs) in self.scalars.iter_mut().zip(&that.scalars) {
                mine.1 = mine.1.saturating_add(theirs.1);
            }
        } else {
            for (class, amount) in &that.scalars {
                self.add_scalar(*class, *amount);
            }
        }
        for (class, items) in &that.items {
            self.add_items(*class, items.clone());
        }
    }

    /// Subtracts the given amounts; no amount goes below zero.
    pub(crate) fn subtract(&mut self, that: &Self) {
        self.subtract_where(that, |_| true);
    }

    /// Subtracts the amounts of the classes for which `counts` is true. Returns false if there was less than that.
    pub(crate) fn subtract_where(
        &mut self,
        that: &Self,
        counts: impl Fn(ClassKey) -> bool,
    ) -> bool {
        let theirs = that.scalars.iter().filter(|entry| counts(entry.0));
        let scalars = if that.scalars.len() > SCAN_MAX {
            subtract_sorted(&mut self.scalars, theirs, |mine, amount| {
                let enough = *mine >= *amount;
                *mine = mine.saturating_sub(*amount);
                (enough, *mine > 0)
            })
        } else {
            let each = theirs.map(|(class, amount)| self.subtract_scalar(*class, *amount));
            each.fold(true, |all, enough| all & enough)
        };
        let theirs = that.items.iter().filter(|entry| counts(entry.0));
        let items = subtract_sorted(&mut self.items, theirs, |mine, items| {
            // Usually the whole entry goes.
            if mine == items {
                return (true, false);
            }
            let enough = mine.contains(items);
            *mine = mine.difference(items);
            (enough, !mine.is_empty())
        });
        scalars & items
    }

    /// Subtracts an amount. Returns false if there was less.
    fn subtract_scalar(&mut self, class: ClassKey, amount: i64) -> bool {
        let Some(at) = self.scalars.iter().position(|entry| entry.0 >= class) else {
            return false;
        };
        let entry = &mut self.scalars[at];
        if entry.0 != class {
            return false;
        }
        let enough = entry.1 >= amount;
        if entry.1 > amount {
            entry.1 -= amount;
        } else {
            self.scalars.remove(at);
        }
        enough
    }

    pub(crate) fn contains(&self, that: &Self) -> bool {
        let mut mine = self.scalars.iter();
        let scalars = that.scalars.iter().all(|(class, amount)| {
            let found = mine.find(|entry| entry.0 >= *class);
            found.is_some_and(|entry| entry.0 == *class && entry.1 >= *amount)
        });
        scalars
            && that.items.iter().all(|(class, items)| {
                self.items_of(*class)
                    .is_some_and(|mine| mine.contains(items))
            })
    }

    /// Like [`Bundle::contains`], but compares only the number of members of ranges and sets.
    pub(crate) fn has_as_much_as(&self, that: &Self) -> bool {
        that.scalars
            .iter()
            .all(|(class, amount)| self.amount(*class) >= *amount)
            && that.items.iter().all(|(class, items)| {
                self.items_of(*class)
                    .is_some_and(|mine| mine.quantity() >= items.quantity())
            })
    }

    /// The heap memory in bytes, without the members of ranges and sets.
    pub(crate) fn heap_bytes(&self) -> usize {
        let scalars = self.scalars.spilled().then_some(self.scalars.capacity());
        let items = self.items.spilled().then_some(self.items.capacity());
        scalars.unwrap_or(0) * size_of::<(ClassKey, i64)>()
            + items.unwrap_or(0) * size_of::<(ClassKey, Items)>()
    }
}

/// Subtracts `theirs` in one pass; `subtract` returns whether there was enough, and whether a rest remains. Returns
/// false if there was less of any entry.
fn subtract_sorted<'a, A: smallvec::Array<Item = (ClassKey, T)>, T: 'a>(
    mine: &mut SmallVec<A>,
    theirs: impl Iterator<Item = &'a (ClassKey, T)>,
    subtract: impl Fn(&mut T, &T) -> (bool, bool),
) -> bool {
    let mut theirs = theirs.peekable();
    if theirs.peek().is_none() {
        return true;
    }
    let mut all_enough = true;
    mine.retain(|(class, mine)| {
        while theirs.next_if(|theirs| theirs.0 < *class).is_some() {
            all_enough = false;
        }
        let Some((_, amount)) = theirs.next_if(|theirs| theirs.0 == *class) else {
            return true;
        };
        let (enough, is_left) = subtract(mine, amount);
        all_enough &= enough;
        is_left
    });
    all_enough && theirs.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use meseta_resources::Range;
    use smallvec::smallvec;

    fn ports(begin: u64, end: u64) -> Items {
        Items::Ranges(Ranges::from(Range::new(begin, end).expect("ordered")))
    }

    #[test]
    fn adds_and_takes_away() {
        let mut a = Bundle {
            scalars: smallvec![(1, 500), (3, 10)],
            items: smallvec![(2, ports(1, 10))],
        };
        let b = Bundle {
            scalars: smallvec![(1, 500), (2, 1)],
            items: smallvec![(2, ports(5, 7))],
        };
        assert!(!a.contains(&b));
        let before = a.clone();
        a.add(&b);
        assert_eq!(a.scalars.as_slice(), [(1, 1000), (2, 1), (3, 10)]);
        assert!(a.contains(&b) && a.contains(&before));
        a.subtract(&b);
        assert_eq!(a.scalars, before.scalars);
        assert_eq!(a.items_of(2).map(Items::quantity), Some(7000));
        a.subtract(&before);
        assert!(a.is_empty());
    }

    #[test]
    fn subtracts_many_classes_like_single_classes() {
        let of = |amounts: &[(ClassKey, i64)]| Bundle {
            scalars: amounts.iter().copied().collect(),
            items: smallvec![],
        };
        let all: Vec<_> = (0..40).map(|class| (class, 10)).collect();
        let some: Vec<_> = (0..40).map(|class| (class * 2, i64::from(class))).collect();
        let mut at_once = of(&all);
        let mut one_by_one = of(&all);
        let enough = at_once.subtract_where(&of(&some), |class| class != 4);
        let each = some
            .iter()
            .filter(|(class, amount)| *class != 4 && *amount > 0);
        let each = each.map(|one| one_by_one.subtract_where(&of(&[*one]), |_| true));
        assert_eq!(enough, each.fold(true, |all, enough| all & enough));
        assert!(!enough, "there are forty");
        assert_eq!(at_once, one_by_one);
        assert!(at_once.subtract_where(&at_once.clone(), |_| true));
        assert!(at_once.is_empty());
    }
}
