//! Whether persistent volumes on disks of their own can be given to a container.

use std::path::PathBuf;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resource;

use super::{VolumeError, persistent};
use crate::checkpoint::{make_again, volume_path};
use crate::spec::LaunchSettings;

/// How long a launch waits for the removal of what was destroyed at the place of its volume.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);

/// Waits for a while until nothing is left of earlier volumes at the places of these. Nobody is given a place before that.
pub(crate) async fn emptied(
    settings: &LaunchSettings,
    messages: &[pb::Resource],
) -> Result<(), VolumeError> {
    for (_, path) in placed(settings, messages) {
        if !settings.removals.emptied(&path, REMOVAL_WAIT).await {
            return Err(VolumeError::InUse { path });
        }
    }
    Ok(())
}

/// Makes persistent volumes on disks of their own ready for a container: nothing of an earlier one is at their places,
/// and a directory that could not be made when its volume was is made now.
pub(crate) fn make_ready(
    settings: &LaunchSettings,
    messages: &[pb::Resource],
) -> Result<(), VolumeError> {
    for (volume, path) in placed(settings, messages) {
        if settings.removals.is_left(&path) {
            return Err(VolumeError::InUse { path });
        }
        make_again(&settings.layout, &volume).map_err(|source| VolumeError::NotMade {
            volume: volume.to_string(),
            source,
        })?;
    }
    Ok(())
}

/// Persistent volumes, and where their data is.
fn placed(
    settings: &LaunchSettings,
    messages: &[pb::Resource],
) -> impl Iterator<Item = (Resource, PathBuf)> {
    persistent(messages).filter_map(|volume| {
        let path = volume_path(&settings.layout, &volume)?;
        Some((volume, path))
    })
}
