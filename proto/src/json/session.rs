//! The record of missing required fields while one body is read.
//!
//! A missing field must not end the reading: Mesos reports faults of conversion first, and then all missing fields. So an
//! incomplete message records that here and reading goes on. Outside [`within`], when serde reads a message on its own, a
//! missing field is an error at once.

use std::cell::{Cell, RefCell};

use serde::de::Error;

use crate::budget::{Charge, Exhausted};

#[derive(Copy, Clone, Eq, PartialEq)]
enum State {
    Outside,
    Complete,
    Missing,
}

thread_local! {
    static STATE: Cell<State> = const { Cell::new(State::Outside) };
    /// The bytes that elements of lists may take before the next charge; unlimited where nothing is charged.
    static LEFT_BYTES: Cell<usize> = const { Cell::new(usize::MAX) };
    static CHARGED: RefCell<Option<Result<Charge, Exhausted>>> = const { RefCell::new(None) };
}

/// The number of bytes charged at once, so that most elements cost an addition.
const STEP_BYTES: usize = 64 * 1024;

/// Runs `read`, and returns whether a required field was missing.
pub(crate) fn within<T>(
    read: impl FnOnce() -> Result<T, serde_json::Error>,
) -> (Result<T, serde_json::Error>, bool) {
    /// Restores the state also when `read` panics.
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

/// Records a missing field. False if no caller checks later: then the reader has to fail now.
pub(crate) fn note_missing() -> bool {
    if STATE.get() == State::Outside {
        return false;
    }
    STATE.set(State::Missing);
    true
}

/// Runs `read`, and charges the growth of lists; the reading ends when there is no more room.
pub(crate) fn charged<T>(
    charge: Charge,
    read: impl FnOnce() -> T,
) -> (T, Result<Charge, Exhausted>) {
    /// Restores the charge also when `read` panics.
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            LEFT_BYTES.set(usize::MAX);
            CHARGED.set(None);
        }
    }
    let base = charge.bytes();
    let _restore = Restore;
    LEFT_BYTES.set(0);
    CHARGED.set(Some(Ok(charge)));
    let result = read();
    let charged = CHARGED.take().unwrap_or(Err(Exhausted::Share {
        bytes: 0,
        used: base,
        max: base,
    }));
    (result, charged)
}

/// Counts an element of a list or a map, before its insertion.
pub(crate) fn add_element<E: Error>(bytes: usize) -> Result<(), E> {
    let left = LEFT_BYTES.get();
    if let Some(left) = left.checked_sub(bytes) {
        LEFT_BYTES.set(left);
        return Ok(());
    }
    CHARGED.with_borrow_mut(|charged| {
        let Some(current) = charged else {
            return Ok(());
        };
        let more = bytes.max(STEP_BYTES);
        let grown = match current {
            Ok(charge) => charge.grow(more),
            Err(exhausted) => Err(*exhausted),
        };
        match grown {
            Ok(()) => {
                LEFT_BYTES.set(left.saturating_add(more).saturating_sub(bytes));
                Ok(())
            }
            Err(exhausted) => {
                *charged = Some(Err(exhausted));
                Err(E::custom(exhausted))
            }
        }
    })
}
