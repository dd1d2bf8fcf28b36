//! The state as readers see it: snapshots, sums over them, and events for operators.
//!
//! - `by_framework`: a snapshot by framework
//! - `digest`: sums over an agent's tables
//! - `histories`: completed frameworks, and the memory of all histories
//! - `operator_event`: an event for operators that watch
//! - `readers`: the changes that readers see, and the snapshots that they share
//! - `snapshot`: the state at one moment
//!
//! `by_framework` and `digest` are computed from a view and cached in it for later readers: each knows the other.

pub(super) mod by_framework;
pub(super) mod digest;
pub(super) mod histories;
pub(super) mod operator_event;
pub(super) mod readers;
pub(super) mod snapshot;
