//! Meseta's master daemon.
//!
//! `core` decides, `registry` stores, `service` owns both and carries out the effects; `http` and `grpc` serve the
//! APIs. Entered through [`run`] with [`Flags`]. Invariant: a crash loses no registry state that a client or agent
//! has learned of.

mod access_flags;
mod budgets;
mod buffered_response;
mod call_rate_limit;
mod chunked_response;
mod closed;
mod context;
pub mod core;
mod events;
mod files;
mod flags;
mod grpc;
mod handle;
mod health;
mod history;
mod http;
mod lead;
mod measures;
mod metrics;
mod operation_outcomes;
mod operator;
mod operator_messages;
mod permission;
pub mod registry;
mod run;
mod service;
mod stream_event;
mod subscription_rate;
mod view_cache;
mod view_filter;
mod views;
mod watchers;
mod whitelist;

pub use access_flags::AccessFlags;
pub use flags::Flags;
pub use health::Health;
pub use meseta_etcd::EtcdFlags;
pub use meseta_etcd::leadership::STALE_HEADER;
pub use run::{RunEnv, RunError, run};
