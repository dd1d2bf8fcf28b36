//! Limits the bytes of executors' calls and updates held in memory.
//!
//! A call acquires a permit before the agent reads its body, and an update holds its permit until it is acknowledged.
//! Without a free permit the agent does not read or answer the call until there is one: it drops nothing that it has
//! promised to deliver. Permits are shared as they come free: a group, such as a framework, that already holds some may
//! take up to half of the free bytes. A group that returns nothing thus leaves most of the room to others, and three
//! such groups still leave a third. Invariants: a small call always gets a permit, unless its own sender or its group
//! holds much; the number of waiting calls of a sender is bounded.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meseta_proto::budget::Exhausted;
use tokio::sync::oneshot;

/// The capacity in tests: the default for unacknowledged updates.
#[cfg(test)]
pub(crate) const UNACKNOWLEDGED_BYTES: usize = 24 * 1024 * 1024;

/// The divisor for the free bytes that a group may take.
const GROUP_PART: usize = 2;
/// The divisor for the capacity that one sender may take: the largest call is a quarter of the capacity.
const SENDER_PART: usize = 3;
/// The bytes that a sender always gets, as long as the total exceeds the capacity by at most a part and its group has
/// less than half of it. Many senders of one group thus cannot use up the room that others find.
const OWN_BYTES: usize = 64 * 1024;
const EXCESS_PART: usize = 4;
/// Waiting calls of one sender; further calls are refused.
const WAITERS_PER_SENDER_MAX: usize = 64;

/// The error for a sender that has reached the limit and filled its queue.
#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{WAITERS_PER_SENDER_MAX} calls of this executor are waiting already; try again later")]
pub(crate) struct TooManyWaiters;

/// Byte-counting semaphore, fair between groups. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct ByteSemaphore {
    table: Arc<Mutex<Table>>,
}

/// Bytes taken from the semaphore, returned when dropped.
#[derive(Debug, Default)]
pub struct Permit {
    taken: Option<Taken>,
}

#[derive(Debug)]
struct Taken {
    semaphore: ByteSemaphore,
    group: Arc<str>,
    sender: Arc<str>,
    bytes: usize,
}

#[derive(Debug)]
struct Waiter {
    number: u64,
    group: Arc<str>,
    sender: Arc<str>,
    bytes: usize,
    told: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Table {
    bytes_max: usize,
    all: usize,
    groups: BTreeMap<Arc<str>, usize>,
    senders: BTreeMap<Arc<str>, usize>,
    /// The waiting calls, oldest first.
    waiters: VecDeque<Waiter>,
    numbers: u64,
}

impl Table {
    fn per_sender(&self) -> usize {
        self.bytes_max / SENDER_PART
    }

    fn has_capacity(&self, group: &str, sender: &str, bytes: usize) -> bool {
        let sent = self.senders.get(sender).copied().unwrap_or_default();
        let after = sent.saturating_add(bytes);
        let of_group = self.groups.get(group).copied().unwrap_or_default();
        let is_small = after <= OWN_BYTES && of_group < self.bytes_max / GROUP_PART;
        if is_small && self.all < self.bytes_max + self.bytes_max / EXCESS_PART {
            return true;
        }
        if sent > 0 && after > self.per_sender() {
            return false;
        }
        let free = self.bytes_max.saturating_sub(self.all);
        // A single call alone may take all free bytes.
        let part = if of_group == 0 {
            free
        } else {
            free / GROUP_PART
        };
        of_group.saturating_add(bytes) <= part
    }

    fn add(&mut self, group: &Arc<str>, sender: &Arc<str>, bytes: usize) {
        self.all += bytes;
        *self.groups.entry(group.clone()).or_default() += bytes;
        *self.senders.entry(sender.clone()).or_default() += bytes;
    }

    fn give_back(&mut self, taken: &Taken) {
        self.all -= taken.bytes;
        for (table, key) in [
            (&mut self.groups, &taken.group),
            (&mut self.senders, &taken.sender),
        ] {
            if let Some(bytes) = table.get_mut(key) {
                *bytes -= taken.bytes;
                if *bytes == 0 {
                    table.remove(key);
                }
            }
        }
    }

