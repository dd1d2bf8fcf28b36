//! Opening a registry's file: all records are read and compared with the last write.
//!
//! Invariant: an opened registry is complete. A damaged, truncated, empty or foreign file is refused unchanged, and
//! the error names the remedy.

use std::collections::BTreeMap;
use std::path::Path;

use meseta_daemon::database_file::{self, Fault, unless_damaged};
use prost::Message;
use redb::{Database, ReadableDatabase, ReadableTable, TableError};

use super::super::content::Content;
use super::super::records::{self, FORMAT, META_KEY, Meta};
use super::super::{Image, OpenError};
use super::marker::Marker;
use super::{CACHE_BYTES, RECORDS};
use crate::core::Recovered;

/// An open registry with its recovered state.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) recovered: Recovered,
    pub(super) meta: Meta,
    pub(super) content: Content,
}

/// The data of a file besides its records.
#[derive(Default)]
struct Summary {
    /// `None` in a new file.
    meta: Option<Meta>,
    content: Content,
}

/// Processes a record. Returns an error for a damaged one.
type Take<'a> = dyn FnMut(&str, &[u8]) -> Result<(), prost::DecodeError> + 'a;

/// Opens or creates the file, reads all records and makes this start's epoch durable.
pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    let marker = Marker::beside(path)?;
    // Reads the whole file before any change: a repair may drop damaged parts.
    if is_there(path, &marker)? {
        let mut recovered = Recovered::default();
        let take = &mut |key: &str, value: &[u8]| records::read(&mut recovered, key, value);
        let found = inspect_file(path, take)?;
        check_marker(found.meta, found.content, path, &marker)?;
    }
    let opened = unless_damaged(failed(path), || {
        let database = open_file(path)?;
        let (recovered, meta, content) = begin_epoch(&database, path, &marker)?;
        Ok(Opened {
            database,
            recovered,
            meta,
            content,
        })
    })?;
    marker.write(&opened.meta.id)?;
    Ok(opened)
}

/// Whether the file has a registry. An empty file never counts as a new registry if there was one before.
fn is_there(path: &Path, marker: &Marker) -> Result<bool, OpenError> {
    let is_blank = database_file::is_blank(path).map_err(failed(path))?;
    if is_blank && marker.id.is_some() {
        return Err(marker.lost(path));
    }
    Ok(!is_blank)
}

/// Whether there is no registry, and never was one.
pub(in crate::registry) fn is_absent(path: &Path) -> Result<bool, OpenError> {
    Ok(!is_there(path, &Marker::beside(path)?)?)
}

/// Whether nothing was ever written to a file, even if a master was killed after creating it.
pub(super) fn is_empty(path: &Path) -> Result<bool, OpenError> {
    if database_file::is_blank(path).map_err(failed(path))? {
        return Ok(true);
    }
    let Summary { meta, content } = inspect_file(path, &mut |_, _| Ok(()))?;
    Ok(meta.is_none() && content.records == 0)
}

/// Reads a registry that no master has open, without changing it. Includes damaged records. Also returns the error
/// that would keep a master from starting with it, if everything was readable.
pub(in crate::registry) fn inspect(path: &Path) -> Result<(Image, Option<OpenError>), OpenError> {
    let marker = Marker::beside(path)?;
    is_there(path, &marker)?;
    let mut records = BTreeMap::new();
    let take = &mut |key: &str, value: &[u8]| {
        records.insert(key.to_owned(), value.to_vec());
        Ok(())
    };
    let Summary { meta, content } = inspect_file(path, take)?;
    let checked = check_marker(meta.clone(), content, path, &marker);
    let damage = match checked {
        Ok(_) => None,
        // The records of a newer format may have another meaning.
        Err(error @ OpenError::Newer { .. }) => return Err(error),
        Err(error) => Some(error),
    };
    let Meta { id, epoch, .. } = meta.unwrap_or_default();
    Ok((Image::new(id, None, epoch, records), damage))
}

/// Reads all of a file that no master has open. The database's own check does not matter: the content is compared
/// with the last write.
fn inspect_file(path: &Path, take: &mut Take<'_>) -> Result<Summary, OpenError> {
    database_file::inspect(path, failed(path), |database, _| {
        let transaction = database
            .begin_read()
            .map_err(|error| read_error(path, error.into()))?;
        match transaction.open_table(RECORDS) {
            Ok(table) => read(&table, path, take),
            Err(TableError::TableDoesNotExist(_)) => Ok(Summary::default()),
            Err(error) => Err(read_error(path, error.into())),
        }
    })
}

