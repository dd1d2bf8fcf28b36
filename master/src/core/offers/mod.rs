//! Offers and inverse offers: made, explained, accepted and taken back.
//!
//! - `accept`: ACCEPT and DECLINE
//! - `explain`: why there was no offer
//! - `inverse`: inverse offers for planned maintenance
//! - `launch`: tasks and task groups of an ACCEPT
//! - `outstanding`: offers, made of what the allocator gives, and taken back
//! - `recovery_mode`: offers wait for known agents after a restart, if there is quota

pub(super) mod accept;
pub(super) mod explain;
pub(super) mod inverse;
pub(super) mod launch;
pub(super) mod outstanding;
mod recovery_mode;
