//! Whether persistent volumes on disks of their own are ready for a container.

use std::path::{Path, PathBuf};
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Resource;

use super::{VolumeError, persistent};
use crate::checkpoint::{Layout, NotReady, VolumePlaces, make_again, volume_path};
use crate::spec::LaunchSettings;

/// The longest wait of a launch for the removal of a destroyed volume at its volume's place, and for the volume's
/// directory.
const PLACE_WAIT: Duration = Duration::from_secs(5);
/// The longest wait for all its volumes together, if their disks are busy but make progress.
const ALL_WAIT: Duration = Duration::from_secs(60);

fn not_ready(path: &Path, why: NotReady) -> VolumeError {
    let path = path.to_owned();
    match why {
        NotReady::BeingEmptied => VolumeError::InUse { path },
        NotReady::Silent => VolumeError::Silent { path },
    }
}

/// Waits for a limited time until the data of earlier volumes at the same paths is removed and the disks of these paths
/// have answered. Until then, no container gets such a path. The caller must not hold a permit for launches meanwhile,
/// because a hung disk would then delay other launches.
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

/// Prepares persistent volumes on disks of their own for a container: no data of earlier volumes is at their places,
/// and a missing directory is made now.
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

/// Persistent volumes with the paths of their data.
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

    /// Regression: the wait had no end while the disk made progress for others.
    #[tokio::test(start_paused = true)]
    async fn disk_wait_has_an_upper_limit() {
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