    /// Whether one more call of a sender may wait.
    fn may_wait(&self, sender: &str) -> bool {
        let waiting = self.waiters.iter().filter(|one| *one.sender == *sender);
        waiting.count() < WAITERS_PER_SENDER_MAX
    }

    /// Wakes the waiting calls that may have a permit now, in order: a later call of a sender does not overtake an
    /// earlier call of the same sender.
    fn admit(&mut self) {
        let mut passed = std::collections::BTreeSet::new();
        let mut index = 0;
        while let Some(waiter) = self.waiters.get(index) {
            let is_next = !passed.contains(&waiter.sender);
            let may_go = waiter.told.is_closed()
                || (is_next && self.has_capacity(&waiter.group, &waiter.sender, waiter.bytes));
            if !may_go {
                passed.insert(waiter.sender.clone());
                index += 1;
                continue;
            }
            let Some(waiter) = self.waiters.remove(index) else {
                return;
            };
            // Skips a call that has stopped waiting.
            if waiter.told.send(()).is_ok() {
                self.add(&waiter.group, &waiter.sender, waiter.bytes);
            }
        }
    }
}

impl ByteSemaphore {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let table = Table {
            bytes_max,
            all: 0,
            groups: BTreeMap::new(),
            senders: BTreeMap::new(),
            waiters: VecDeque::new(),
            numbers: 0,
        };
        Self {
            table: Arc::new(Mutex::new(table)),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes at once, if they are free and no other call of the sender waits for them.
    pub(crate) fn try_take(&self, group: &str, sender: &str, bytes: usize) -> Option<Permit> {
        let (group, sender): (Arc<str>, Arc<str>) = (group.into(), sender.into());
        let mut table = self.table();
        let is_first = table.waiters.iter().all(|one| one.sender != sender);
        if !is_first || !table.has_capacity(&group, &sender, bytes) {
            return None;
        }
        table.add(&group, &sender, bytes);
        drop(table);
        let taken = Some(Taken {
            semaphore: self.clone(),
            group,
            sender,
            bytes,
        });
        Some(Permit { taken })
    }

    /// Takes bytes, or waits for them if the sender's queue has a place. A call larger than a sender's part takes the
    /// whole part.
    pub(crate) async fn take(
        &self,
        group: &str,
        sender: &str,
        bytes: usize,
    ) -> Result<Permit, TooManyWaiters> {
        let (group, sender): (Arc<str>, Arc<str>) = (group.into(), sender.into());
        let bytes = bytes.min(self.table().per_sender());
        let waiting = {
            let mut table = self.table();
            let is_first = table.waiters.iter().all(|one| one.sender != sender);
            if is_first && table.has_capacity(&group, &sender, bytes) {
                table.add(&group, &sender, bytes);
                None
            } else if table.may_wait(&sender) {
                Some(table.wait(&group, &sender, bytes))
            } else {
                return Err(TooManyWaiters);
            }
        };
        let taken = Taken {
            semaphore: self.clone(),
            group,
            sender,
            bytes,
        };
        if let Some((number, told)) = waiting {
            let mut waits = Waits {
                number,
                taken: Some(taken),
                told,
            };
            let told = (&mut waits.told).await;
            let taken = waits.taken.take();
            // A waiting call always gets an answer.
            return told.map(|()| Permit { taken }).map_err(|_| TooManyWaiters);
        }
        Ok(Permit { taken: Some(taken) })
    }
}

impl Table {
    fn wait(
        &mut self,
        group: &Arc<str>,
        sender: &Arc<str>,
        bytes: usize,
    ) -> (u64, oneshot::Receiver<()>) {
        let (told, waiting) = oneshot::channel();
        self.numbers += 1;
        self.waiters.push_back(Waiter {
            number: self.numbers,
            group: group.clone(),
            sender: sender.clone(),
            bytes,
            told,
        });
        (self.numbers, waiting)
    }
}

/// A waiting call. A call that stops waiting leaves its place, or returns the permit it has just received.
struct Waits {
    number: u64,
    taken: Option<Taken>,
    told: oneshot::Receiver<()>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let Some(taken) = self.taken.take() else {
            return;
        };
        let mut table = taken.semaphore.table();
        let mut waiters = table.waiters.iter();
        match waiters.position(|one| one.number == self.number) {
            Some(index) => drop(table.waiters.remove(index)),
            None => table.give_back(&taken),
        }
        table.admit();
    }
}

impl Permit {
    /// Whether the permit holds bytes of a semaphore.
    pub(crate) fn is_some(&self) -> bool {
        self.taken.is_some()
    }

