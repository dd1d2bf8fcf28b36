//! A map with a cached view of each entry; a view is reused until its entry changes.
//!
//! The map is used like the inner map. [`CachedViewMap::views`] returns the views of all entries in order, at a cost
//! proportional to the changes since the last call, however many entries there are.
//! [`CachedViewMap::take_watched_changes`] returns the watched entries that may have changed. Invariant: every
//! mutable access to an entry marks its view as stale.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_resources::work_counter::count_entries;

/// A view that knows the key of its entry.
pub(in crate::core) trait View {
    type Key;
    fn key(&self) -> &Self::Key;
}

#[derive(Debug)]
pub(in crate::core) struct CachedViewMap<K, T, W> {
    entries: BTreeMap<K, Entry<T>>,
    /// The views in the order of the keys, shared with snapshots.
    views: Arc<Vec<Arc<W>>>,
    /// Changed entries, without duplicates; unused while the set of keys has changed.
    stale: Vec<K>,
    keys_changed: bool,
    /// A counter of changes of the views.
    views_version: u64,
    /// Watched entries that may have changed.
    watched_changes: Vec<K>,
}

#[derive(Debug)]
struct Entry<T> {
    value: T,
    is_stale: bool,
    is_watched: bool,
}

impl<K, T, W> Default for CachedViewMap<K, T, W> {
    fn default() -> Self {
        Self {
            entries: BTreeMap::new(),
            views: Arc::default(),
            stale: Vec::new(),
            keys_changed: false,
            views_version: 0,
            watched_changes: Vec::new(),
        }
    }
}

impl<K: Ord + Clone, T, W: View<Key = K>> CachedViewMap<K, T, W> {
    pub(in crate::core) fn len(&self) -> usize {
        self.entries.len()
    }

    #[cfg(test)]
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(in crate::core) fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.entries.contains_key(key)
    }

    pub(in crate::core) fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&T>
    where
        K: Borrow<Q>,
    {
        count_entries(1);
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Returns the entry for a change, and marks its view as stale.
    pub(in crate::core) fn get_mut(&mut self, key: &K) -> Option<&mut T> {
        count_entries(1);
        let entry = self.entries.get_mut(key)?;
        if !std::mem::replace(&mut entry.is_stale, true) && !self.keys_changed {
            self.stale.push(key.clone());
        }
        if std::mem::take(&mut entry.is_watched) {
            self.watched_changes.push(key.clone());
        }
        Some(&mut entry.value)
    }

    /// Watches an entry: [`Self::take_watched_changes`] reports it once it may have changed.
    pub(in crate::core) fn watch(&mut self, key: &K) {
        if let Some(entry) = self.entries.get_mut(key) {
            entry.is_watched = true;
        }
    }

    /// Returns the watched entries that may have changed, and stops watching them.
    pub(in crate::core) fn take_watched_changes(&mut self) -> Vec<K> {
        std::mem::take(&mut self.watched_changes)
    }

    /// Mutable access for changes outside the view.
    pub(in crate::core) fn get_mut_keeping_view(&mut self, key: &K) -> Option<&mut T> {
        count_entries(1);
        self.entries.get_mut(key).map(|entry| &mut entry.value)
    }

    /// Marks the view as stale after a change of data that the view shows from elsewhere.
    pub(in crate::core) fn invalidate(&mut self, key: &K) {
        self.get_mut(key);
    }

    pub(in crate::core) fn insert(&mut self, key: K, value: T) {
        self.mark_keys_changed();
        let entry = Entry {
            value,
            is_stale: true,
            is_watched: false,
        };
        self.entries.insert(key, entry);
    }

    pub(in crate::core) fn remove(&mut self, key: &K) -> Option<T> {
        let entry = self.entries.remove(key)?;
        self.mark_keys_changed();
        Some(entry.value)
    }

    /// Marks the set of keys as changed. Until the next call of `views`, only the flags of the entries record stale
    /// views.
    fn mark_keys_changed(&mut self) {
        self.keys_changed = true;
        self.stale.clear();
    }

    pub(in crate::core) fn keys(&self) -> impl Iterator<Item = &K> {
        self.entries.keys().inspect(|_| count_entries(1))
    }

    pub(in crate::core) fn values(&self) -> impl Iterator<Item = &T> {
        self.iter().map(|(_, value)| value)
    }

    pub(in crate::core) fn iter(&self) -> impl Iterator<Item = (&K, &T)> {
        self.entries.iter().map(|(key, entry)| {
            count_entries(1);
            (key, &entry.value)
        })
    }

    /// Returns all views, after rebuilding those of changed entries.
    pub(in crate::core) fn views(&mut self, make: impl Fn(&T) -> W) -> Arc<Vec<Arc<W>>> {
        if std::mem::take(&mut self.keys_changed) {
            self.rebuild_views(make);
        } else if !self.stale.is_empty() {
            self.refresh_stale_views(make);
        }
        self.views.clone()
    }

    /// A number that changes whenever [`Self::views`] returns other views than before.
    pub(in crate::core) fn views_version(&self) -> u64 {
        self.views_version
    }

    /// Rebuilds the list in the new order, with the cached views that are still fresh.
    fn rebuild_views(&mut self, make: impl Fn(&T) -> W) {
        self.views_version += 1;
        let mut old = self.views.iter().peekable();
        let mut views = Vec::with_capacity(self.entries.len());
        for (key, entry) in &mut self.entries {
            while old.next_if(|view| view.key() < key).is_some() {}
            let kept = old.next_if(|view| view.key() == key);
            let is_stale = std::mem::take(&mut entry.is_stale);
            views.push(match kept.filter(|_| !is_stale) {
                Some(view) => view.clone(),
                None => Arc::new(make(&entry.value)),
            });
        }
        self.views = Arc::new(views);
    }

    /// Replaces the stale views in place. A list that a reader still holds is copied first.
    fn refresh_stale_views(&mut self, make: impl Fn(&T) -> W) {
        self.views_version += 1;
        let views = Arc::make_mut(&mut self.views);
        for key in self.stale.drain(..) {
            let Some(entry) = self.entries.get_mut(&key) else {
                continue;
            };
            entry.is_stale = false;
            let index = views.binary_search_by(|view| view.key().cmp(&key));
            if let Some(view) = index.ok().and_then(|index| views.get_mut(index)) {
                *view = Arc::new(make(&entry.value));
            }
        }
    }
}

