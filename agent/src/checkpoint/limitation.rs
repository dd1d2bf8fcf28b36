//! A limit that ended a container, as bytes with a checksum.

use std::io;

use meseta_proto::mesos::v1::Resource;
use meseta_proto::mesos::v1::task_status::Reason;
use prost::Message as _;

use super::frame;

/// A limit that ended a container.
#[derive(Clone, Debug, PartialEq)]
pub struct Limitation {
    /// The reason, as in status updates to frameworks.
    pub reason: Reason,
    /// The message with the numbers.
    pub message: String,
    /// The usage beyond the limit, as far as it is known.
    pub resources: Vec<Resource>,
}

/// The limitation as a message on disk.
#[derive(Clone, PartialEq, prost::Message)]
struct LimitationRecord {
    /// The reason, as in status updates to frameworks.
    #[prost(enumeration = "Reason", tag = "1")]
    reason: i32,
    #[prost(string, tag = "2")]
    message: String,
    /// The usage beyond the limit.
    #[prost(message, repeated, tag = "3")]
    resources: Vec<Resource>,
}

/// Encodes the limitation as bytes.
pub(crate) fn encode_limitation(limitation: &Limitation) -> io::Result<Vec<u8>> {
    let record = LimitationRecord {
        reason: limitation.reason.into(),
        message: limitation.message.clone(),
        resources: limitation.resources.clone(),
    };
    frame::encode_file(&record.encode_to_vec()).map_err(io::Error::other)
}

/// Decodes the limitation, if the bytes are undamaged.
pub(crate) fn decode_limitation(bytes: &[u8]) -> Option<Limitation> {
    let record = LimitationRecord::decode(frame::decode_file(bytes).ok()?).ok()?;
    Some(Limitation {
        reason: Reason::try_from(record.reason).ok()?,
        message: record.message,
        resources: record.resources,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limitation_round_trips_and_rejects_damage() {
        let limitation = Limitation {
            reason: Reason::ContainerLimitationDisk,
            message: "Disk usage (2MB) exceeds quota (1MB)".to_owned(),
            resources: vec![Resource::default()],
        };
        let bytes = encode_limitation(&limitation).expect("short enough");
        assert_eq!(decode_limitation(&bytes), Some(limitation));
        for at in 0..bytes.len() {
            assert_eq!(decode_limitation(&bytes[..at]), None, "cut at {at}");
        }
    }
}
