//! What frameworks are told of tasks, and what is remembered of them.
//!
//! - `history`: tasks that are over or lost
//! - `reconciliation`: the truth about tasks, on demand
//! - `status`: statuses that the master itself makes
//! - `unknown_updates`: updates of tasks that the master does not know

pub(super) mod history;
pub(super) mod reconciliation;
pub(super) mod status;
pub(super) mod unknown_updates;
