//! Who gets room, who waits, and who goes.

use std::pin::pin;

use super::*;

const STILL: Duration = Duration::from_secs(2);

fn places(units_max: usize) -> FairRoom {
    FairRoom::new(Rules {
        units_max,
        leaves_half: true,
        still: Some(STILL),
        newest_first: false,
        waiting_of_group_max: 100,
        waiting_max: 1_000,
    })
}

/// Takes some at once, or does not wait.
async fn at_once(room: &FairRoom, group: &str, units: usize) -> Option<Hold> {
    let taking = room.take(Group::from(group), units);
    let taken = tokio::time::timeout(Duration::from_millis(1), taking).await;
    taken.ok().map(Result::unwrap)
}

/// Everything that a group finds.
async fn all_of(room: &FairRoom, group: &str) -> Vec<Hold> {
    let mut holds = Vec::new();
    while let Some(hold) = at_once(room, group, 1).await {
        holds.push(hold);
    }
    holds
}

fn is_empty(room: &FairRoom) -> bool {
    let table = room.table();
    table.used == 0
        && table.shares.is_empty()
        && table.holders.is_empty()
        && table.waiters.is_empty()
}

fn given_up(holds: &[Hold]) -> usize {
    let given_up = holds.iter().filter(|hold| hold.given_up().is_cancelled());
    given_up.count()
}

#[tokio::test(start_paused = true)]
async fn a_group_leaves_others_as_much_as_it_has() {
    let room = places(16);
    let mut had = Vec::new();
    let mut holds = Vec::new();
    for group in ["a", "b", "c"] {
        let own = all_of(&room, group).await;
        had.push(own.len());
        holds.extend(own);
    }
    assert_eq!(had, [8, 4, 2]);
    drop(holds);
    assert!(is_empty(&room));
}

#[tokio::test(start_paused = true)]
async fn what_stands_still_makes_room_and_what_moves_does_not() {
    let room = places(8);
    let mut holds = all_of(&room, "a").await;
    holds.extend(all_of(&room, "b").await);
    holds.extend(all_of(&room, "c").await);
    holds.extend(all_of(&room, "d").await);
    assert_eq!(room.used(), 8);
    assert!(at_once(&room, "e", 1).await.is_none(), "all are new");
    holds[1].rest();
    tokio::time::sleep(STILL).await;
    for hold in &holds[2..] {
        hold.moved();
    }
    let one_more = at_once(&room, "e", 1).await.unwrap();
    assert_eq!(given_up(&holds), 1);
    assert!(holds[0].given_up().is_cancelled());
    assert!(at_once(&room, "f", 1).await.is_none());
    // Whoever waits is not forgotten: it gets room as soon as something has stood still for long enough.
    let begun = Instant::now();
    let waited = room.take(Group::from("f"), 1).await.unwrap();
    assert!(begun.elapsed() <= STILL + LOOK_INTERVAL);
    assert_eq!(given_up(&holds), 2);
    drop((one_more, waited, holds));
    assert!(is_empty(&room));
}

#[tokio::test(start_paused = true)]
async fn nothing_goes_for_a_group_that_has_more() {
    let room = places(8);
    let many = all_of(&room, "a").await;
    let few = all_of(&room, "b").await;
    assert_eq!((many.len(), few.len()), (4, 2));
    tokio::time::sleep(STILL).await;
    for hold in &many {
        hold.moved();
    }
    let own = at_once(&room, "a", 1).await;
    assert!(own.is_none() && given_up(&few) == 0);
    tokio::time::sleep(STILL).await;
    assert!(at_once(&room, "a", 1).await.is_some());
    assert_eq!(
        (given_up(&many), given_up(&few)),
        (2, 0),
        "it has three now"
    );
}