pub(super) fn open_file(path: &Path) -> Result<Database, OpenError> {
    database_file::open(path, CACHE_BYTES).map_err(failed(path))
}

fn begin_epoch(
    database: &Database,
    path: &Path,
    marker: &Marker,
) -> Result<(Recovered, Meta, Content), OpenError> {
    let failed = |error: redb::Error| read_error(path, error);
    let mut transaction = database
        .begin_write()
        .map_err(|error| failed(error.into()))?;
    transaction.set_two_phase_commit(true);
    let mut recovered = Recovered::default();
    let (meta, content) = {
        let mut table = transaction
            .open_table(RECORDS)
            .map_err(|error| failed(error.into()))?;
        let take = &mut |key: &str, value: &[u8]| records::read(&mut recovered, key, value);
        let Summary { meta, content } = read(&table, path, take)?;
        let mut meta = check_marker(meta, content, path, marker)?;
        meta.epoch = meta.epoch.max(recovered.epoch) + 1;
        meta.format = FORMAT;
        meta.content = Some(content.stored());
        table
            .insert(META_KEY, meta.encode_to_vec().as_slice())
            .map_err(|error| failed(error.into()))?;
        (meta, content)
    };
    transaction.commit().map_err(|error| failed(error.into()))?;
    recovered.epoch = meta.epoch;
    recovered.cluster_id.clone_from(&meta.id);
    Ok((recovered, meta, content))
}

fn read(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    path: &Path,
    take: &mut Take<'_>,
) -> Result<Summary, OpenError> {
    let mut summary = Summary::default();
    let failed = |error: redb::StorageError| read_error(path, error.into());
    for entry in table.iter().map_err(failed)? {
        let (key, value) = entry.map_err(failed)?;
        let (key, value) = (key.value(), value.value());
        let damaged = |source| OpenError::Damaged {
            path: path.to_owned(),
            key: key.to_owned(),
            source,
        };
        if key == META_KEY {
            summary.meta = Some(Meta::decode(value).map_err(damaged)?);
        } else {
            summary.content.add(key, value);
            take(key, value).map_err(damaged)?;
        }
    }
    Ok(summary)
}

/// Checks that the records are complete; returns the data of the registry as a whole.
fn check_marker(
    found: Option<Meta>,
    content: Content,
    path: &Path,
    marker: &Marker,
) -> Result<Meta, OpenError> {
    let new_id = || uuid::Uuid::new_v4().to_string();
    let Some(mut meta) = found else {
        if marker.id.is_some() || content.records > 0 {
            return Err(marker.lost(path));
        }
        return Ok(Meta {
            id: new_id(),
            ..Meta::default()
        });
    };
    if meta.format > FORMAT {
        return Err(OpenError::Newer {
            path: path.to_owned(),
            found: meta.format,
            known: FORMAT,
        });
    }
    let kept = meta.content.map(Content::from_stored);
    if let Some(kept) = kept.filter(|kept| *kept != content) {
        return Err(OpenError::Incomplete {
            path: path.to_owned(),
            marker: marker.path.clone(),
            found: content.records,
            kept: kept.records,
        });
    }
    match &marker.id {
        // An older master knew no id, and dropped it.
        Some(id) if meta.id.is_empty() => meta.id.clone_from(id),
        Some(id) if *id != meta.id => {
            return Err(OpenError::Another {
                path: path.to_owned(),
                marker: marker.path.clone(),
            });
        }
        Some(_) => {}
        None if meta.id.is_empty() => meta.id = new_id(),
        None => {}
    }
    Ok(meta)
}

/// Converts a fault of this file to an error.
fn failed(path: &Path) -> impl Fn(Fault) -> OpenError {
    let path = path.to_owned();
    move |fault| {
        let path = path.clone();
        match fault {
            Fault::InUse => OpenError::InUse { path },
            Fault::File(source) => OpenError::File { path, source },
            Fault::Open(source) => OpenError::Open { path, source },
            Fault::Unreadable => OpenError::Unreadable { path },
        }
    }
}

pub(super) fn read_error(path: &Path, error: redb::Error) -> OpenError {
    match error.into() {
        Fault::Open(source) => OpenError::Read {
            path: path.to_owned(),
            source,
        },
        fault => failed(path)(fault),
    }
}
