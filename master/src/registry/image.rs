//! A registry as a whole, outside of any store, for export and import.
//!
//! The JSON form has each record twice: readable, and as the stored bytes. The import reads only the bytes, so
//! records of newer or older versions stay unchanged. Invariant: a parsed image holds no record that a master could
//! not read.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Value, json};

use super::export;
use super::records::{self, FORMAT};
use crate::core::Recovered;

/// The highest epoch of an import. Each start of a master raises the epoch, and the rest of the range is more than
/// enough.
const EPOCH_MAX: u64 = u64::MAX / 2;
/// The longest id in bytes; ids are UUIDs.
const ID_BYTES_MAX: usize = 64;

/// The whole content of a registry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// The id of the registry for its whole life; `None` in a registry of an early version.
    pub id: Option<String>,
    /// The name of the cluster, if the store has it.
    pub cluster: Option<String>,
    /// The epoch of the last master that started with the registry, or a higher one above an epoch that an agent
    /// obeyed.
    pub epoch: u64,
    /// The stored records by key.
    pub records: BTreeMap<String, Vec<u8>>,
}

/// The error of an unreadable record.
#[derive(Debug, thiserror::Error)]
#[error("the record {key:?} is damaged")]
pub struct DamagedRecord {
    pub key: String,
    #[source]
    pub source: prost::DecodeError,
}

/// The reason why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(
        "the file is not the output of `meseta registry export`; the output of an older version \
         has no \"records\": export it again with this version"
    )]
    Syntax(#[source] serde_json::Error),
    #[error(
        "it has format {found}; this version knows formats up to {known}: import it with the version that exported it"
    )]
    Newer { found: u32, known: u32 },
    #[error(
        "its epoch {0} is above the maximum {EPOCH_MAX}: export the registry again, or set an \
         epoch a little above the highest that an agent has obeyed"
    )]
    Epoch(u64),
    #[error(
        "its id {0:?} is not a registry id: export the registry again, or remove the id to get a new one"
    )]
    Id(String),
    #[error("the record {key:?} is not base64: export the registry again")]
    Encoding {
        key: String,
        #[source]
        source: base64::DecodeError,
    },
    #[error(
        "the file has a damaged record: export it again from a registry without errors in \
        `meseta registry check`"
    )]
    Damaged(#[from] DamagedRecord),
}

/// The imported part of the JSON.
#[derive(Deserialize)]
struct Stored {
    format: u32,
    id: Option<String>,
    cluster: Option<String>,
    epoch: u64,
    records: BTreeMap<String, String>,
}

impl Image {
    /// An image of a store's content; `begun` is the epoch of the last master's start, which a record may have
    /// raised.
    pub(super) fn new(
        id: String,
        cluster: Option<String>,
        begun: u64,
        records: BTreeMap<String, Vec<u8>>,
    ) -> Self {
        let raised = records.get(records::EPOCH_KEY);
        let raised = raised.and_then(|value| records::raised_epoch(value).ok());
        Self {
            id: Some(id).filter(|id| !id.is_empty()),
            cluster,
            epoch: begun.max(raised.unwrap_or(0)),
            records,
        }
    }

    /// The state with which a master would start, and the records that the master could not read.
    #[must_use]
    pub fn recovered(&self) -> (Recovered, Vec<DamagedRecord>) {
        let mut recovered = Recovered {
            epoch: self.epoch,
            cluster_id: self.id.clone().unwrap_or_default(),
            ..Recovered::default()
        };
        let mut damaged = Vec::new();
        for (key, value) in &self.records {
            if let Err(source) = records::read(&mut recovered, key, value) {
                let key = key.clone();
                damaged.push(DamagedRecord { key, source });
            }
        }
        (recovered, damaged)
    }

    /// The number of records of kinds unknown to this version.
    #[must_use]
    pub fn unknown(&self) -> usize {
        let keys = self.records.keys();
        keys.filter(|key| !records::is_known(key)).count()
    }

