//! Waiting for the end of a container's supervisor.
//!
//! Invariant: nothing but the kernel's word that it ended is taken for its end. A supervisor that cannot be
//! watched, because this process is short of descriptors or memory, is taken to live and asked for again; one
//! for which there is no descriptor to spare is asked for now and then.

use std::io;
use std::time::Duration;

use meseta_isolators::{ProcessIdentity, note_repeated};
use meseta_resources::ContainerId;
use tracing::{error, info};

use super::Containerizer;
use super::readiness::readable;

/// Pauses between attempts; they double from the first up to the second.
pub(crate) const AGAIN_MIN: Duration = Duration::from_millis(200);
pub(crate) const AGAIN_MAX: Duration = Duration::from_secs(5);
/// How often a supervisor is asked for that nobody watches.
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
                error!(container_id = %container, %error, "cannot watch a container; assuming that it runs");
            }
            Err(error) => info!(container_id = %container, %error, "cannot watch a container yet"),
        }
        note_repeated();
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(AGAIN_MAX);
    }
}