    /// Takes more bytes if they are free. A call that has begun to read does not wait for others that have begun too.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        let Some(taken) = &mut self.taken else {
            return Ok(());
        };
        if bytes == 0 {
            // Bytes already granted stay granted, regardless of later takes by others.
            return Ok(());
        }
        let mut table = taken.semaphore.table();
        if !table.has_capacity(&taken.group, &taken.sender, bytes) {
            return Err(Exhausted::Total {
                bytes,
                used: table.all,
                max: table.bytes_max,
            });
        }
        table.add(&taken.group, &taken.sender, bytes);
        drop(table);
        taken.bytes += bytes;
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(taken) = self.taken.take() {
            let mut table = taken.semaphore.table();
            table.give_back(&taken);
            table.admit();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::task::Poll;

    use super::*;

    const MIB: usize = 1024 * 1024;
    const KIB: usize = 1024;

    async fn is_waiting<T>(mut taking: Pin<&mut impl Future<Output = T>>) -> bool {
        std::future::poll_fn(|context| Poll::Ready(taking.as_mut().poll(context).is_pending()))
            .await
    }

    /// Whether the semaphore has these bytes free at once.
    async fn has_capacity(
        semaphore: &ByteSemaphore,
        group: &str,
        sender: &str,
        bytes: usize,
    ) -> bool {
        let mut taking = Box::pin(semaphore.take(group, sender, bytes));
        std::future::poll_fn(|context| {
            Poll::Ready(matches!(taking.as_mut().poll(context), Poll::Ready(Ok(_))))
        })
        .await
    }

    fn is_empty(semaphore: &ByteSemaphore) -> bool {
        let table = semaphore.table();
        table.all == 0
            && table.groups.is_empty()
            && table.senders.is_empty()
            && table.waiters.is_empty()
    }

    #[tokio::test]
    async fn executor_waits_only_for_own_bytes() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let first = semaphore.take("f", "a", 6 * MIB).await.expect("room");
        assert!(!has_capacity(&semaphore, "f", "a", 6 * MIB).await);
        assert!(has_capacity(&semaphore, "f", "a", MIB).await);
        assert!(has_capacity(&semaphore, "g", "b", 6 * MIB).await);
        drop(first);
        assert!(
            has_capacity(&semaphore, "f", "a", usize::MAX).await,
            "a whole part"
        );
        assert!(is_empty(&semaphore));
    }

