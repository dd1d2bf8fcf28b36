//! Semaphore for blocking work, fair between groups: frameworks, or the roles of tasks.
//!
//! Entered through [`FairSemaphore::take`] and [`FairSemaphore::try_take`]. Among waiting groups the group with
//! the fewest permits goes first, and among equals the one that has waited longest. Invariants: no group ever holds
//! more than its share, so that work which never ends leaves permits to others. A group without a permit gets a
//! spare permit even when all others are in use, while spare permits last.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meseta_resources::FrameworkId;
use tokio::sync::oneshot;

/// The limits on the number of permits.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub(crate) struct PermitLimits {
    /// The limit for all peers together.
    pub(crate) all: usize,
    /// The limit for one group.
    pub(crate) each: usize,
    /// Additional permits for groups that hold none.
    pub(crate) spare: usize,
}

/// The permits in use and the waiters; `W` is the channel to a waiter.
#[derive(Debug)]
struct Table<G, W> {
    shares: PermitLimits,
    held: BTreeMap<G, usize>,
    held_by_all: usize,
    /// The waiters of each group, each with its turn.
    waiting: BTreeMap<G, VecDeque<(u64, W)>>,
    turns: u64,
}

impl<G: Clone + Ord, W> Table<G, W> {
    fn new(shares: PermitLimits) -> Self {
        Self {
            shares,
            held: BTreeMap::new(),
            held_by_all: 0,
            waiting: BTreeMap::new(),
            turns: 0,
        }
    }

    fn held_by(&self, group: &G) -> usize {
        self.held.get(group).copied().unwrap_or_default()
    }

    fn may_have_one(&self, group: &G) -> bool {
        let (held, all) = (self.held_by(group), self.held_by_all);
        let is_first = held == 0 && all < self.shares.all + self.shares.spare;
        is_first || (held < self.shares.each.max(1) && all < self.shares.all)
    }

    fn wait(&mut self, group: &G, waiter: W) {
        self.turns += 1;
        let queue = self.waiting.entry(group.clone()).or_default();
        queue.push_back((self.turns, waiter));
    }

    /// Grants the next permit, if a waiter may have one.
    fn give(&mut self) -> Option<(G, W)> {
        let waiting = self.waiting.iter();
        let eligible = waiting.filter(|(group, _)| self.may_have_one(group));
        let turn = |queue: &VecDeque<(u64, W)>| queue.front().map(|(turn, _)| *turn);
        let next = eligible.min_by_key(|(group, queue)| (self.held_by(group), turn(queue)));
        let group = next?.0.clone();
        let queue = self.waiting.get_mut(&group)?;
        let (_, waiter) = queue.pop_front()?;
        if queue.is_empty() {
            self.waiting.remove(&group);
        }
        self.hold(&group);
        Some((group, waiter))
    }

    fn hold(&mut self, group: &G) {
        *self.held.entry(group.clone()).or_default() += 1;
        self.held_by_all += 1;
    }

    fn give_back(&mut self, group: &G) {
        if let Some(held) = self.held.get_mut(group) {
            *held -= 1;
            self.held_by_all -= 1;
            if *held == 0 {
                self.held.remove(group);
            }
        }
    }
}

/// The semaphore. Clones share its permits.
#[derive(Clone, Debug)]
pub(crate) struct FairSemaphore<G: Clone + Ord = FrameworkId> {
    table: Arc<Mutex<Table<G, oneshot::Sender<FairPermit<G>>>>>,
}

/// A permit, returned when dropped.
#[derive(Debug)]
pub(crate) struct FairPermit<G: Clone + Ord = FrameworkId> {
    semaphore: FairSemaphore<G>,
    group: G,
}

