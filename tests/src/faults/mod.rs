//! Faults in the system calls of a real agent, without a hook in the product.
//!
//! ```text
//! injector ◄── listener of a seccomp filter ── agent, and its child processes
//!    │  each call of the agent's own threads: Site (call, kind of file), then Point (site, its ordinal)
//!    └► plan: permit it, end the agent just before or after it, or answer it with an error; delay a sync
//! ```
//!
//! The filter ([`filter`]) is set by a program that then executes the agent, so that it is there from the first call on.
//! Processes that the agent starts inherit it; their calls pass at once. [`life`] plays the life of an agent for each
//! point, [`oracle`] checks the state afterwards, [`sweep`] orders the points.

pub mod calls;
pub mod filter;
pub mod injector;
pub mod ledger;
pub mod life;
pub mod oracle;
pub mod sweep;
