//! Making a registry's file of an image.
//!
//! Invariant: the file is there as a whole or not at all, and none is replaced.

use std::fs::File;
use std::io;
use std::path::Path;

use prost::Message;
use redb::{Database, Durability};

use super::super::content::Content;
use super::super::records::{FORMAT, META_KEY, Meta};
use super::super::{Image, OpenError};
use super::RECORDS;
use super::marker::Marker;
use super::opening::{open_file, read_error};

/// Makes the file, unless there is one or was one.
pub(in crate::registry) fn fill(path: &Path, image: &Image) -> Result<(), OpenError> {
    let not_empty = || OpenError::NotEmpty {
        path: path.to_owned(),
    };
    let file_error = |source| OpenError::File {
        path: path.to_owned(),
        source,
    };
    let marker = Marker::beside(path)?;
    if marker.id.is_some() || path.exists() {
        return Err(not_empty());
    }
    // A name that no other process uses at the time; one that was killed may have left something there.
    let fresh = path.with_extension(format!("redb.{}", std::process::id()));
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(file_error(error)),
        _ => {}
    }
    let new_id = || uuid::Uuid::new_v4().to_string();
    let id = image.id.clone().unwrap_or_else(new_id);
    let written = write(&fresh, image, &id).and_then(|()| {
        // Unlike renaming, this replaces nothing.
        std::fs::hard_link(&fresh, path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => not_empty(),
            _ => file_error(error),
        })
    });
    let removed = std::fs::remove_file(&fresh);
    written?;
    removed.map_err(file_error)?;
    if let Some(dir) = path.parent() {
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(file_error)?;
    }
    marker.write(&id)
}

fn write(path: &Path, image: &Image, id: &str) -> Result<(), OpenError> {
    let database = open_file(path)?;
    commit(&database, image, id).map_err(|error| read_error(path, error))
}

fn commit(database: &Database, image: &Image, id: &str) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    {
        let mut table = transaction.open_table(RECORDS)?;
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
    Ok(())
}
