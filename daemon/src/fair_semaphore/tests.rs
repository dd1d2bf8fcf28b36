//! The order of grants, waits and revocations.

use std::pin::pin;

use super::*;

const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns a semaphore of this capacity, of which each group leaves half.
pub(crate) fn semaphore_of(units_max: usize) -> FairSemaphore {
    FairSemaphore::new(Rules {
        units_max,
        leaves_half: true,
        stall_timeout: Some(STALL_TIMEOUT),
        newest_first: false,
        waiting_of_group_max: 100,
        waiting_max: 1_000,
    })
}

/// Takes units at once, or returns `None` without waiting.
async fn at_once(semaphore: &FairSemaphore, group: &str, units: usize) -> Option<Permit> {
    let taking = semaphore.take(Group::from(group), units);
    let taken = tokio::time::timeout(Duration::from_millis(1), taking).await;
    taken.ok().map(Result::unwrap)
}

/// Takes all units that a group can get.
async fn all_of(semaphore: &FairSemaphore, group: &str) -> Vec<Permit> {
    let mut permits = Vec::new();
    while let Some(permit) = at_once(semaphore, group, 1).await {
        permits.push(permit);
    }
    permits
}

fn is_empty(semaphore: &FairSemaphore) -> bool {
    let table = semaphore.table();
    table.used == 0
        && table.groups.is_empty()
        && table.holders.is_empty()
        && table.waiters.is_empty()
}

fn revoked(permits: &[Permit]) -> usize {
    let revoked = permits
        .iter()
        .filter(|permit| permit.revoked().is_cancelled());
    revoked.count()
}

#[tokio::test(start_paused = true)]
async fn group_leaves_others_an_equal_amount() {
    let semaphore = semaphore_of(16);
    let mut had = Vec::new();
    let mut permits = Vec::new();
    for group in ["a", "b", "c"] {
        let own = all_of(&semaphore, group).await;
        had.push(own.len());
        permits.extend(own);
    }
    assert_eq!(had, [8, 4, 2]);
    drop(permits);
    assert!(is_empty(&semaphore));
}

#[tokio::test(start_paused = true)]
async fn only_stalled_permits_are_revoked() {
    let semaphore = semaphore_of(8);
    let mut permits = all_of(&semaphore, "a").await;
    permits.extend(all_of(&semaphore, "b").await);
    permits.extend(all_of(&semaphore, "c").await);
    permits.extend(all_of(&semaphore, "d").await);
    assert_eq!(semaphore.used(), 8);
    assert!(at_once(&semaphore, "e", 1).await.is_none(), "all are new");
    permits[1].pause_stall_check();
    tokio::time::sleep(STALL_TIMEOUT).await;
    for permit in &permits[2..] {
        permit.record_progress();
    }
    let one_more = at_once(&semaphore, "e", 1).await.unwrap();
    assert_eq!(revoked(&permits), 1);
    assert!(permits[0].revoked().is_cancelled());
    assert!(at_once(&semaphore, "f", 1).await.is_none());
    // A waiter gets room as soon as a permit has been stalled for long enough.
    let begun = Instant::now();
    let waited = semaphore.take(Group::from("f"), 1).await.unwrap();
    assert!(begun.elapsed() <= STALL_TIMEOUT + STALL_CHECK_INTERVAL);
    assert_eq!(revoked(&permits), 2);
    drop((one_more, waited, permits));
    assert!(is_empty(&semaphore));
}

#[tokio::test(start_paused = true)]
async fn larger_group_revokes_no_permits() {
    let semaphore = semaphore_of(8);
    let many = all_of(&semaphore, "a").await;
    let few = all_of(&semaphore, "b").await;
    assert_eq!((many.len(), few.len()), (4, 2));
    tokio::time::sleep(STALL_TIMEOUT).await;
    for permit in &many {
        permit.record_progress();
    }
    let own = at_once(&semaphore, "a", 1).await;
    assert!(own.is_none() && revoked(&few) == 0);
    tokio::time::sleep(STALL_TIMEOUT).await;
    assert!(at_once(&semaphore, "a", 1).await.is_some());
    assert_eq!((revoked(&many), revoked(&few)), (2, 0), "it has three now");
}

