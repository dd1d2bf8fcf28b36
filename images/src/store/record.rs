//! The records of layers, completions, images and users, as JSON files.
//!
//! Invariant: a record that cannot be read is no record. Its layer, image or completion is missing then, and a pull makes it
//! again.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::StoreError;
use crate::descriptor::{Digest, LayerDescriptor};
use crate::unpack::Report;

/// The longest record: that of a layer with very many implied folders.
const RECORD_BYTES_MAX: u64 = 128 << 20;
/// The longest configuration of an image; registries have a limit of 4 MiB for manifests.
pub(super) const CONFIG_BYTES_MAX: usize = 8 << 20;

/// A layer in the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LayerRecord {
    pub(super) diff_id: Digest,
    /// The boot in which the layer was unpacked. Until its files are synced, they are whole in that boot only.
    pub(super) boot: String,
    pub(super) report: Report,
}

/// The folders and links that are added to the layers of an image.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CompletionRecord {
    pub(super) boot: String,
    pub(super) entries: u64,
}

/// A layer as an image names it.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImageLayer {
    /// Digest of the content, by which the store has the layer.
    pub diff_id: Digest,
    /// Digest and size of the blob from which it was pulled.
    pub blob: Digest,
    pub blob_bytes: u64,
}

impl From<&LayerDescriptor> for ImageLayer {
    fn from(layer: &LayerDescriptor) -> Self {
        Self {
            diff_id: layer.diff_id.clone(),
            blob: layer.blob.digest.clone(),
            blob_bytes: layer.blob.size,
        }
    }
}

/// An image in the store.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ImageRecord {
    /// The canonical reference by which the image was pulled.
    pub name: String,
    pub manifest_digest: Digest,
    /// The configuration, as the registry sent it.
    pub config: String,
    /// Bottom first.
    pub layers: Vec<ImageLayer>,
    /// The completion above the layers, if the image needs one.
    pub completion: Option<String>,
    pub pulled_at: SystemTime,
}

impl ImageRecord {
    /// The different layers, bottom first. A layer that comes twice counts at its upper place: the lower one changes nothing,
    /// and overlayfs refuses a folder that it has already.
    pub fn distinct_layers(&self) -> Vec<&Digest> {
        let mut seen = std::collections::HashSet::new();
        let from_top = self.layers.iter().rev().map(|layer| &layer.diff_id);
        let mut distinct: Vec<_> = from_top.filter(|diff_id| seen.insert(*diff_id)).collect();
        distinct.reverse();
        distinct
    }
}

/// A use of an image by a container.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UseRecord {
    pub(super) image: String,
    /// The layers themselves: the name may get other ones by a later pull.
    pub(super) layers: Vec<Digest>,
    pub(super) completion: Option<String>,
}

/// Reads a record. Absent if the file is missing or no record of this kind, of which the log has the reason.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StoreError> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A file in the place of a folder.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        file => file.map_err(|source| StoreError::new("open", path, source))?,
    };
    let mut text = Vec::new();
    file.take(RECORD_BYTES_MAX)
        .read_to_end(&mut text)
        .map_err(|source| StoreError::new("read", path, source))?;
    match serde_json::from_slice(&text) {
        Ok(record) => Ok(Some(record)),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "ignoring an unreadable record of the image store");
            Ok(None)
        }
    }
}

/// Writes a record as text.
pub(super) fn render<T: Serialize>(path: &Path, record: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(record).map_err(|error| StoreError::new("write", path, error.into()))
}
