//! Offers and inverse offers: made, explained, accepted and rescinded.
//!
//! - `accept`: ACCEPT and DECLINE
//! - `explain`: the reason for a missing offer
//! - `inverse`: inverse offers for planned maintenance
//! - `launch`: tasks and task groups of an ACCEPT
//! - `outstanding`: offers created from the allocator's allocations, and rescinded
//! - `recovery_mode`: with quota, offers wait for known agents after a restart

pub(super) mod accept;
pub(super) mod explain;
pub(super) mod inverse;
pub(super) mod launch;
pub(super) mod outstanding;
mod recovery_mode;
