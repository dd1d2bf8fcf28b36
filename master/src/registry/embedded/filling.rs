//! Creating a registry in a file from an image.
//!
//! Invariant: a single transaction writes all records, so they are present completely or not at all; other records
//! stay.

use std::path::Path;

use prost::Message;
use redb::{Database, Durability, ReadableTableMetadata as _};

use super::super::content::Content;
use super::super::records::{FORMAT, META_KEY, Meta};
use super::super::{Image, OpenError};
use super::RECORDS;
use super::marker::Marker;
use super::opening::{is_empty, open_file, read_error};

/// Fills the file, unless it has or had a registry.
pub(in crate::registry) fn fill(path: &Path, image: &Image) -> Result<(), OpenError> {
    let not_empty = || OpenError::NotEmpty {
        path: path.to_owned(),
    };
    let marker = Marker::beside(path)?;
    if marker.id.is_some() || !is_empty(path)? {
        return Err(not_empty());
    }
    let new_id = || uuid::Uuid::new_v4().to_string();
    let id = image.id.clone().unwrap_or_else(new_id);
    let database = open_file(path)?;
    let is_done = commit(&database, image, &id).map_err(|error| read_error(path, error))?;
    if !is_done {
        return Err(not_empty());
    }
    marker.write(&id)
}

/// Writes the records, unless a master has written some meanwhile.
fn commit(database: &Database, image: &Image, id: &str) -> Result<bool, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(RECORDS)?;
        if !table.is_empty()? {
            return Ok(false);
        }
        let mut content = Content::default();
        for (key, value) in &image.records {
            content.add(key, value);
            table.insert(key.as_str(), value.as_slice())?;
        }
        let meta = Meta {
            format: FORMAT,
            epoch: image.epoch,
            id: id.to_owned(),
            content: Some(content.stored()),
        };
        table.insert(META_KEY, meta.encode_to_vec().as_slice())?;
    }
    transaction.commit()?;
    Ok(true)
}
