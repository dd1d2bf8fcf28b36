//! The places of volumes on disks of their own, which threads empty and prepare. Tells whether a container may get such
//! a place.

use std::path::Path;
use std::time::Duration;

use meseta_resources::Resource;

use super::holdings::volume_path;
use super::layout::Layout;
use super::makings::Makings;
use super::removals::Removals;

/// The reason why a container cannot get a place yet.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) enum NotReady {
    /// Data of a destroyed volume may be there.
    BeingEmptied,
    /// The disk of the place does not answer.
    Silent,
}

/// The pending work at these places; cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumePlaces {
    pub(super) removals: Removals,
    pub(super) makings: Makings,
}

impl VolumePlaces {
    /// Checks that no data is left at a place.
    pub(crate) fn check(&self, path: &Path) -> Result<(), NotReady> {
        match self.removals.is_left(path) {
            true => Err(NotReady::BeingEmptied),
            false => Ok(()),
        }
    }

    /// Waits until the place of a volume is empty and its disk has answered. Each wait lasts for at most `limit`.
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
