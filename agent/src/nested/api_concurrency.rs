//! Limits on concurrent blocking work that API clients start: launches and sandbox removals.
//!
//! Threads that may block are shared and bounded. Invariants: the unbounded requests of clients wait here, so that
//! kills and the agent's own launches always find a thread. The launches and removals of one framework leave permits to
//! others'.

use meseta_resources::FrameworkId;

use crate::containerizer::fair_semaphore::{FairPermit, FairSemaphore, PermitLimits};

/// Launches in progress at the same time.
const LAUNCHES_AT_ONCE: PermitLimits = PermitLimits {
    all: 32,
    each: 16,
    spare: 8,
};
/// Sandbox removals at the same time; a task's files decide how long a removal takes.
const REMOVALS_AT_ONCE: PermitLimits = PermitLimits {
    all: 4,
    each: 2,
    spare: 4,
};

/// The limits of this module. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct ApiConcurrency {
    launches: FairSemaphore,
    removals: FairSemaphore,
}

impl Default for ApiConcurrency {
    fn default() -> Self {
        Self {
            launches: FairSemaphore::new(LAUNCHES_AT_ONCE),
            removals: FairSemaphore::new(REMOVALS_AT_ONCE),
        }
    }
}

impl ApiConcurrency {
    /// Waits until a container of a framework may be launched; returns a permit.
    pub(super) async fn launch(&self, framework: &FrameworkId) -> Option<FairPermit> {
        self.launches.take(framework).await
    }

    /// Waits until a sandbox of a framework may be removed; returns a permit.
    pub(super) async fn remove(&self, framework: &FrameworkId) -> Option<FairPermit> {
        self.removals.take(framework).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn launches_wait_within_their_framework() {
        let turns = ApiConcurrency::default();
        let [busy, other] = ["busy", "other"].map(|id| FrameworkId::new(id).expect("valid"));
        let mut launches = Vec::new();
        for _ in 0..LAUNCHES_AT_ONCE.each {
            launches.push(turns.launch(&busy).await);
        }
        let long = Duration::from_secs(3600);
        let waiting = tokio::time::timeout(long, turns.launch(&busy)).await;
        assert!(waiting.is_err());
        assert!(turns.launch(&other).await.is_some());
        assert!(turns.remove(&busy).await.is_some());
        launches.pop();
        assert!(turns.launch(&busy).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn slow_removal_blocks_only_its_framework() {
        let turns = ApiConcurrency::default();
        let id = |number: usize| FrameworkId::new(&format!("slow-{number}")).expect("valid");
        let long = Duration::from_secs(3600);
        let mut removals = Vec::new();
        for number in 0..2 {
            for _ in 0..REMOVALS_AT_ONCE.each {
                removals.push(turns.remove(&id(number)).await);
            }
            let waiting = tokio::time::timeout(long, turns.remove(&id(number))).await;
            assert!(waiting.is_err());
        }
        for number in 2..6 {
            removals.push(turns.remove(&id(number)).await);
        }
        assert!(removals.iter().all(Option::is_some));
    }
}
