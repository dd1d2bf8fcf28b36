//! Waits for the end of a container's supervisor.
//!
//! Invariant: only the kernel's report counts as the end of a supervisor. A supervisor that cannot be watched, because
//! this process lacks descriptors or memory, counts as alive and is queried again. Without a permit for a descriptor
//! the supervisor is polled.

use std::io;
use std::time::Duration;

use meseta_isolators::{ProcessIdentity, note_repeated};
use meseta_resources::ContainerId;
use tracing::{error, info};

use super::Containerizer;
use super::readiness::readable;

/// The pauses between attempts; they double from the first to the second.
pub(crate) const AGAIN_MIN: Duration = Duration::from_millis(200);
pub(crate) const AGAIN_MAX: Duration = Duration::from_secs(5);
/// The polling interval for a supervisor without a watch.
const UNWATCHED_PAUSE: Duration = Duration::from_secs(1);

/// Completes when the supervisor has ended.
pub(crate) async fn ended(
    containerizer: &Containerizer,
    container: &ContainerId,
    supervisor: &ProcessIdentity,
) {
    let mut pause = AGAIN_MIN;
    let watch_permit = containerizer.watch_permit();
    loop {
        let (shared, watched) = (containerizer.clone(), supervisor.clone());
        let open = move || shared.containers().watch(&watched);
        let pidfd = tokio::task::spawn_blocking(open).await;
        let watched = match pidfd.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(Some(pidfd)) if watch_permit.is_none() => {
                drop(pidfd);
                tokio::time::sleep(UNWATCHED_PAUSE).await;
                continue;
            }
            Ok(Some(pidfd)) => readable(pidfd).await,
            Ok(None) => Ok(()),
            Err(error) => Err(error),
        };
        match watched {
            Ok(()) => return,
            Err(error) if pause == AGAIN_MIN => {
                error!(container_id = %container, %error, "failed to watch a container; assuming \
                    that it runs");
            }
            Err(error) => info!(container_id = %container, %error, "failed to watch a container; \
                retrying"),
        }
        note_repeated();
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(AGAIN_MAX);
    }
}
