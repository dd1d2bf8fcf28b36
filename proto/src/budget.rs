//! Budgets of bytes: data waiting for a peer is charged to that peer, and to all peers together.
//!
//! A [`Budget`] has a limit; a [`Budget::share`] of it has one of its own and is charged to the whole as well. A [`Charge`]
//! lasts as long as the charged data. Invariants: every byte charged is released exactly once, at all levels. No budget
//! exceeds its limit, with two exceptions: a single item alone, which is always admitted (otherwise an item larger than the
//! limit could never pass), and the floors of its shares.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use crate::body_reads::BodyReads;

/// A limit of bytes and its present use. Cheap to clone; clones are the same budget.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Level>);

#[derive(Debug)]
struct Level {
    bytes_max: usize,
    /// The bytes granted to this share regardless of the use of the rest.
    floor_bytes: usize,
    /// Whether the share leaves the others as much room as it uses itself.
    is_fair: bool,
    used_bytes: AtomicUsize,
    /// Wakes the waiters for room.
    released: Notify,
    parent: Option<Budget>,
    /// The reads in progress on all parts of a whole.
    body_reads: BodyReads,
}

/// Errors of charging a full budget.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Exhausted {
    #[error("{bytes} bytes beyond the {used} bytes in use would exceed the limit of {max} bytes")]
    Share {
        bytes: usize,
        used: usize,
        max: usize,
    },
    #[error(
        "{bytes} bytes beyond the {used} bytes in use by all would exceed the limit of {max} bytes"
    )]
    Total {
        bytes: usize,
        used: usize,
        max: usize,
    },
}

impl Budget {
    #[must_use]
    pub fn new(bytes_max: usize) -> Self {
        Self(Arc::new(Level {
            bytes_max,
            floor_bytes: 0,
            is_fair: false,
            used_bytes: AtomicUsize::new(0),
            released: Notify::new(),
            parent: None,
            body_reads: BodyReads::default(),
        }))
    }

    /// A part of this budget with a limit of its own. Up to `floor_bytes` of it are granted even when the others have used up the
    /// whole.
    #[must_use]
    pub fn share(&self, bytes_max: usize, floor_bytes: usize) -> Self {
        self.part(bytes_max, floor_bytes, false)
    }

    /// A part of this budget that never exceeds the room left for others: a single part has at most half of the whole, two have a
    /// third each, and another one always finds as much room as each of those before it. Up to `floor_bytes` are granted
    /// regardless of the others. The floors of its own parts may exceed its limit, by at most that limit in all.
    #[must_use]
    pub fn fair_share(&self, floor_bytes: usize) -> Self {
        self.part(self.limit() / 2, floor_bytes, true)
    }

    fn part(&self, bytes_max: usize, floor_bytes: usize, is_fair: bool) -> Self {
        Self(Arc::new(Level {
            bytes_max,
            floor_bytes,
            is_fair,
            used_bytes: AtomicUsize::new(0),
            released: Notify::new(),
            parent: Some(self.clone()),
            body_reads: self.0.body_reads.clone(),
        }))
    }

    #[must_use]
    pub fn used(&self) -> usize {
        self.0.used_bytes.load(Ordering::Relaxed)
    }

    #[must_use]
    pub fn limit(&self) -> usize {
        self.0.bytes_max
    }

    /// Charges `bytes` here and to the whole, or nothing at all. When others have used up the whole, stalled reads are evicted.
    pub fn charge(&self, bytes: usize) -> Result<Charge, Exhausted> {
        self.add_with_eviction(bytes)?;
        Ok(Charge {
            budget: self.clone(),
            bytes,
        })
    }

    /// The reads in progress on this whole.
    pub(crate) fn body_reads(&self) -> &BodyReads {
        &self.0.body_reads
    }

