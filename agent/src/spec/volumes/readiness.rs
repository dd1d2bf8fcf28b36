//! Whether persistent volumes on disks of their own can be given to a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resource;

use super::{VolumeError, persistent};
use crate::checkpoint::{NotReady, make_again, volume_path};
use crate::spec::LaunchSettings;

/// How long a launch waits for the removal of what was destroyed at the place of its volume, and for its directory.
const PLACE_WAIT: Duration = Duration::from_secs(5);

fn not_ready(path: &Path, why: NotReady) -> VolumeError {
    let path = path.to_owned();
    match why {
        NotReady::BeingEmptied => VolumeError::InUse { path },
        NotReady::Silent => VolumeError::Silent { path },
    }
}

/// Waits for a while until nothing is left of earlier volumes at the places of these, and their disks have answered. Nobody is
/// given a place before that, nor takes a turn with which a disk that hangs would keep others from theirs.
pub(crate) async fn emptied(
    settings: &LaunchSettings,
    messages: &[pb::Resource],
) -> Result<(), VolumeError> {
    for (volume, path) in placed(settings, messages) {
        let places = &settings.places;
        let waited = places.wait(&settings.layout, &volume, PLACE_WAIT).await;
        waited.map_err(|why| not_ready(&path, why))?;
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
        let checked = settings.places.check(&path);
        checked.map_err(|why| not_ready(&path, why))?;
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