    /// The whole registry, for people and for [`Image::parse`]; times are seconds since the Unix epoch.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (recovered, _) = self.recovered();
        let mut json = export::readable(&recovered);
        let records = self.records.iter();
        let records = records.map(|(key, value)| (key.clone(), json!(STANDARD.encode(value))));
        json["format"] = json!(FORMAT);
        json["id"] = json!(self.id);
        json["cluster"] = json!(self.cluster);
        json["records"] = records.collect::<serde_json::Map<_, _>>().into();
        json
    }

    /// Parses the output of [`Image::to_json`].
    ///
    /// # Errors
    /// For other input, a newer format, a damaged record, an invalid id, or an epoch that could not be raised.
    pub fn parse(text: &[u8]) -> Result<Self, ImageError> {
        // A newer format may have another structure, and must still be recognised as newer.
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        if let Ok(Version { format }) = serde_json::from_slice(text)
            && format > FORMAT
        {
            return Err(ImageError::Newer {
                found: format,
                known: FORMAT,
            });
        }
        let stored: Stored = serde_json::from_slice(text).map_err(ImageError::Syntax)?;
        tracing::debug!(format = stored.format, "parsed an exported registry");
        let decode = |(key, text): (String, String)| match STANDARD.decode(text) {
            Ok(value) => Ok((key, value)),
            Err(source) => Err(ImageError::Encoding { key, source }),
        };
        let image = Self {
            id: stored.id,
            cluster: stored.cluster,
            epoch: stored.epoch,
            records: stored
                .records
                .into_iter()
                .map(decode)
                .collect::<Result<_, _>>()?,
        };
        let (recovered, mut damaged) = image.recovered();
        if let Some(damaged) = damaged.pop() {
            return Err(damaged.into());
        }
        if recovered.epoch > EPOCH_MAX {
            return Err(ImageError::Epoch(recovered.epoch));
        }
        match image.id.as_ref().filter(|id| !is_id(id)) {
            Some(id) => Err(ImageError::Id(id.clone())),
            None => Ok(image),
        }
    }
}

/// Whether the id is safe to show anywhere: it has only the characters of a UUID.
fn is_id(id: &str) -> bool {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || letter == b'-';
    !id.is_empty() && id.len() <= ID_BYTES_MAX && id.bytes().all(is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::{AgentRecord, Mutation};

    fn image() -> Image {
        let agent = AgentRecord {
            agent_id: "S0".to_owned(),
            info: Vec::new().into(),
        };
        let mutations = [
            Mutation::PutAgent(agent),
            Mutation::PutWeights(vec![("dev".to_owned(), 0.1)]),
        ];
        let writes = mutations.iter().flat_map(records::writes);
        let records = writes.filter_map(|write| Some((write.key, write.value?)));
        let mut records: BTreeMap<_, _> = records.collect();
        records.insert("of-a-later-version/x".to_owned(), vec![0, 255, 7]);
        Image {
            id: Some("id".to_owned()),
            cluster: Some("c".to_owned()),
            epoch: 7,
            records,
        }
    }

    #[test]
    fn export_and_import_round_trip() {
        let image = image();
        let json = image.to_json();
        assert_eq!(json["agents"][0]["id"], "S0");
        assert_eq!(json["weights"]["dev"], 0.1);
        let parsed = Image::parse(json.to_string().as_bytes()).unwrap();
        assert_eq!(parsed, image);
        assert_eq!(parsed.to_json(), json);
        assert_eq!(parsed.unknown(), 1);
    }

    #[test]
    fn raised_epoch_is_recovered() {
        let writes = records::writes(&Mutation::RaiseEpoch { epoch: 8 });
        for write in writes {
            assert!(records::is_known(&write.key), "{}", write.key);
        }
    }

    #[test]
    fn import_error_names_the_reason() {
        let json = image().to_json();
        let changed = |change: fn(&mut Value)| {
            let mut json = json.clone();
            change(&mut json);
            let text = json.to_string();
            Image::parse(text.as_bytes()).unwrap_err().to_string()
        };
        let newer = changed(|json| *json = json!({"format": 99, "other": "shape"}));
        assert!(newer.contains("format 99") && newer.contains("the version that exported it"));
        let older = changed(|json| {
            json.as_object_mut().unwrap().remove("records");
        });
        assert!(older.contains("export it again"), "{older}");
        let encoding = changed(|json| json["records"]["agent/S0"] = json!("no base64"));
        assert!(encoding.contains("\"agent/S0\""), "{encoding}");
        let epoch = changed(|json| json["epoch"] = json!(u64::MAX));
        assert!(epoch.contains(&u64::MAX.to_string()), "{epoch}");
        let raised = changed(|json| {
            let raised = records::writes(&Mutation::RaiseEpoch { epoch: u64::MAX });
            let value = raised[0].value.clone().unwrap();
            json["records"][records::EPOCH_KEY] = json!(STANDARD.encode(value));
        });
        assert!(raised.contains(&u64::MAX.to_string()), "{raised}");
        let id = changed(|json| json["id"] = json!("<b>"));
        assert!(id.contains("<b>"), "{id}");
        let damaged = changed(|json| json["records"]["agent/S0"] = json!("/////w=="));
        assert!(damaged.contains("export it again"), "{damaged}");
        let cut = json.to_string();
        assert!(Image::parse(&cut.as_bytes()[..cut.len() / 2]).is_err());
    }
}