    /// The part directly below the whole: a peer's share, if there is one for each peer.
    pub(crate) fn peer_budget(&self) -> &Self {
        let mut level = self;
        while let Some(parent) = level.0.parent.as_ref().filter(|one| one.0.parent.is_some()) {
            level = parent;
        }
        level
    }

    fn add_with_eviction(&self, bytes: usize) -> Result<(), Exhausted> {
        loop {
            match self.add(bytes, false) {
                Err(Exhausted::Total { .. })
                    if self.body_reads().evict_stalled(self.peer_budget()) => {}
                added => return added,
            }
        }
    }

    /// Charges `bytes` as [`Budget::charge`] does, but waits until there is room.
    pub async fn charge_when_free(&self, bytes: usize) -> Charge {
        loop {
            let mut level = self;
            // The wait is for the budget that refuses: the share itself, or one of the budgets above it.
            loop {
                let released = level.0.released.notified();
                tokio::pin!(released);
                released.as_mut().enable();
                match self.charge(bytes) {
                    Ok(charge) => return charge,
                    Err(Exhausted::Total { .. }) if level.0.parent.is_some() => {
                        if let Some(parent) = &level.0.parent {
                            level = parent;
                        }
                    }
                    Err(_) => {
                        released.await;
                        break;
                    }
                }
            }
        }
    }

    fn add(&self, bytes: usize, is_floor: bool) -> Result<(), Exhausted> {
        let level = &*self.0;
        // Many floors must not give everything to one share.
        let is_granted =
            |used: usize| is_floor && (!level.is_fair || used <= level.bytes_max.saturating_mul(2));
        let fits = |used: usize| {
            let after = used.checked_add(bytes)?;
            (after <= level.bytes_max || used == 0 || is_granted(used)).then_some(after)
        };
        let updated = level
            .used_bytes
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        let used = updated.map_err(|used| Exhausted::Share {
            bytes,
            used,
            max: level.bytes_max,
        })?;
        let Some(parent) = &level.parent else {
            return Ok(());
        };
        let after = used.saturating_add(bytes);
        let is_floor = is_floor || after <= level.floor_bytes;
        let left = parent.limit().saturating_sub(parent.used());
        if level.is_fair && !is_floor && used > 0 && after > left.saturating_sub(bytes) {
            level.release(bytes);
            return Err(Exhausted::Total {
                bytes,
                used: parent.used(),
                max: parent.limit(),
            });
        }
        parent.add(bytes, is_floor).map_err(|error| {
            level.release(bytes);
            match error {
                Exhausted::Share { bytes, used, max } | Exhausted::Total { bytes, used, max } => {
                    Exhausted::Total { bytes, used, max }
                }
            }
        })
    }

    fn give_back(&self, bytes: usize) {
        self.0.release(bytes);
        if let Some(parent) = &self.0.parent {
            parent.give_back(bytes);
        }
    }
}

impl Level {
    fn release(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.released.notify_waiters();
    }
}

/// A number of bytes charged to a budget, released when this is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    bytes: usize,
}

impl Charge {
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Charges more to the same budget; an error changes nothing.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.budget.add_with_eviction(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases the part above so many bytes.
    pub fn shrink_to(&mut self, bytes: usize) {
        let rest = self.bytes.saturating_sub(bytes);
        self.budget.give_back(rest);
        self.bytes -= rest;
    }

    /// Grows like [`Charge::grow`], but only within the free room.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> Result<(), Exhausted> {
        self.budget.add(bytes, false)?;
        self.bytes += bytes;
        Ok(())
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }
}

/// Bytes together with their charge.
struct ChargedBytes {
    bytes: Bytes,
    _charge: Charge,
}

