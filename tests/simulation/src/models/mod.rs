//! Executable specifications of the documented promises: quota, reservation, reconciliation.
//!
//! Each is as short as its promise, and computes its result from visible data, without the code that it judges.

pub(crate) mod quota;
pub(crate) mod reconciliation;
pub(crate) mod reservation;