impl<G: Clone + Ord> FairSemaphore<G> {
    pub(crate) fn new(shares: PermitLimits) -> Self {
        Self {
            table: Arc::new(Mutex::new(Table::new(shares))),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table<G, oneshot::Sender<FairPermit<G>>>> {
        // The table is consistent between any two statements, so a panic elsewhere does no harm.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a permit. A waiter that stops waiting is skipped.
    pub(crate) async fn take(&self, group: &G) -> Option<FairPermit<G>> {
        let (told, permit) = oneshot::channel();
        self.table().wait(group, told);
        self.give_all();
        // The sender is dropped only with the semaphore.
        permit.await.ok()
    }

    /// Returns a permit, if one is free now.
    pub(crate) fn try_take(&self, group: &G) -> Option<FairPermit<G>> {
        let mut table = self.table();
        if !table.may_have_one(group) {
            return None;
        }
        table.hold(group);
        Some(FairPermit {
            semaphore: self.clone(),
            group: group.clone(),
        })
    }

    fn give_all(&self) {
        loop {
            let given = self.table().give();
            let Some((group, waiter)) = given else {
                return;
            };
            let semaphore = self.clone();
            if waiter.is_closed() {
                self.table().give_back(&group);
                continue;
            }
            // A waiter that has just stopped waiting returns the permit by dropping it.
            let _ = waiter.send(FairPermit { semaphore, group });
        }
    }
}

impl<G: Clone + Ord> Drop for FairPermit<G> {
    fn drop(&mut self) {
        self.semaphore.table().give_back(&self.group);
        self.semaphore.give_all();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    const SHARES: PermitLimits = PermitLimits {
        all: 4,
        each: 2,
        spare: 1,
    };

    fn framework(id: &str) -> FrameworkId {
        FrameworkId::new(id).expect("valid")
    }

    /// The granted permits in order, until nobody may have more.
    fn given(table: &mut Table<FrameworkId, u32>) -> Vec<u32> {
        std::iter::from_fn(|| table.give().map(|(_, waiter)| waiter)).collect()
    }

    #[test]
    fn framework_never_exceeds_its_share() {
        let mut table = Table::new(SHARES);
        let (a, b, c, d) = (
            framework("a"),
            framework("b"),
            framework("c"),
            framework("d"),
        );
        for number in 0..5 {
            table.wait(&a, number);
        }
        assert_eq!(given(&mut table), [0, 1]);
        // Endless work of another framework takes the rest, and a third framework still gets a permit.
        for number in 10..15 {
            table.wait(&b, number);
        }
        assert_eq!(given(&mut table), [10, 11]);
        table.wait(&c, 20);
        table.wait(&c, 21);
        assert_eq!(given(&mut table), [20]);
        // The spare permit is in use.
        table.wait(&d, 30);
        assert!(given(&mut table).is_empty());
        table.give_back(&a);
        assert_eq!(given(&mut table), [30]);
        // A returned permit goes to the framework with the fewest permits, and among equals to the longest waiter.
        table.give_back(&b);
        assert!(given(&mut table).is_empty());
        table.give_back(&d);
        assert_eq!(given(&mut table), [2]);
        for framework in [&a, &a, &b, &c] {
            table.give_back(framework);
        }
        assert_eq!(given(&mut table), [3, 12, 21, 4]);
    }

    #[test]
    fn lone_framework_is_served_in_order() {
        let mut table = Table::new(SHARES);
        let a = framework("a");
        for number in 0..4 {
            table.wait(&a, number);
        }
        assert_eq!(given(&mut table), [0, 1]);
        table.give_back(&a);
        assert_eq!(given(&mut table), [2]);
        table.give_back(&a);
        assert_eq!(given(&mut table), [3]);
        table.give_back(&a);
        table.give_back(&a);
        assert!(table.held.is_empty() && table.held_by_all == 0 && table.waiting.is_empty());
    }

    async fn is_pending(mut waiting: Pin<&mut impl Future>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context).is_pending()))
            .await
    }

    #[tokio::test]
    async fn whoever_stops_waiting_is_passed_over() {
        let semaphore = FairSemaphore::new(PermitLimits {
            all: 1,
            each: 1,
            spare: 0,
        });
        let (a, b) = (framework("a"), framework("b"));
        let held = semaphore.take(&a).await.expect("free");
        let mut gone = Box::pin(semaphore.take(&a));
        let mut next = Box::pin(semaphore.take(&b));
        assert!(is_pending(gone.as_mut()).await && is_pending(next.as_mut()).await);
        drop(gone);
        drop(held);
        assert_eq!(next.await.expect("free").group, b);
        assert!(semaphore.take(&a).await.is_some());
    }
}
