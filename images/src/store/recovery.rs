//! The work of an earlier process: finished if it is whole, discarded otherwise.
//!
//! Invariant: afterwards the staging folder is empty, and each image has all of its layers.

use std::fs;

use super::layout::{Layout, names_in, parse_layer_name, record_in, sync_folder};
use super::record::{self, CompletionRecord, LayerRecord};
use super::{StoreError, list, rename, sync_files};

/// Recovers a store that no other process uses.
pub(super) fn recover(layout: &Layout, boot: &str) -> Result<(), StoreError> {
    keep_whole_layers(layout, boot)?;
    for name in names_in(&layout.staging())? {
        layout.discard(&layout.staging().join(name))?;
    }
    for name in names_in(&layout.layers())? {
        let folder = layout.layers().join(&name);
        let record: Option<LayerRecord> = record::read(&record_in(&folder))?;
        if record.is_none_or(|record| parse_layer_name(&name) != Some(record.diff_id)) {
            tracing::warn!(folder = %folder.display(), "discarding a damaged layer");
            layout.discard(&folder)?;
        }
    }
    for name in names_in(&layout.completions())? {
        let folder = layout.completions().join(&name);
        let record: Option<CompletionRecord> = record::read(&record_in(&folder))?;
        if record.is_none() {
            layout.discard(&folder)?;
        }
    }
    discard_partial_images(layout)
}

/// Stores the layers that a killed process had unpacked. After a power cut, files of such a layer may be empty, so then it is
/// not kept.
fn keep_whole_layers(layout: &Layout, boot: &str) -> Result<(), StoreError> {
    let mut whole = Vec::new();
    for name in names_in(&layout.staging())? {
        let folder = layout.staging().join(&name);
        let record: Option<LayerRecord> = match parse_layer_name(&name) {
            Some(_) => record::read(&record_in(&folder))?,
            None => None,
        };
        if let Some(record) = record.filter(|record| record.boot == boot)
            && parse_layer_name(&name) == Some(record.diff_id.clone())
            && !layout.layer(&record.diff_id).exists()
        {
            whole.push((folder, layout.layer(&record.diff_id)));
        }
    }
    if whole.is_empty() {
        return Ok(());
    }
    sync_files(layout.root())?;
    for (staged, stored) in &whole {
        rename(staged, stored)?;
    }
    sync_folder(&layout.layers())
}

/// Discards images whose layers are gone, and unreadable records.
fn discard_partial_images(layout: &Layout) -> Result<(), StoreError> {
    let mut known = Vec::new();
    for image in list(layout)? {
        let path = layout.image(&image.name);
        let is_whole = image
            .layers
            .iter()
            .all(|layer| record_in(&layout.layer(&layer.diff_id)).exists())
            && image
                .completion
                .as_ref()
                .is_none_or(|key| record_in(&layout.completion(key)).exists());
        if is_whole {
            known.push(path);
        } else {
            tracing::warn!(
                image = image.name,
                "discarding an image without all of its layers"
            );
        }
    }
    for entry in names_in(&layout.images())? {
        let path = layout.images().join(entry);
        if !known.contains(&path) {
            layout.discard(&path)?;
        }
    }
    // A use by a container of an earlier boot ends with it; the agent ends the others.
    debug_assert!(fs::read_dir(layout.staging()).is_ok_and(|mut left| left.next().is_none()));
    Ok(())
}
