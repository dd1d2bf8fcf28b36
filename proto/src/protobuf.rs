//! The binary encoding, with `required` enforced as in Mesos.

use crate::schema::{self, WireMessage};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("Failed to parse body into {message} protobuf")]
    Decode {
        message: &'static str,
        #[source]
        source: prost::DecodeError,
    },
    #[error("Failed to parse body into {message} protobuf: Missing required fields: {}", paths.join(", "))]
    Missing {
        message: &'static str,
        paths: Vec<String>,
    },
}

/// Reads one message. Nesting beyond 100 levels is an error.
pub fn from_slice<T: WireMessage>(body: &[u8]) -> Result<T, Error> {
    let message = T::SCHEMA.short_name();
    let value = T::decode(body).map_err(|source| Error::Decode { message, source })?;
    let paths = missing_required::<T>(body);
    if paths.is_empty() {
        Ok(value)
    } else {
        Err(Error::Missing { message, paths })
    }
}

/// The required fields that an encoded message lacks; the bytes must have been decoded successfully before.
#[must_use]
pub fn missing_required<T: WireMessage>(body: &[u8]) -> Vec<String> {
    schema::missing_in_wire(T::SCHEMA, body)
}

#[must_use]
pub fn to_vec<T: WireMessage>(message: &T) -> Vec<u8> {
    message.encode_to_vec()
}
