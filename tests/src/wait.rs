//! Waits for other processes: a condition checked repeatedly until a deadline.

use std::time::{Duration, Instant};

/// The pause between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Waits until `probe` returns a value; panics with `what` when that takes longer than `limit`. However long this process
/// stands still, the last look begins after the limit.
pub fn eventually<T>(what: &str, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        let is_last = start.elapsed() >= limit;
        if let Some(found) = probe() {
            return found;
        }
        assert!(!is_last, "not within {limit:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Waits until `condition` holds, with a last check as in [`eventually`], and returns whether it did within `limit`.
pub fn holds(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        let is_last = start.elapsed() >= limit;
        if condition() {
            return true;
        }
        if is_last {
            return false;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}