#[cfg(test)]
impl<K: Ord + Clone, T, W: View<Key = K> + std::fmt::Debug> CachedViewMap<K, T, W> {
    /// Checks that each fresh cached view equals a newly built one: every change of shown data has marked its view as
    /// stale.
    pub(in crate::core) fn check(&self, make: impl Fn(&T) -> W) {
        for view in self.views.iter() {
            let entry = self.entries.get(view.key());
            if let Some(entry) = entry.filter(|entry| !entry.is_stale) {
                assert_eq!(format!("{view:?}"), format!("{:?}", make(&entry.value)));
            }
        }
    }
}

#[cfg(test)]
impl<K: Ord + Borrow<Q>, Q: Ord + ?Sized, T, W> std::ops::Index<&Q> for CachedViewMap<K, T, W> {
    type Output = T;

    fn index(&self, key: &Q) -> &T {
        &self.entries[key].value
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct TestView(u8, u32);

    impl View for TestView {
        type Key = u8;
        fn key(&self) -> &u8 {
            &self.0
        }
    }

    type Table = CachedViewMap<u8, (u8, u32), TestView>;

    fn test_view(value: &(u8, u32)) -> TestView {
        TestView(value.0, value.1)
    }

    #[test]
    fn rebuilds_only_changed_views() {
        let mut table = Table::default();
        for key in [3, 1, 2] {
            table.insert(key, (key, 0));
        }
        let first = table.views(test_view);
        assert_eq!(*first, [1, 2, 3].map(|key| Arc::new(TestView(key, 0))));
        assert!(
            Arc::ptr_eq(&first, &table.views(test_view)),
            "nothing has changed"
        );
        table.get_mut(&2).unwrap().1 = 7;
        let second = table.views(test_view);
        assert_eq!(
            (*first[1]).clone(),
            TestView(2, 0),
            "a snapshot stays as it was"
        );
        assert_eq!(*second[1], TestView(2, 7));
        assert!(Arc::ptr_eq(&first[0], &second[0]) && Arc::ptr_eq(&first[2], &second[2]));
        table.get_mut_keeping_view(&1).unwrap().1 = 9;
        assert!(Arc::ptr_eq(&second, &table.views(test_view)));
        table.invalidate(&1);
        assert_eq!(*table.views(test_view)[0], TestView(1, 9));
    }

    #[test]
    fn reports_watched_change_once() {
        let mut table = Table::default();
        for key in [1, 2, 3] {
            table.insert(key, (key, 0));
        }
        table.watch(&1);
        table.watch(&2);
        table.watch(&9);
        table.get_mut_keeping_view(&1);
        assert!(table.take_watched_changes().is_empty());
        table.invalidate(&1);
        table.invalidate(&1);
        table.invalidate(&3);
        assert_eq!(table.take_watched_changes(), [1]);
        table.invalidate(&1);
        assert!(
            table.take_watched_changes().is_empty(),
            "it is not watched any more"
        );
        table.remove(&2);
        table.insert(2, (2, 1));
        table.invalidate(&2);
        assert!(
            table.take_watched_changes().is_empty(),
            "another of the same name"
        );
    }

    proptest! {
        /// After any operations, the views equal newly built ones.
        #[test]
        fn views_agree_with_the_entries(steps in prop::collection::vec((0_u8..4, 0_u8..8, any::<u32>()), 0..64)) {
            let mut table = Table::default();
            let mut snapshots = Vec::new();
            for (what, key, number) in steps {
                match what {
                    0 => table.insert(key, (key, number)),
                    1 => drop(table.remove(&key)),
                    2 => {
                        if let Some(value) = table.get_mut(&key) {
                            value.1 = number;
                        }
                    }
                    _ => {
                        let views = table.views(test_view);
                        let expected: Vec<TestView> = table.values().map(test_view).collect();
                        let actual: Vec<TestView> = views.iter().map(|view| (**view).clone()).collect();
                        prop_assert_eq!(actual, expected);
                        if number % 2 == 0 {
                            snapshots.push(views);
                        }
                    }
                }
            }
        }
    }
}
