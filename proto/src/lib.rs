//! Meseta's wire: messages, the Mesos JSON dialect, RecordIO.
//!
//! [`mesos`] and [`meseta`] are the generated messages; [`media`] reads and writes them, in [`json`] or [`protobuf`], framed
//! by [`recordio`]; [`convert`] and [`v0`] stand between them and the vocabulary of `meseta-resources`. Invariant: a message
//! that was read through `media` or [`grpc`] has every required field.

pub mod body_reads;
pub mod budget;
pub mod convert;
pub mod epoch;
pub mod grpc;
mod invalid;
pub mod json;
pub mod leader;
pub mod media;
pub mod protobuf;
pub mod reconciler;
pub mod recordio;
pub mod schema;
pub mod task_parts;
pub mod v0;

#[expect(clippy::all, reason = "generated from the .proto files")]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/modules.rs"));
}

/// The compiled `.proto` files, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The version of Mesos whose interface both daemons implement, and which they report as their own. Digits and dots only:
/// clients parse it, and choose their features by it.
pub const INTERFACE_VERSION: &str = "1.12.0";

pub use generated::{google, meseta, mesos};
pub use invalid::Invalid;
pub use schema::WireMessage;
