//! The part of etcd's v3 API that a master needs: transactions, ranges, leases and watches over gRPC.
//!
//! Entered through [`Client`]. Messages are compiled from `proto/etcd.proto`; what a transaction is made of is built by
//! the functions of [`operation`]. Invariant: every call ends within its time, and an error says whether the call may
//! have taken effect.

mod client;
mod error;
pub mod operation;
mod settings;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

pub use client::Client;
pub use error::Error;
pub use settings::{Settings, SettingsError};
pub use watch::{Change, Watch};

/// Messages and clients, named as etcd names them.
#[allow(
    clippy::all,
    clippy::pedantic,
    missing_docs,
    unreachable_pub,
    reason = "generated code"
)]
pub mod api {
    tonic::include_proto!("etcdserverpb");
}
