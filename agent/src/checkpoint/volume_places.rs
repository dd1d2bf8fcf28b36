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
    /// Its disk does not answer.
    Silent,
}

/// What is under way at these places; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumePlaces {
    pub(super) removals: Removals,
    pub(super) makings: Makings,
}

impl VolumePlaces {
    /// Whether nothing is left at a place.
    pub(crate) fn check(&self, path: &Path) -> Result<(), NotReady> {
        match self.removals.is_left(path) {
            true => Err(NotReady::BeingEmptied),
            false => Ok(()),
        }
    }

    /// Waits until the place of a volume is empty, for `limit` at most, and its disk has answered, which may be silent for as
    /// long.
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
            false => Err(NotReady::Silent),
        }
    }
}
