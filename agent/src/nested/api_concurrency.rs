//! Limits on concurrent blocking work that API clients start: launches and sandbox removals.
//!
//! Threads that may block are shared and bounded. Invariants: what clients can ask for without end waits here, so
//! that kills and the agent's own launches always find a thread; launches and removals of one framework leave places to others'.

use meseta_resources::FrameworkId;

use crate::containerizer::fair_semaphore::{FairPermit, FairSemaphore, PermitLimits};

/// Launches at a time.
const LAUNCHES_AT_ONCE: PermitLimits = PermitLimits {
    all: 32,
    each: 16,
    spare: 8,
};
/// Sandboxes that are removed at a time, which takes as long as a task has made it take.
const REMOVALS_AT_ONCE: PermitLimits = PermitLimits {
    all: 4,
    each: 2,
    spare: 4,
};

/// See the module. Cheap to clone.
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
    /// Waits until a container of a framework may be launched; the place is held until it is dropped.
    pub(super) async fn launch(&self, framework: &FrameworkId) -> Option<FairPermit> {
        self.launches.take(framework).await
    }

    /// The same for a sandbox that is to be removed.
    pub(super) async fn remove(&self, framework: &FrameworkId) -> Option<FairPermit> {
        self.removals.take(framework).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn launches_of_a_framework_wait_for_its_own_only() {
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
    async fn removals_that_take_long_hold_up_their_framework_alone() {
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
