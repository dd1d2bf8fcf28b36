//! What readers see of the state: snapshots, sums over them, and events for operators.
//!
//! - `by_framework`: a snapshot by framework
//! - `digest`: what an agent's tables amount to
//! - `operator_event`: what operators who watch are told of one change
//! - `snapshot`: the state at one moment
//!
//! `by_framework` and `digest` are made of a view and kept in it for the readers that follow: each knows the other.

pub(super) mod by_framework;
pub(super) mod digest;
pub(super) mod operator_event;
pub(super) mod snapshot;
