//! The epoch of a master: the registry that it leads, and the number of its start.
//!
//! An agent receives it before anything is sent, in the metadata of the answer to `AgentRegistry.Connect`, which comes before
//! the first frame. A master that stands still before it leads reads waiting messages long after they were sent. An agent
//! that knows an epoch obeys no lower one from then on, so that its next message is still true when that master reads it.

use tonic::metadata::{AsciiMetadataValue, MetadataMap};

/// The epoch, in the metadata of the answer.
const EPOCH: &str = "meseta-epoch";

/// The id of the registry, in the metadata of the answer.
pub const CLUSTER_ID: &str = "meseta-cluster-id";

/// The registry and the epoch of a leading master.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LedEpoch {
    /// The id of the registry; absent if it has no id that fits into metadata.
    pub cluster_id: Option<String>,
    /// The epoch, which grows with every start of a master on this registry, from 1.
    pub epoch: u64,
}

impl LedEpoch {
    /// Writes the epoch into the metadata of an answer.
    pub fn write(&self, metadata: &mut MetadataMap) {
        metadata.insert(EPOCH, self.epoch.into());
        let cluster_id = self.cluster_id.as_deref().map(AsciiMetadataValue::try_from);
        if let Some(Ok(cluster_id)) = cluster_id {
            metadata.insert(CLUSTER_ID, cluster_id);
        }
    }

    /// Reads the epoch from the metadata of an answer. `None` for masters before 0.2, which send none, and for values that are
    /// not numbers.
    #[must_use]
    pub fn read(metadata: &MetadataMap) -> Option<Self> {
        let text = |key| metadata.get(key)?.to_str().ok();
        Some(Self {
            cluster_id: text(CLUSTER_ID).map(str::to_owned),
            epoch: text(EPOCH)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_epoch_is_read_back() {
        for cluster_id in [None, Some("8d9f".to_owned())] {
            let told = LedEpoch {
                cluster_id,
                epoch: u64::MAX,
            };
            let mut metadata = MetadataMap::new();
            told.write(&mut metadata);
            assert_eq!(LedEpoch::read(&metadata), Some(told));
        }
    }

    #[test]
    fn an_older_master_tells_nothing() {
        assert_eq!(LedEpoch::read(&MetadataMap::new()), None);
        for wrong in ["", "-1", "7x", "18446744073709551616"] {
            let mut metadata = MetadataMap::new();
            metadata.insert(EPOCH, wrong.parse().expect("a value"));
            assert_eq!(LedEpoch::read(&metadata), None, "{wrong}");
        }
    }

    #[test]
    fn id_invalid_as_metadata_is_omitted() {
        let told = LedEpoch {
            cluster_id: Some("a\nb".to_owned()),
            epoch: 3,
        };
        let mut metadata = MetadataMap::new();
        told.write(&mut metadata);
        let read = LedEpoch::read(&metadata).expect("an epoch");
        assert_eq!((read.cluster_id, read.epoch), (None, 3));
    }
}
