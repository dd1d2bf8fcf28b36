//! Updates about tasks for frameworks, and the history of tasks.
//!
//! - `history`: ended and lost tasks
//! - `reconciliation`: the current state of tasks, on request
//! - `status`: statuses that the master itself creates
//! - `unknown_updates`: updates of tasks that the master does not know

pub(super) mod history;
pub(super) mod reconciliation;
pub(super) mod status;
pub(super) mod unknown_updates;
