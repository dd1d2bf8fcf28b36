//! A whole cluster on one thread: production cores of masters, agents, allocator and job scheduler, unmodified, under a
//! seeded scheduler.
//!
//! Entered through [`Cluster::run`] with a [`Plan`]. Invariant: the same plan gives the same run.
//!
//! - `plan`, `story`, `clock`: which run it is, what happened in it, and what its processes take for the time
//! - `registry`, `network`, `disk`, `machine`, `executors`: what the cores stand on, with its faults
//! - `master`, `outputs`, `agent`: the cores, and what becomes of their outputs
//! - `framework`, `behaviour`, `health_checks`, `calls`, `jobs`, `operators`: who asks for what
//! - `faults`, `cluster`, `rest`: what happens next, and how it comes to rest
//! - `checks/`, `models/`: what must hold
//! - `shrink`: a short story for a long one
//! - `names`: what is counted

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
mod story;

pub use checks::Violation;
pub use cluster::{Cluster, Outcome};
pub use plan::{Feature, Plan};
pub use shrink::shrink;
pub use story::{Counts, Happening};
