//! Executable specifications of what the documents promise: quota, reservation, reconciliation.
//!
//! Each is as short as its promise, and computes what it needs from what is to be seen, without the code that it judges.

pub(crate) mod quota;
pub(crate) mod reconciliation;
pub(crate) mod reservation;
