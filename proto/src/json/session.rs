//! Whether a required field was missing while one body was read.
//!
//! A missing field must not end the reading: Mesos reports faults of conversion first, and then all
//! that is missing. So a message that lacks something says so here and reading goes on. Outside
//! [`within`], when serde reads a message on its own, it is an error at once.

use std::cell::Cell;

#[derive(Copy, Clone, Eq, PartialEq)]
enum State {
    Outside,
    Complete,
    Missing,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::Outside) };
}

/// Runs `read`, and tells whether anything required was missing.
pub(crate) fn within<T>(
    read: impl FnOnce() -> Result<T, serde_json::Error>,
) -> (Result<T, serde_json::Error>, bool) {
    /// Puts the state back also when `read` panics.
    struct Restore(State);
    impl Drop for Restore {
        fn drop(&mut self) {
            STATE.set(self.0);
        }
    }
    let _restore = Restore(STATE.replace(State::Complete));
    let result = read();
    (result, STATE.get() == State::Missing)
}

/// False when nobody asks later: the caller has to fail now.
pub(crate) fn note_missing() -> bool {
    if STATE.get() == State::Outside {
        return false;
    }
    STATE.set(State::Missing);
    true
}
