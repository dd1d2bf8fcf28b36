//! Request bodies that are being read into a budget, and the choice of a body to evict for another.
//!
//! [`Budget::read`] begins a read. Invariants: only stalled requests are evicted, those of the largest peer first, and never
//! for a larger peer; the charge of an evicted request is released at once.
//!
//! This file and `budget` depend on each other: a body holds a charge of its budget, and a full budget evicts bodies.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::budget::{Budget, Charge, Exhausted};

/// The time without progress after which a request may be evicted.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);
/// The number of bytes that must arrive within the timeout; otherwise the request counts as stalled.
const PROGRESS_BYTES: usize = 16 * 1024;

/// The reads in progress on one root budget. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodyReads(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    under_way: BTreeMap<u64, ReadInProgress>,
}

#[derive(Debug)]
struct ReadInProgress {
    charge: Charge,
    /// The time of the last progress.
    last_progress: Instant,
    /// The number of bytes received since then.
    bytes_since_progress: usize,
    revoked: CancellationToken,
}

impl Table {
    /// Evicts a stalled request, but not for a peer that uses more than the request's own peer.
    fn evict_stalled(&mut self, peer: &Budget, now: Instant) -> bool {
        let own = peer.used();
        let still = self.under_way.iter().filter_map(|(id, one)| {
            let used = one.charge.budget().peer_budget().used();
            let is_still = now.saturating_duration_since(one.last_progress) >= STALL_TIMEOUT;
            let is_one = is_still && one.charge.bytes() > 0 && used >= own;
            is_one.then_some((used, Reverse(one.last_progress), *id))
        });
        let Some((_, _, id)) = still.max() else {
            return false;
        };
        let Some(one) = self.under_way.remove(&id) else {
            return false;
        };
        one.revoked.cancel();
        true
    }

    fn grow(&mut self, id: u64, bytes: usize, now: Instant) -> Option<Result<(), Exhausted>> {
        // A request is not a candidate for eviction while it grows.
        let mut one = self.under_way.remove(&id)?;
        let grown = loop {
            match one.charge.try_grow(bytes) {
                Err(Exhausted::Total { .. })
                    if self.evict_stalled(one.charge.budget().peer_budget(), now) => {}
                grown => break grown,
            }
        };
        if grown.is_ok() {
            one.bytes_since_progress = one.bytes_since_progress.saturating_add(bytes);
            if one.bytes_since_progress >= PROGRESS_BYTES {
                one.bytes_since_progress = 0;
                one.last_progress = now;
            }
        }
        self.under_way.insert(id, one);
        Some(grown)
    }
}

impl BodyReads {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evicts a stalled request; returns whether there was one. Its room is free now.
    pub(crate) fn evict_stalled(&self, peer: &Budget) -> bool {
        self.table().evict_stalled(peer, Instant::now())
    }
}

impl Budget {
    /// Begins reading a request, charged for each received part.
    ///
    /// # Errors
    /// When the budget has no room at all.
    pub fn read(&self) -> Result<BodyRead, Exhausted> {
        let charge = self.charge(0)?;
        let revoked = CancellationToken::new();
        let body_reads = self.body_reads().clone();
        let mut table = body_reads.table();
        table.next += 1;
        let id = table.next;
        let under_way = ReadInProgress {
            charge,
            last_progress: Instant::now(),
            bytes_since_progress: 0,
            revoked: revoked.clone(),
        };
        table.under_way.insert(id, under_way);
        drop(table);
        Ok(BodyRead {
            budget: self.clone(),
            id,
            revoked,
        })
    }
}

/// A request that is being read, until this is dropped or the request is evicted.
#[derive(Debug)]
pub struct BodyRead {
    budget: Budget,
    id: u64,
    revoked: CancellationToken,
}

