//! Turns for callers that change jobs or plan changes: the core takes changes in the order of arrival.
//!
//! Entered through [`Changes::turn`] and [`Changes::plan`]. Invariants: one caller has few changes under way at a time, so
//! that the change of another caller waits only for those few. The next turn goes to the caller with the fewest changes
//! under way. The number of waiting changes is bounded.

use meseta_daemon::authentication::Caller;
use meseta_daemon::fair_semaphore::{FairSemaphore, Permit, Rules};

use super::Reply;

/// The limit of changes under way. One caller may have half of it.
const CHANGES_MAX: usize = 8;
/// The limit of plans that wait for offers. One caller may have half of it. Each plan asks the core several times.
const PLANS_MAX: usize = 64;
/// The limits of waiting changes: for one caller, and for all callers together.
const WAITING_OF_GROUP_MAX: usize = 256;
const WAITING_MAX: usize = 4_096;

/// The turns of all callers. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Changes {
    changes: FairSemaphore,
    plans: FairSemaphore,
}

impl Changes {
    pub(crate) fn new() -> Self {
        let rules = |units_max: usize| Rules {
            units_max,
            leaves_half: true,
            stall_timeout: None,
            newest_first: false,
            waiting_of_group_max: WAITING_OF_GROUP_MAX,
            waiting_max: WAITING_MAX,
        };
        Self {
            changes: FairSemaphore::new(rules(CHANGES_MAX)),
            plans: FairSemaphore::new(rules(PLANS_MAX)),
        }
    }

    /// Waits until a change of this caller may go to the core. A caller must not hold a turn while its client sends.
    pub(super) async fn turn(&self, caller: &Caller) -> Result<Permit, Reply> {
        let turn = self.changes.take(caller.group().into(), 1).await;
        turn.map_err(|_| Reply::later("too many changes are waiting; try again later"))
    }

    /// Waits until a plan of this caller may wait for offers.
    pub(super) async fn plan(&self, caller: &Caller) -> Result<Permit, Reply> {
        let place = self.plans.take(caller.group().into(), 1).await;
        place.map_err(|_| Reply::later("too many plans are waiting for offers; try again later"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::file_reader::tests::caller;
    use super::*;

    #[tokio::test]
    async fn changes_leave_turns_to_other_callers() {
        let changes = Changes::new();
        let mut held = Vec::new();
        let mut waiting = Vec::new();
        for _ in 0..WAITING_OF_GROUP_MAX {
            let (changes, ann) = (changes.clone(), caller("ann"));
            let mut turn = Box::pin(async move { changes.turn(&ann).await });
            tokio::select! {
                biased;
                turn = &mut turn => held.push(turn.expect("a turn")),
                () = std::future::ready(()) => waiting.push(turn),
            }
        }
        assert_eq!(held.len(), CHANGES_MAX / 2);
        assert!(changes.turn(&caller("bob")).await.is_ok());
        drop(held);
        for turn in waiting {
            assert!(turn.await.is_ok());
        }
    }
}
