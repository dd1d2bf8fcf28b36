//! What the core keeps of agents, frameworks, tasks and operations, and what readers see of it.
//!
//! Values and tables only: nothing here knows [`super::MasterCore`].
//!
//! - `agent`: an agent as the master keeps it
//! - `by_framework`: a snapshot by framework
//! - `cached_view_map`: a map with a cached view of each entry
//! - `constraints`: a framework's offer constraints
//! - `counters`: what the core counts
//! - `digest`: what an agent's tables amount to
//! - `framework`: a framework as the master keeps it
//! - `framework_counters`: what is counted of each framework
//! - `operation`: an operation until its end is acknowledged
//! - `persisted`: what the registry keeps
//! - `snapshot`: the state at one moment
//! - `task`: tasks and executors

pub(super) mod agent;
pub(super) mod by_framework;
pub(super) mod cached_view_map;
pub(super) mod constraints;
pub(super) mod counters;
pub(super) mod digest;
pub(super) mod framework;
pub(super) mod framework_counters;
pub(super) mod operation;
pub(super) mod persisted;
pub(super) mod snapshot;
pub(super) mod task;
