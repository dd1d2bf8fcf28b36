//! Faults in the system calls of a real agent, without a hook in the product.
//!
//! ```text
//! injector ◄── listener of a seccomp filter ── agent, and whatever it starts
//!     │ each call of the agent's own threads: Site (call, kind of file), then Point (site, its ordinal)
//!     └► plan: let it be made, end the agent just before or after it, or answer it with an error;
//!              of a sync: let it be made later
//! ```
//! The filter ([`filter`]) is set by a program that then executes the agent, so that it is there from the first
//! call on. Processes that the agent starts inherit it; their calls are let through at once. [`life`] is what an
//! agent lives through once for each point, [`oracle`] what must be so afterwards, [`sweep`] the order of the points.

pub mod calls;
pub mod filter;
pub mod injector;
pub mod ledger;
pub mod life;
pub mod oracle;
pub mod sweep;
