//! Operations on reservations and volumes.
//!
//! - `apply`: operations of an ACCEPT, and of operators
//! - `feedback`: reports of agents, and acknowledgements

pub(super) mod apply;
pub(super) mod feedback;
