//! The state that daemons of a kind share in etcd: the leader, and the records that the leader writes.
//!
//! [`Client`] has the needed part of etcd's v3 API: transactions, ranges, leases and watches over gRPC. Messages are compiled
//! from `proto/etcd.proto`; the functions of [`operation`] build the parts of a transaction. [`leadership`] elects one of
//! several daemons, [`store`] keeps its records, [`EtcdFlags`] are its flags. Invariants: every call ends within its time,
//! and an error says whether the call may have taken effect; nothing here knows the contents of a record.

mod client;
mod error;
mod flags;
pub mod leadership;
pub mod operation;
mod reloaded;
mod settings;
pub mod store;
#[cfg(feature = "testing")]
pub mod testing;
mod watch;

pub use client::Client;
pub use error::Error;
pub use flags::EtcdFlags;
pub use reloaded::Reloaded;
pub use settings::{Settings, SettingsError};
pub use watch::{Change, Watch};

/// The messages and clients, with the names that etcd gives them.
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
