//! How much of what clients ask for over the API may block a thread at a time.
//!
//! Threads that may block are shared and bounded. Invariant: what clients can ask for without end waits here, so
//! that kills and the agent's own launches always find a thread.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Launches at a time.
const LAUNCHES_AT_ONCE: usize = 32;
/// Sandboxes that are removed at a time, which takes as long as a task has made it take.
const REMOVALS_AT_ONCE: usize = 4;

/// See the module. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    launches: Arc<Semaphore>,
    removals: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            launches: Arc::new(Semaphore::new(LAUNCHES_AT_ONCE)),
            removals: Arc::new(Semaphore::new(REMOVALS_AT_ONCE)),
        }
    }
}

/// The leave to block a thread, until it is dropped. Nothing closes the semaphores, so there always is one.
pub(super) type Turn = Option<OwnedSemaphorePermit>;

impl Turns {
    /// Waits until a container may be launched.
    pub(super) async fn launch(&self) -> Turn {
        self.launches.clone().acquire_owned().await.ok()
    }

    /// Waits until a sandbox may be removed.
    pub(super) async fn remove(&self) -> Turn {
        self.removals.clone().acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_kind_of_work_waits_for_its_own_kind_only() {
        let turns = Turns::default();
        let mut launches = Vec::new();
        for _ in 0..LAUNCHES_AT_ONCE {
            launches.push(turns.launch().await);
        }
        let long = Duration::from_secs(3600);
        assert!(tokio::time::timeout(long, turns.launch()).await.is_err());
        assert!(turns.remove().await.is_some());
        launches.pop();
        assert!(turns.launch().await.is_some());
    }
}
