//! Whether persistent volumes on disks of their own can be given to a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resource;

use super::{VolumeError, persistent};
use crate::checkpoint::{Layout, NotReady, VolumePlaces, make_again, volume_path};
use crate::spec::LaunchSettings;

/// How long a launch waits for the removal of what was destroyed at the place of its volume, and for its directory.
const PLACE_WAIT: Duration = Duration::from_secs(5);
/// How long it waits for all its volumes together, whose disks go on and have much to do.
const ALL_WAIT: Duration = Duration::from_secs(60);

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
    places: &VolumePlaces,
    layout: &Layout,
    messages: &[pb::Resource],
) -> Result<(), VolumeError> {
    let end = tokio::time::Instant::now() + ALL_WAIT;
    for (volume, path) in placed(layout, messages) {
        let waited = places.wait(layout, &volume, PLACE_WAIT);
        let waited = tokio::time::timeout_at(end, waited).await;
        let waited = waited.unwrap_or(Err(NotReady::Silent));
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
    for (volume, path) in placed(&settings.layout, messages) {
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
fn placed(layout: &Layout, messages: &[pb::Resource]) -> impl Iterator<Item = (Resource, PathBuf)> {
    persistent(messages).filter_map(|volume| {
        let path = volume_path(layout, &volume)?;
        Some((volume, path))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{go_on, silent_disk};

    /// As long as the disk went on for others, without an end.
    #[tokio::test(start_paused = true)]
    async fn no_wait_for_a_disk_that_goes_on_is_longer_than_a_limit() {
        let dir = tempfile::tempdir().expect("a directory");
        let layout = Layout::new(&dir.path().join("w"));
        let disk = dir.path().join("disk");
        let (places, volumes) = silent_disk(&disk, ["a", "b"]);
        let began = tokio::time::Instant::now();
        let mut waiting = Box::pin(emptied(&places, &layout, &volumes));
        let waited = loop {
            assert!(began.elapsed() < 2 * ALL_WAIT, "it waits for ever");
            match tokio::time::timeout(PLACE_WAIT / 5, &mut waiting).await {
                Ok(waited) => break waited,
                Err(_) => go_on(&places, &disk),
            }
        };
        assert!(matches!(waited, Err(VolumeError::Silent { .. })));
        assert_eq!(began.elapsed().as_secs(), ALL_WAIT.as_secs());
    }
}
