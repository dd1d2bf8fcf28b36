//! How much of what executors send may be in the agent at once, in bytes.
//!
//! A call takes room before its body is read, and an update takes room until it is acknowledged. Where there
//! is none, the call is not read, or not answered, until there is: nothing that an executor was promised to
//! be told is dropped. Invariant: what is small waits only for room of its own executor, whatever others do.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What one executor may have there: the largest call, and some small ones.
const PER_EXECUTOR_BYTES: u32 = 8 * 1024 * 1024;
/// What all may have there of calls that are not small.
const LARGE_BYTES: u32 = 24 * 1024 * 1024;
/// What is small.
const SMALL_BYTES_MAX: u32 = 64 * 1024;
/// Room is counted in this unit.
const UNIT_BYTES: u32 = 256;
/// Executors that are remembered before those that have nothing there are forgotten.
const LANES_KEPT: usize = 1024;

/// Room that is taken, until it is dropped.
#[derive(Default)]
pub struct Room {
    taken: Vec<OwnedSemaphorePermit>,
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").finish_non_exhaustive()
    }
}

/// The room that there is, by whose it is.
#[derive(Debug)]
pub(crate) struct Lanes<K> {
    large: Arc<Semaphore>,
    lanes: Mutex<HashMap<K, Weak<Semaphore>>>,
}

impl<K> Default for Lanes<K> {
    fn default() -> Self {
        Self {
            large: Arc::new(Semaphore::new(units(LARGE_BYTES))),
            lanes: Mutex::default(),
        }
    }
}

impl<K: Clone + Eq + Hash> Lanes<K> {
    /// Waits for room. What is larger than a lane takes all of it.
    pub(crate) async fn take(&self, key: &K, bytes: usize) -> Room {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let bytes = bytes.min(PER_EXECUTOR_BYTES);
        let mut room = Room::default();
        room.take(self.lane(key), bytes).await;
        if bytes > SMALL_BYTES_MAX {
            room.take(self.large.clone(), bytes).await;
        }
        room
    }

    fn lane(&self, key: &K) -> Arc<Semaphore> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lane) = lanes.get(key).and_then(Weak::upgrade) {
            return lane;
        }
        if lanes.len() >= LANES_KEPT {
            lanes.retain(|_, lane| lane.strong_count() > 0);
        }
        let lane = Arc::new(Semaphore::new(units(PER_EXECUTOR_BYTES)));
        lanes.insert(key.clone(), Arc::downgrade(&lane));
        lane
    }
}

impl Room {
    async fn take(&mut self, from: Arc<Semaphore>, bytes: u32) {
        // A semaphore that is never closed always gives.
        if let Ok(permit) = from.acquire_many_owned(bytes.div_ceil(UNIT_BYTES)).await {
            self.taken.push(permit);
        }
    }
}

fn units(bytes: u32) -> usize {
    usize::try_from(bytes / UNIT_BYTES).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    /// Whether there is room at once.
    async fn has_room(lanes: &Lanes<&'static str>, key: &'static str, bytes: usize) -> bool {
        let taking = lanes.take(&key, bytes);
        tokio::select! {
            biased;
            _ = taking => true,
            () = std::future::ready(()) => false,
        }
    }

    #[tokio::test]
    async fn an_executor_waits_for_itself_and_not_for_others() {
        let lanes = Lanes::default();
        let first = lanes.take(&"a", 6 * MIB).await;
        assert!(!has_room(&lanes, "a", 6 * MIB).await);
        assert!(has_room(&lanes, "a", MIB).await);
        assert!(has_room(&lanes, "b", 6 * MIB).await);
        drop(first);
        assert!(has_room(&lanes, "a", 6 * MIB).await);
        assert!(
            has_room(&lanes, "a", usize::MAX).await,
            "takes a whole lane"
        );
    }

    #[tokio::test]
    async fn large_calls_have_a_limit_together_and_small_ones_pass() {
        let lanes = Lanes::default();
        let mut taken = Vec::new();
        for key in ["a", "b", "c", "d"] {
            taken.push(lanes.take(&key, 6 * MIB).await);
        }
        assert!(!has_room(&lanes, "e", 6 * MIB).await);
        assert!(has_room(&lanes, "e", 64 * 1024).await);
        taken.pop();
        assert!(has_room(&lanes, "e", 6 * MIB).await);
    }

    #[tokio::test]
    async fn executors_that_are_gone_are_forgotten() {
        let lanes = Lanes::<usize>::default();
        for key in 0..2 * LANES_KEPT {
            drop(lanes.take(&key, 1).await);
        }
        assert!(lanes.lanes.lock().unwrap().len() <= LANES_KEPT);
    }
}