impl AsRef<[u8]> for ChargedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Charge {
    /// Attaches the charge to bytes: it is released when the last part of them is dropped, after sending.
    #[must_use]
    pub fn attach(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(ChargedBytes {
            bytes,
            _charge: self,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// A fair share of a budget for each peer that uses it.
#[derive(Debug)]
pub struct Shares<K> {
    parent: Budget,
    floor_bytes: usize,
    shares: Mutex<HashMap<K, Budget>>,
}

/// The number of peers above which idle peers are forgotten.
const IDLE_PEERS_MAX: usize = 1_024;

impl<K: Eq + Hash> Shares<K> {
    /// Shares of a budget in which each peer may have `floor_bytes` regardless of the others.
    #[must_use]
    pub fn new(parent: Budget, floor_bytes: usize) -> Self {
        Self {
            parent,
            floor_bytes,
            shares: Mutex::default(),
        }
    }

    /// The share of a peer: the same one as long as any part of it is in use.
    #[must_use]
    pub fn for_peer(&self, peer: K) -> Budget {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if shares.len() >= IDLE_PEERS_MAX {
            // A share that a caller holds without using it stays, too.
            shares.retain(|_, share| share.used() > 0 || Arc::strong_count(&share.0) > 1);
        }
        let share = || self.parent.fair_share(self.floor_bytes);
        shares.entry(peer).or_insert_with(share).clone()
    }
}

/// The approximate memory of a decoded message while it waits, including spare room in texts and lists.
#[must_use]
pub fn waiting_bytes<M: prost::Message>(message: &M) -> usize {
    message
        .encoded_len()
        .saturating_mul(2)
        .saturating_add(size_of::<M>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn share_and_total_are_bounded() {
        let parent = Budget::new(100);
        let (first, second) = (parent.share(60, 0), parent.share(60, 0));
        let charge = first.charge(50).unwrap();
        assert_eq!(
            first.charge(11).unwrap_err(),
            Exhausted::Share {
                bytes: 11,
                used: 50,
                max: 60
            }
        );
        let other = second.charge(45).unwrap();
        assert_eq!(
            second.charge(10).unwrap_err(),
            Exhausted::Total {
                bytes: 10,
                used: 95,
                max: 100
            }
        );
        assert_eq!((first.used(), second.used(), parent.used()), (50, 45, 95));
        drop(charge);
        assert_eq!((first.used(), parent.used()), (0, 45));
        drop(other);
        assert_eq!(parent.used(), 0);
    }

    #[test]
    fn fair_share_leaves_equal_room() {
        let parent = Budget::new(120);
        let mut charges = Vec::new();
        let mut had = Vec::new();
        for _ in 0..4 {
            let share = parent.fair_share(0);
            while let Ok(charge) = share.charge(1) {
                charges.push(charge);
            }
            had.push(share.used());
        }
        assert_eq!(had, [60, 30, 15, 7], "each has half of what was left");
        let greedy: Vec<_> = (0..3).map(|_| parent.fair_share(0)).collect();
        charges.clear();
        // Peers that charge in turn have the same amount, and leave as much for one more.
        while greedy
            .iter()
            .map(|share| share.charge(1).map(|charge| charges.push(charge)))
            .fold(false, |any, charged| any | charged.is_ok())
        {}
        let had: Vec<_> = greedy.iter().map(Budget::used).collect();
        assert!(had.iter().all(|bytes| (29..=31).contains(bytes)), "{had:?}");
        let last = parent.fair_share(0);
        assert!(last.charge(10).is_ok());
    }

    #[test]
    fn floor_is_granted_despite_other_use() {
        let parent = Budget::new(100);
        let greedy = parent.share(100, 0);
        let _all = greedy.charge(100).unwrap();
        let modest = parent.share(50, 10);
        let small = modest.charge(10).unwrap();
        assert!(matches!(modest.charge(1), Err(Exhausted::Total { .. })));
        drop(small);
        assert_eq!(parent.used(), 100);
    }

    #[test]
    fn peer_floors_cannot_exhaust_the_budget() {
        let parent = Budget::new(1_000);
        let shares = Shares::new(parent.clone(), 64);
        let charges: Vec<_> = (0..50)
            .map_while(|peer| shares.for_peer(peer).charge(400 >> peer.min(4)).ok())
            .collect();
        assert!(parent.used() > 800, "{}", parent.used());
        for peer in 100..120 {
            let request = shares.for_peer(peer).share(500, 8);
            let small = request.charge(64).unwrap();
            assert!(request.charge(200).is_err());
            drop(small);
        }
        drop(charges);
        // Requests of one peer, each with its floor.
        let one = shares.for_peer(7);
        let charges: Vec<_> = (0..1_000)
            .map_while(|_| one.share(500, 8).charge(8).ok())
            .collect();
        assert!(one.used() > 500 && one.used() <= 1_008, "{}", one.used());
        drop(charges);
        assert_eq!(parent.used(), 0);
    }

    #[test]
    fn charge_is_released_with_last_bytes() {
        let budget = Budget::new(100);
        let mut bytes = budget
            .charge(10)
            .unwrap()
            .attach(Bytes::from_static(b"0123456789"));
        let part = bytes.split_to(4);
        drop(bytes);
        assert_eq!((&*part, budget.used()), (&b"0123"[..], 10));
        drop(part);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn single_item_of_any_size_fits() {
        let parent = Budget::new(100);
        let share = parent.share(10, 0);
        let mut large = share.charge(90).unwrap();
        assert!(share.charge(1).is_err());
        assert!(large.grow(1).is_err());
        assert_eq!(large.bytes(), 90);
        drop(large);
        let mut small = share.charge(5).unwrap();
        small.grow(5).unwrap();
        assert_eq!((small.bytes(), parent.used()), (10, 10));
    }

    #[tokio::test]
    async fn waiter_wakes_when_capacity_is_released() {
        let parent = Budget::new(100);
        let (first, second) = (parent.share(100, 0), parent.share(50, 0));
        let charge = first.charge(90).unwrap();
        let own = second.charge(5).unwrap();
        let waiting = tokio::spawn(async move { second.charge_when_free(48).await.bytes() });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "the whole has no room");
        drop(charge);
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "the share has no room");
        drop(own);
        assert_eq!(waiting.await.unwrap(), 48);
    }

    #[test]
    fn peer_has_one_share_until_idle() {
        let shares = Shares::new(Budget::new(20), 0);
        let charge = shares.for_peer(0).charge(8).unwrap();
        assert!(shares.for_peer(0).charge(3).is_err());
        for peer in 1..=2 * IDLE_PEERS_MAX {
            let _unused = shares.for_peer(peer);
        }
        assert!(shares.shares.lock().unwrap().len() <= IDLE_PEERS_MAX);
        assert!(
            shares.for_peer(0).charge(3).is_err(),
            "what is in use is kept"
        );
        drop(charge);
        assert!(shares.for_peer(0).charge(3).is_ok());
    }

    proptest! {
        /// For any order of charges and drops, the sums agree and no limit is exceeded.
        #[test]
        fn sums_agree(steps in prop::collection::vec((0_usize..3, 1_usize..40, any::<bool>()), 0..64)) {
            let parent = Budget::new(100);
            let shares = [parent.share(60, 0), parent.share(60, 0), parent.share(60, 0)];
            let mut charges: Vec<Vec<Charge>> = vec![Vec::new(), Vec::new(), Vec::new()];
            for (share, bytes, is_charge) in steps {
                if is_charge {
                    charges[share].extend(shares[share].charge(bytes));
                } else {
                    charges[share].pop();
                }
                let mut all = 0;
                for (share, charges) in shares.iter().zip(&charges) {
                    let own: usize = charges.iter().map(Charge::bytes).sum();
                    prop_assert_eq!(share.used(), own);
                    prop_assert!(own <= share.limit());
                    all += own;
                }
                prop_assert_eq!(parent.used(), all);
                prop_assert!(all <= parent.limit());
            }
        }
    }
}
