//! A whole cluster on one thread: the cores of a master and of agents, unmodified, under a seeded scheduler.
//!
//! Entered through [`Cluster::run`]. `agent` is one agent with its disk and machine, `framework` a scheduler that is
//! played, `cluster` the network and what happens next. Invariant: the same seed gives the same run.

mod agent;
mod cluster;
mod framework;

pub use cluster::Cluster;
