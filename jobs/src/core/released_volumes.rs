//! The volumes that are to be released when they are offered.
//!
//! Invariant: no job owns one of these volumes any more, and the record of each says why it is released.

use std::collections::BTreeMap;
use std::ops::Deref;

use super::volume::Volume;

/// The volumes to be released, by id.
#[derive(Debug, Default)]
pub(super) struct ReleasedVolumes(BTreeMap<String, Volume>);

impl Deref for ReleasedVolumes {
    type Target = BTreeMap<String, Volume>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl ReleasedVolumes {
    pub(super) fn insert(&mut self, volume: Volume) {
        debug_assert!(volume.record.release.is_some());
        self.0.insert(volume.id.clone(), volume);
    }

    pub(super) fn remove(&mut self, id: &str) -> Option<Volume> {
        self.0.remove(id)
    }

    /// Returns a volume whose record the caller may change.
    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Volume> {
        self.0.get_mut(id)
    }

    /// Returns all volumes, whose queries the caller may change.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut Volume> {
        self.0.values_mut()
    }

    /// Returns the role of each volume.
    pub(super) fn roles(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(|volume| &*volume.record.role)
    }
}
