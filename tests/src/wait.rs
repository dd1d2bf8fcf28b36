//! Waiting for what another process does: a condition looked at again until a deadline.

use std::time::{Duration, Instant};

/// Pause between two looks.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Waits until `look` gives something; panics with `what` when that takes longer than `limit`.
pub fn eventually<T>(what: &str, limit: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Waits until `condition` holds; whether it did within `limit`.
pub fn holds(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    loop {
        if condition() {
            return true;
        }
        if start.elapsed() >= limit {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
