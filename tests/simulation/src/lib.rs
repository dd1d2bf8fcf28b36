//! A whole cluster on one thread: production cores of masters, agents, allocator and job scheduler, unmodified, under a
//! seeded scheduler.
//!
//! Entered through [`Cluster::run`] with a [`Plan`]. Invariant: the same plan gives the same run.
//!
//! - `plan`, `story`, `clock`: the parameters of a run, its events, and the time of its processes
//! - `registry`, `network`, `disk`, `machine`, `executors`: the environment of the cores, with its faults
//! - `master`, `outputs`, `agent`: the cores, and the effects of their outputs
//! - `framework`, `behaviour`, `health_checks`, `calls`, `jobs`, `operators`: the clients and their requests
//! - `faults`, `cluster`, `rest`, `silence`: the next event, and the way to rest
//! - `checks/`, `models/`: the invariants
//! - `shrink`: a short story for a long one
//! - `names`: the counted events

mod agent;
mod behaviour;
mod calls;
mod checks;
mod clock;
mod cluster;
mod disk;
mod executors;
mod faults;
mod framework;
mod health_checks;
mod jobs;
mod machine;
mod master;
mod models;
mod names;
mod network;
mod operators;
mod outputs;
mod plan;
mod registry;
mod rest;
mod shrink;
mod silence;
mod story;

pub use checks::Violation;
pub use cluster::{Cluster, Outcome};
pub use plan::{Feature, Plan};
pub use shrink::shrink;
pub use story::{Counts, Happening};
