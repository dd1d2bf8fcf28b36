//! Operations on reservations and volumes.
//!
//! - `apply`: in an ACCEPT, and by operators
//! - `feedback`: what agents tell of them, and who acknowledges

pub(super) mod apply;
pub(super) mod feedback;
