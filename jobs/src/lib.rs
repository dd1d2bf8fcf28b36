//! The built-in scheduler: services, batch and cron jobs from a file, as an ordinary framework of the v1 API.
//!
//! Entered through [`run`], the daemon, with its [`Flags`]. [`spec`] defines a job, and [`file`](mod@file) reads it;
//! [`core`] decides, [`placement`] selects offers and [`task_info`] builds the messages of launches; `service` executes the
//! decisions, `link` talks to the master, `store` to the disk or to etcd, `http` to clients and `metrics` to Prometheus;
//! `lead` waits until this scheduler leads among several. Invariant: the crate uses only the calls and events of masters
//! that any framework may use.

mod access_flags;
mod cluster;
pub mod core;
pub mod file;
mod flags;
mod health;
mod http;
mod lead;
mod link;
mod metrics;
pub mod placement;
mod run;
mod service;
pub mod spec;
mod store;
pub mod task_info;

pub use flags::Flags;
pub use health::Health;
pub use http::reference;
pub use link::is_failover;
pub use run::{RunEnv, RunError, run};
