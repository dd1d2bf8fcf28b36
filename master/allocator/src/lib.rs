//! Meseta's allocator: hierarchical weighted DRF, quota, reservations.
//!
//! Entered through [`Allocator`], which is told of agents, frameworks, quota and what becomes of offers, and
//! answers [`Allocator::allocate`] with the offers to make. Pure: no clock, no I/O, no protobuf, and no
//! randomness but a seeded order; every call either works or returns an [`Error`] and changes nothing.
//! Inside, ids are small integers and amounts are integers of a thousandth.

mod accounting;
mod agent_calls;
mod agents;
mod allocator;
mod bits;
mod bundle;
mod class;
mod compose;
mod constraints;
mod cycle;
mod digest;
mod error;
mod explain;
mod filter_index;
mod filters;
mod framework;
mod framework_calls;
mod maintenance;
mod profile;
mod quota;
mod recovery;
mod rescind;
mod resource_calls;
mod rng;
mod roles;
mod slab;
pub mod sorter;
mod spec;
mod view;
mod walk;

pub use allocator::Allocator;
pub use constraints::{
    Constraint, OfferConstraints, PATTERN_BYTES_MAX, Pattern, PatternError, Predicate, Selector,
};
pub use error::Error;
pub use explain::{Blocker, Explanation};
pub use maintenance::{InverseAnswer, InverseOffer};
pub use quota::{Quota, check_quota_tree, guaranteed, quantities};
pub use recovery::Recovery;
pub use rescind::{OfferView, Outstanding};
pub use spec::{
    AgentCapabilities, AgentFacts, AgentSpec, Allocation, Domain, FrameworkCapabilities,
    FrameworkSpec, Options, SorterKind, Unavailability,
};
pub use view::{RoleGauges, RoleView, Shares};
