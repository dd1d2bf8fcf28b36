//! Dense storage under small integer keys, instead of maps of strings.
//!
//! Keys of removed items are reused, the last freed first, so a slab that was filled and emptied returns the same
//! keys for the same calls.

use meseta_resources::work_counter::count_entries;

/// A map from names to keys. The hasher is fast for texts, and seeded, so that nobody can choose colliding names.
pub(crate) type KeyMap<N, K = Key> = std::collections::HashMap<N, K, foldhash::fast::RandomState>;

/// The key of an item in a [`Slab`].
pub(crate) type Key = u32;

#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    free: Vec<Key>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            items: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, item: T) -> Key {
        if let Some(key) = self.free.pop() {
            self.items[at(key)] = Some(item);
            return key;
        }
        self.items.push(Some(item));
        key_of(self.items.len() - 1)
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let item = self.items.get_mut(at(key))?.take()?;
        self.free.push(key);
        Some(item)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.items.len() - self.free.len()
    }

    /// The key for the next item.
    pub(crate) fn next_key(&self) -> Key {
        self.free
            .last()
            .copied()
            .unwrap_or_else(|| key_of(self.items.len()))
    }

    /// The highest key ever used plus one.
    pub(crate) fn bound(&self) -> Key {
        key_of(self.items.len())
    }

    pub(crate) fn contains(&self, key: Key) -> bool {
        self.items.get(at(key)).is_some_and(Option::is_some)
    }

    pub(crate) fn try_get(&self, key: Key) -> Option<&T> {
        count_entries(1);
        self.items.get(at(key))?.as_ref()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.items.iter().enumerate().filter_map(|(key, item)| {
            count_entries(1);
            Some((key_of(key), item.as_ref()?))
        })
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut T)> {
        let items = self.items.iter_mut().enumerate();
        items.filter_map(|(key, item)| {
            count_entries(1);
            Some((key_of(key), item.as_mut()?))
        })
    }
}

impl<T> std::ops::Index<Key> for Slab<T> {
    type Output = T;
    /// Keys never leave the crate, so a vacant key is a bug of the crate, not an invalid call.
    #[inline]
    fn index(&self, key: Key) -> &T {
        count_entries(1);
        self.items[at(key)]
            .as_ref()
            .expect("keys held by the allocator are of live items")
    }
}

impl<T> std::ops::IndexMut<Key> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, key: Key) -> &mut T {
        count_entries(1);
        self.items[at(key)]
            .as_mut()
            .expect("keys held by the allocator are of live items")
    }
}

/// Converts a key to an index.
#[inline]
pub(crate) const fn at(key: Key) -> usize {
    key as usize
}

/// Converts an index to a key.
#[inline]
pub(crate) fn key_of(index: usize) -> Key {
    Key::try_from(index).expect("fewer than four billion items")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_keys_are_given_out_again() {
        let mut slab = Slab::default();
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!(slab.remove(a), Some('a'));
        assert_eq!(slab.remove(a), None);
        assert_eq!((slab.len(), slab.contains(a), slab[b]), (1, false, 'b'));
        assert_eq!(slab.insert('c'), a);
        assert_eq!(slab.iter().map(|(_, item)| *item).collect::<String>(), "cb");
    }
}
