//! Meseta's allocator: hierarchical weighted DRF, quota, reservations.
//!
//! Callers report agents, frameworks, quota and the use of offers to [`Allocator`]; [`Allocator::allocate`] returns
//! the offers to make. The crate is pure: no clock, no I/O, no protobuf, and no randomness except a seeded order.
//! Every call either succeeds, or returns an [`Error`] and changes nothing. Internally, ids are small integers and
//! amounts are integers in thousandths.

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
