//! The scheduler in the box: services, batch and cron jobs from a file, as an ordinary framework of the v1 API.
//!
//! Entered through [`run`], the daemon, with its [`Flags`]. [`spec`] is what a job is, which [`file`](mod@file) reads;
//! [`core`] decides, [`placement`] says where tasks go and [`task_info`] what is launched there; `service` carries out
//! what was decided, `link` speaks to the master, `store` to the disk or to etcd, `http` to clients and `metrics` to
//! Prometheus; `lead` waits until this scheduler is the one of several that leads. Invariant: nothing here
//! knows a master or an agent but by what any framework may send and see.

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