impl BodyRead {
    /// Records that more bytes have arrived.
    ///
    /// # Errors
    /// When there is no room for them, or the request was evicted.
    pub fn grow(&self, bytes: usize) -> Result<(), Exhausted> {
        let grown = self
            .budget
            .body_reads()
            .table()
            .grow(self.id, bytes, Instant::now());
        let peer = self.budget.peer_budget();
        grown.unwrap_or(Err(Exhausted::Total {
            bytes,
            used: peer.used(),
            max: peer.limit(),
        }))
    }

    /// The token that is cancelled once the request is evicted.
    #[must_use]
    pub fn revoked(&self) -> &CancellationToken {
        &self.revoked
    }

    /// Ends a complete read: the body is no longer a candidate for eviction. `None` if it was evicted.
    #[must_use]
    pub fn finish(self) -> Option<Charge> {
        self.take()
    }

    fn take(&self) -> Option<Charge> {
        let taken = self.budget.body_reads().table().under_way.remove(&self.id);
        taken.map(|one| one.charge)
    }
}

impl Drop for BodyRead {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Shares;

    const MIB: usize = 1 << 20;

    /// A whole of 80 MiB, of which each peer may have a part.
    fn bodies() -> (Budget, Shares<&'static str>) {
        let whole = Budget::new(80 * MIB);
        (whole.clone(), Shares::new(whole, 64 * 1024))
    }

    fn request(shares: &Shares<&'static str>, peer: &'static str) -> Budget {
        let all = shares.for_peer(peer);
        all.share(all.limit(), 0)
    }

    #[tokio::test(start_paused = true)]
    async fn stalled_requests_yield_to_same_peer() {
        let (whole, shares) = bodies();
        let unfinished: Vec<_> = (0..90)
            .map(|_| request(&shares, "user 1000").read().unwrap())
            .collect();
        let had = unfinished
            .iter()
            .filter(|one| one.grow(MIB / 2).is_ok())
            .count();
        assert_eq!(had, 80, "half of all room");
        // Another peer has its share at once.
        let other = request(&shares, "user 0").read().unwrap();
        other.grow(20 * MIB).unwrap();
        drop(other);
        let own = request(&shares, "user 1000").read().unwrap();
        assert!(own.grow(MIB).is_err(), "nothing stands still yet");
        tokio::time::advance(STALL_TIMEOUT).await;
        own.grow(MIB).unwrap();
        let revoked = |one: &&BodyRead| one.revoked().is_cancelled();
        assert_eq!(unfinished.iter().filter(revoked).count(), 2);
        assert!(request(&shares, "user 1000").charge(MIB).is_ok());
        drop((unfinished, own));
        assert_eq!(whole.used(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn eviction_spares_active_and_smaller_peers() {
        let (whole, shares) = bodies();
        let [going, complete, small] = ["a", "a", "b"].map(|peer| request(&shares, peer));
        let [going, complete, small] = [going, complete, small].map(|one| one.read().unwrap());
        going.grow(18 * MIB).unwrap();
        complete.grow(20 * MIB).unwrap();
        small.grow(MIB).unwrap();
        let complete = complete.finish().unwrap();
        assert_eq!(complete.bytes(), 20 * MIB);
        for _ in 0..4 {
            tokio::time::advance(STALL_TIMEOUT / 2).await;
            going.grow(PROGRESS_BYTES).unwrap();
        }
        let large = request(&shares, "a");
        assert!(large.charge(10 * MIB).is_err());
        assert!(!going.revoked().is_cancelled());
        assert!(
            !small.revoked().is_cancelled(),
            "its peer has less than the one that asks"
        );
        // A request that trickles counts as stalled.
        tokio::time::advance(STALL_TIMEOUT / 2).await;
        going.grow(1).unwrap();
        tokio::time::advance(STALL_TIMEOUT / 2).await;
        large.charge(10 * MIB).unwrap();
        assert!(going.revoked().is_cancelled() && going.grow(1).is_err());
        assert!(going.finish().is_none());
        drop((complete, small));
        assert_eq!(whole.used(), 0);
    }
}
