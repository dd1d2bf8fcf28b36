//! The places of volumes on disks of their own, which threads empty and make ready: whether one can be given to a container.

use std::path::Path;
use std::time::Duration;

use meseta_resources::Resource;

use super::holdings::volume_path;
use super::layout::Layout;
use super::makings::Makings;
use super::removals::Removals;

/// Why a place cannot be given to a container yet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum NotReady {
    /// Data of a volume that was destroyed may be there.
    BeingEmptied,
    /// Its directory is being made.
    BeingMade,
}

/// What is under way at these places; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumePlaces {
    pub(super) removals: Removals,
    pub(super) makings: Makings,
}

impl VolumePlaces {
    /// Whether nothing is under way at a place.
    pub(crate) fn check(&self, path: &Path) -> Result<(), NotReady> {
        if self.removals.is_left(path) {
            return Err(NotReady::BeingEmptied);
        }
        match self.makings.is_waiting(path) {
            true => Err(NotReady::BeingMade),
            false => Ok(()),
        }
    }

    /// Waits until the place of a volume is empty and its disk has answered, for each of both for `limit` at most.
    pub(crate) async fn wait(
        &self,
        layout: &Layout,
        volume: &Resource,
        limit: Duration,
    ) -> Result<(), NotReady> {
        let path = volume_path(layout, volume);
        if let Some(path) = path
            && !self.removals.emptied(&path, limit).await
        {
            return Err(NotReady::BeingEmptied);
        }
        match self.makings.look(layout, volume, limit).await {
            true => Ok(()),
            false => Err(NotReady::BeingMade),
        }
    }
}
