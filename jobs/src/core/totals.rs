//! What has happened since the scheduler started, counted.

use std::time::Duration;

/// Counts since the scheduler started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Tasks of which ACCEPT has left.
    pub launched: u64,
    /// Tasks that came to run.
    pub started: u64,
    pub succeeded: u64,
    /// By themselves, or because their run took too long.
    pub failed: u64,
    pub lost: u64,
    /// Tasks that ended or were lost unasked, and that are started again.
    pub restarts: u64,
    /// Tasks that were killed because nothing here knew them.
    pub strays_killed: u64,
    /// Offers that were given back because they could not be read.
    pub unreadable_offers: u64,
    /// How long launched tasks have waited.
    pub queue: Queue,
}

/// The upper bounds of queue times that are counted apart.
pub const QUEUE_BOUNDS: [Duration; 10] = [
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(300),
    Duration::from_secs(1_800),
    Duration::from_secs(7_200),
];

/// Queue times, by how long they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// How many were up to each of [`QUEUE_BOUNDS`] and above the one before.
    pub counts: [u64; QUEUE_BOUNDS.len()],
    /// How many were longer than all of them.
    pub beyond: u64,
    pub sum: Duration,
}

impl Queue {
    pub fn add(&mut self, waited: Duration) {
        let bucket = QUEUE_BOUNDS.iter().position(|bound| waited <= *bound);
        match bucket.and_then(|bucket| self.counts.get_mut(bucket)) {
            Some(count) => *count += 1,
            None => self.beyond += 1,
        }
        self.sum = self.sum.saturating_add(waited);
    }
}
