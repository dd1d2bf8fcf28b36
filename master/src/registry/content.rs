//! A checksum over all records of a registry, updated with each write and compared at opening.
//!
//! The store's own checksums show damaged pages; this one shows missing records. Invariant: the checksum depends on
//! the records alone, not on their order, and it distinguishes a registry with the last durable records from any
//! other.

use prost::Message;

/// The number of records, and the sum of their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) records: u64,
    sum: u64,
}

/// The stored form of the checksum.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct StoredContent {
    #[prost(uint64, tag = "1")]
    records: u64,
    #[prost(fixed64, tag = "2")]
    sum: u64,
}

impl Content {
    pub(super) fn add(&mut self, key: &str, value: &[u8]) {
        self.records = self.records.wrapping_add(1);
        self.sum = self.sum.wrapping_add(known_by(key, value));
    }

    pub(super) fn remove(&mut self, key: &str, value: &[u8]) {
        self.records = self.records.wrapping_sub(1);
        self.sum = self.sum.wrapping_sub(known_by(key, value));
    }

    pub(super) fn stored(self) -> StoredContent {
        StoredContent {
            records: self.records,
            sum: self.sum,
        }
    }

    pub(super) fn from_stored(stored: StoredContent) -> Self {
        Self {
            records: stored.records,
            sum: stored.sum,
        }
    }
}

/// A digest of a record: FNV-1a over its length, its key and its value, mixed so that sums of similar records differ.
/// Stored on disk, so it must never change; protects against accidents, not against attackers, who could write any
/// registry.
fn known_by(key: &str, value: &[u8]) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let length = (key.len() as u64).to_le_bytes();
    let bytes = length.iter().chain(key.as_bytes()).chain(value);
    let hash = bytes.fold(BASIS, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    });
    let mixed = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_records(records: &[(&str, &str)]) -> Content {
        let mut content = Content::default();
        for (key, value) in records {
            content.add(key, value.as_bytes());
        }
        content
    }

    #[test]
    fn digest_ignores_record_order() {
        let all = from_records(&[("a", "1"), ("b", "2"), ("c", "")]);
        assert_eq!(from_records(&[("c", ""), ("a", "1"), ("b", "2")]), all);
        for other in [
            &[("a", "1"), ("b", "2")][..],
            &[("a", "1"), ("b", "2"), ("c", "0")],
            &[("a", "2"), ("b", "1"), ("c", "")],
            &[("a", "1"), ("b", "2"), ("d", "")],
            &[("a1", ""), ("b", "2"), ("c", "")],
            &[],
        ] {
            assert_ne!(from_records(other), all, "{other:?}");
        }
        let mut changed = all;
        changed.remove("b", b"2");
        changed.add("b", b"3");
        assert_eq!(changed, from_records(&[("a", "1"), ("b", "3"), ("c", "")]));
        assert_eq!(Content::from_stored(all.stored()), all);
    }
}