#[tokio::test(start_paused = true)]
async fn some_bytes_now_and_then_are_no_progress() {
    let room = places(1_600);
    let slow = at_once(&room, "a", 1_600).await.unwrap();
    for _ in 0..3 {
        tokio::time::sleep(STILL / 2).await;
        slow.progressed(60);
    }
    assert!(at_once(&room, "b", 1).await.is_none(), "120 in two seconds");
    tokio::time::sleep(STILL / 2).await;
    slow.progressed(20);
    tokio::time::sleep(STILL / 2).await;
    assert!(at_once(&room, "b", 1).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn nobody_overtakes_what_is_larger_than_all_room() {
    let room = places(100);
    let small = at_once(&room, "a", 10).await.unwrap();
    let mut large = pin!(room.take(Group::from("b"), 1_000));
    let mut next = pin!(room.take(Group::from("c"), 10));
    let waiting = tokio::time::timeout(STILL / 2, async {
        tokio::select! { biased; _ = &mut large => {}, _ = &mut next => {} }
    });
    assert!(waiting.await.is_err());
    drop(small);
    let alone = large.await.unwrap();
    assert_eq!(room.used(), 1_000);
    drop(alone);
    next.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_next_is_of_a_group_that_awaits_the_least() {
    let room = FairRoom::new(Rules {
        units_max: 1,
        leaves_half: false,
        still: None,
        newest_first: false,
        waiting_of_group_max: 3,
        waiting_max: 5,
    });
    let first = room.take(Group::from("a"), 1).await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for (number, (group, rank)) in [("a", 0), ("a", 0), ("a", 0), ("a", 0), ("b", 5), ("c", 0)]
        .into_iter()
        .enumerate()
    {
        let (room, sender) = (room.clone(), sender.clone());
        tokio::spawn(async move {
            let taken = room.take_after(Group::from(group), 1, rank).await;
            sender.send((number, taken.is_ok())).unwrap();
        });
        tokio::task::yield_now().await;
    }
    assert_eq!(
        order.recv().await,
        Some((3, false)),
        "three of a group wait"
    );
    // One more than may wait: whoever has the last turn is sent away.
    let late = tokio::spawn({
        let room = room.clone();
        async move { room.take(Group::from("d"), 1).await.is_ok() }
    });
    tokio::task::yield_now().await;
    assert_eq!(order.recv().await, Some((4, false)));
    drop((first, sender));
    let mut told = Vec::new();
    while let Some((number, is_ok)) = order.recv().await {
        told.push((number, is_ok));
    }
    assert_eq!(told, [(5, true), (0, true), (1, true), (2, true)]);
    assert!(late.await.unwrap());
    assert!(is_empty(&room));
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_waiting_leaves_nothing_behind() {
    let room = places(2);
    let hold = at_once(&room, "a", 2).await.unwrap();
    for _ in 0..10 {
        assert!(at_once(&room, "b", 1).await.is_none());
    }
    hold.resize(5);
    assert_eq!(room.used(), 5);
    hold.resize(1);
    assert!(at_once(&room, "b", 1).await.is_some());
    drop(hold);
    assert!(is_empty(&room));
}

#[tokio::test(start_paused = true)]
async fn who_comes_last_goes_first_where_many_wait_long() {
    let room = FairRoom::new(Rules {
        units_max: 1,
        leaves_half: false,
        still: None,
        newest_first: true,
        waiting_of_group_max: 3,
        waiting_max: 3,
    });
    let first = room.take(Group::from("a"), 1).await.unwrap();
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    for group in ["b", "c", "d", "e"] {
        let (room, sender) = (room.clone(), sender.clone());
        tokio::spawn(async move {
            let taken = room.take(Group::from(group), 1).await;
            sender.send((group, taken.is_ok())).unwrap();
        });
        tokio::task::yield_now().await;
    }
    drop((first, sender));
    let mut told = Vec::new();
    while let Some(one) = order.recv().await {
        told.push(one);
    }
    assert_eq!(told, [("b", false), ("e", true), ("d", true), ("c", true)]);
}

#[tokio::test(start_paused = true)]
async fn what_has_most_of_the_room_stays_as_long_as_nobody_waits_and_not_much_longer() {
    let room = places(16);
    let large = at_once(&room, "a", 40).await.unwrap();
    let progress = async |seconds: usize| {
        for _ in 0..seconds {
            large.progressed(40 / PROGRESS_PARTS + 1);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    progress(30).await;
    assert!(!large.given_up().is_cancelled(), "nobody waits");
    let other = room.take(Group::from("b"), 1);
    let (other, ()) = tokio::join!(
        tokio::time::timeout(STILL * LARGE_STAYS, other),
        progress(4)
    );
    assert!(other.is_ok_and(|taken| taken.is_ok()));
    assert!(large.given_up().is_cancelled());
}