    #[tokio::test]
    async fn silent_frameworks_leave_room_to_others() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let mut kept = Vec::new();
        for framework in ["silent-1", "silent-2", "silent-3"] {
            for executor in 0..8 {
                let sender = format!("{framework}-{executor}");
                while has_capacity(&semaphore, framework, &sender, MIB).await {
                    kept.push(semaphore.take(framework, &sender, MIB).await.expect("room"));
                }
            }
        }
        assert!(kept.len() >= 12, "what is free is used: {}", kept.len());
        assert!(has_capacity(&semaphore, "other", "o", 5 * MIB).await);
        assert!(semaphore.table().all <= UNACKNOWLEDGED_BYTES);
        // Small calls pass even when nothing is left.
        while semaphore.table().all < UNACKNOWLEDGED_BYTES {
            let name = format!("more-{}", kept.len());
            let left = UNACKNOWLEDGED_BYTES - semaphore.table().all;
            kept.push(semaphore.take(&name, &name, left).await.expect("room"));
        }
        assert!(!has_capacity(&semaphore, "other", "o", MIB).await);
        assert!(has_capacity(&semaphore, "silent-1", "silent-1-9", 64 * KIB).await);
        drop(kept);
        assert!(is_empty(&semaphore));
    }

    /// Regression: many executors of one framework took all the room reserved for small updates of others.
    #[tokio::test]
    async fn executors_of_silent_framework_leave_room() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let mut kept = Vec::new();
        for executor in 0..1000 {
            let sender = format!("silent-{executor}");
            if has_capacity(&semaphore, "silent", &sender, 64 * KIB).await {
                kept.push(
                    semaphore
                        .take("silent", &sender, 64 * KIB)
                        .await
                        .expect("room"),
                );
            }
        }
        assert!(kept.len() < 1000, "it had no end");
        assert!(has_capacity(&semaphore, "other", "o", 5 * MIB).await);
        for executor in 0..50 {
            let sender = format!("other-{executor}");
            assert!(has_capacity(&semaphore, "other", &sender, 300).await);
            kept.push(semaphore.take("other", &sender, 300).await.expect("room"));
        }
    }

    #[tokio::test]
    async fn waiters_are_bounded_per_sender() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let _held = semaphore.take("f", "a", 8 * MIB).await.expect("room");
        let mut waiting = Vec::new();
        for _ in 0..WAITERS_PER_SENDER_MAX {
            let mut taking = Box::pin(semaphore.take("f", "a", KIB));
            assert!(is_waiting(taking.as_mut()).await);
            waiting.push(taking);
        }
        assert_eq!(
            semaphore.take("f", "a", KIB).await.err(),
            Some(TooManyWaiters)
        );
        assert!(!has_capacity(&semaphore, "f", "a", 64 * KIB).await);
        assert!(has_capacity(&semaphore, "f", "b", 64 * KIB).await);
    }

    #[tokio::test]
    async fn waiters_are_served_in_order() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let held = semaphore.take("f", "a", 5 * MIB).await.expect("room");
        let kept = semaphore.take("f", "a", MIB).await.expect("room");
        let mut gone = Box::pin(semaphore.take("f", "a", 5 * MIB));
        let mut next = Box::pin(semaphore.take("f", "a", 5 * MIB));
        let mut last = Box::pin(semaphore.take("f", "a", 3 * MIB));
        for taking in [&mut gone, &mut next] {
            assert!(is_waiting(taking.as_mut()).await);
        }
        assert!(is_waiting(last.as_mut()).await, "it does not overtake");
        drop(gone);
        drop(held);
        let given = next.await.expect("room");
        assert!(is_waiting(last.as_mut()).await);
        drop(given);
        drop(last.await.expect("room"));
        drop(kept);
        // A call that receives a permit and stops before it notices.
        let held = semaphore.take("f", "a", 8 * MIB).await.expect("room");
        let mut gone = Box::pin(semaphore.take("f", "a", 8 * MIB));
        assert!(is_waiting(gone.as_mut()).await);
        drop(held);
        assert!(!is_empty(&semaphore));
        drop(gone);
        assert!(is_empty(&semaphore));
    }

    #[tokio::test]
    async fn granted_permit_survives_takes_by_others() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let mut given = semaphore.take("f", "a", 8 * MIB).await.expect("room");
        let _others = [
            semaphore.take("g", "b", 8 * MIB).await.expect("room"),
            semaphore.take("h", "c", 8 * MIB).await.expect("room"),
        ];
        given.grow(0).expect("it is given");
        assert!(given.grow(1).is_err());
    }

    #[tokio::test]
    async fn growing_a_permit_never_waits() {
        let semaphore = ByteSemaphore::new(UNACKNOWLEDGED_BYTES);
        let mut first = semaphore.take("f", "a", 0).await.expect("room");
        for _ in 0..6 {
            first.grow(MIB).expect("room");
        }
        assert!(first.grow(3 * MIB).is_err(), "more than a sender's part");
        assert_eq!(semaphore.table().all, 6 * MIB);
        let mut second = semaphore.take("g", "b", 0).await.expect("room");
        let mut grown = 0;
        while grown < 64 && second.grow(MIB).is_ok() {
            grown += 1;
        }
        assert_eq!(grown, 6, "half of what is free");
        drop((first, second));
        assert!(is_empty(&semaphore));
    }
}
