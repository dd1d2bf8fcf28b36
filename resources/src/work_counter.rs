//! Counts the table entries that a thread visits, for tests that bound the work of an event.
//!
//! Tables whose size grows with the cluster call [`count_entries`]; a test reads [`entries_counted`] before and after. Counts
//! only in debug builds: elsewhere both functions do nothing.

use std::cell::Cell;

thread_local! {
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// Counts entries that the thread visits.
#[inline]
pub fn count_entries(entries: u64) {
    if cfg!(debug_assertions) {
        COUNTED.with(|counted| counted.set(counted.get().wrapping_add(entries)));
    }
}

/// The number of entries that this thread has visited so far.
#[must_use]
pub fn entries_counted() -> u64 {
    COUNTED.with(Cell::get)
}
