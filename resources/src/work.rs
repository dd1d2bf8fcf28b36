//! How many entries of tables a thread has looked at, for tests that hold work to what an event concerns.
//!
//! Tables of what grows with the cluster call [`look`]; a test reads [`looked`] before and after. Counted in debug
//! builds only: elsewhere both are nothing.

use std::cell::Cell;

thread_local! {
    static LOOKED: Cell<u64> = const { Cell::new(0) };
}

/// Counts entries that are looked at.
#[inline]
pub fn look(entries: u64) {
    if cfg!(debug_assertions) {
        LOOKED.with(|looked| looked.set(looked.get().wrapping_add(entries)));
    }
}

/// What this thread has looked at so far.
#[must_use]
pub fn looked() -> u64 {
    LOOKED.with(Cell::get)
}