#[tokio::test(start_paused = true)]
async fn occasional_bytes_are_no_progress() {
    let semaphore = semaphore_of(1_600);
    let slow = at_once(&semaphore, "a", 1_600).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(STALL_TIMEOUT / 2).await;
        slow.record_units(60);
    }
    assert!(
        at_once(&semaphore, "b", 1).await.is_none(),
        "120 in two seconds"
    );
    tokio::time::sleep(STALL_TIMEOUT / 2).await;
    slow.record_units(20);
    tokio::time::sleep(STALL_TIMEOUT / 2).await;
    assert!(at_once(&semaphore, "b", 1).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn oversized_request_is_not_overtaken() {
    let semaphore = semaphore_of(100);
    let small = at_once(&semaphore, "a", 10).await.unwrap();
    let mut large = pin!(semaphore.take(Group::from("b"), 1_000));
    let mut next = pin!(semaphore.take(Group::from("c"), 10));
    let waiting = tokio::time::timeout(STALL_TIMEOUT / 2, async {
        tokio::select! { biased; _ = &mut large => {}, _ = &mut next => {} }
    });
    assert!(waiting.await.is_err());
    drop(small);
    let alone = large.await.unwrap();
    assert_eq!(semaphore.used(), 1_000);
    drop(alone);
    next.await.unwrap();
}

/// Returns a semaphore of one unit, and that unit.
async fn one_at_a_time(newest_first: bool, waiting_max: usize) -> (FairSemaphore, Permit) {
    let semaphore = FairSemaphore::new(Rules {
        units_max: 1,
        leaves_half: false,
        stall_timeout: None,
        newest_first,
        waiting_of_group_max: 3,
        waiting_max,
    });
    let first = semaphore.take(Group::from("a"), 1).await.unwrap();
    (semaphore, first)
}

type Order = tokio::sync::mpsc::Receiver<(usize, bool)>;

/// Queues these waiters one after the other, each with its rank; returns the order and the results of their grants.
async fn in_turn(semaphore: &FairSemaphore, waiting: &[(&'static str, usize)]) -> Order {
    let (sender, order) = tokio::sync::mpsc::channel(8);
    for (number, (group, rank)) in waiting.iter().copied().enumerate() {
        let (semaphore, sender) = (semaphore.clone(), sender.clone());
        tokio::spawn(async move {
            let taken = semaphore.take_after(Group::from(group), 1, rank).await;
            sender.try_send((number, taken.is_ok())).unwrap();
        });
        tokio::task::yield_now().await;
    }
    order
}

async fn rest_of(mut order: Order) -> Vec<(usize, bool)> {
    let mut told = Vec::new();
    while let Some(one) = order.recv().await {
        told.push(one);
    }
    told
}

#[tokio::test(start_paused = true)]
async fn group_with_fewest_waiters_is_next() {
    let (semaphore, first) = one_at_a_time(false, 5).await;
    let waiting = [("a", 0), ("a", 0), ("a", 0), ("a", 0), ("b", 5), ("c", 0)];
    let mut order = in_turn(&semaphore, &waiting).await;
    let third = order.recv().await;
    assert_eq!(third, Some((3, false)), "three of a group wait");
    // The queue is full: the waiter with the last turn is refused.
    let late = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.take(Group::from("d"), 1).await.is_ok() }
    });
    tokio::task::yield_now().await;
    assert_eq!(order.recv().await, Some((4, false)));
    drop(first);
    let told = rest_of(order).await;
    assert_eq!(told, [(5, true), (0, true), (1, true), (2, true)]);
    assert!(late.await.unwrap());
    assert!(is_empty(&semaphore));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_waiter_leaves_no_state() {
    let semaphore = semaphore_of(2);
    let permit = at_once(&semaphore, "a", 2).await.unwrap();
    for _ in 0..10 {
        assert!(at_once(&semaphore, "b", 1).await.is_none());
    }
    permit.resize(5);
    assert_eq!(semaphore.used(), 5);
    permit.resize(1);
    assert!(at_once(&semaphore, "b", 1).await.is_some());
    drop(permit);
    assert!(is_empty(&semaphore));
}

#[tokio::test(start_paused = true)]
async fn newest_first_serves_the_last_waiter() {
    let (semaphore, first) = one_at_a_time(true, 3).await;
    let order = in_turn(&semaphore, &["b", "c", "d", "e"].map(|group| (group, 0))).await;
    drop(first);
    let told = rest_of(order).await;
    assert_eq!(told, [(0, false), (3, true), (2, true), (1, true)]);
}

#[tokio::test(start_paused = true)]
async fn oversized_permit_is_revoked_for_waiters() {
    let semaphore = semaphore_of(16);
    let large = at_once(&semaphore, "a", 40).await.unwrap();
    let progress = async |seconds: usize| {
        for _ in 0..seconds {
            large.record_units(40 / PROGRESS_PARTS + 1);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    progress(30).await;
    assert!(!large.revoked().is_cancelled(), "nobody waits");
    let other = semaphore.take(Group::from("b"), 1);
    let (other, ()) = tokio::join!(
        tokio::time::timeout(STALL_TIMEOUT * LARGE_STALL_FACTOR, other),
        progress(4)
    );
    assert!(other.is_ok_and(|taken| taken.is_ok()));
    assert!(large.revoked().is_cancelled());
}
