//! Opening a registry's file: all that is in it is read and compared with what was written last.
//!
//! Invariant: what is opened is whole. A file that is damaged, cut, empty or another's is refused, and the refusal
//! says what to do; nothing of it has been changed then.

use std::fs::File;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use prost::Message;
use redb::backends::InMemoryBackend;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, TableError};

use super::super::content::Content;
use super::super::records::{self, FORMAT, META_KEY, Meta};
use super::super::{Inspected, OpenError};
use super::marker::Marker;
use super::{CACHE_BYTES, RECORDS};
use crate::core::Recovered;
use crate::work_dir;

/// What is known of a registry that is open.
pub(super) struct Opened {
    pub(super) database: Database,
    pub(super) recovered: Recovered,
    pub(super) meta: Meta,
    pub(super) content: Content,
}

/// All that a file holds.
struct Records {
    recovered: Recovered,
    /// Absent in a file that is new.
    meta: Option<Meta>,
    content: Content,
}

/// Opens or creates the file, reads all that is in it and makes this start's epoch durable.
pub(super) fn open(path: &Path) -> Result<Opened, OpenError> {
    let marker = Marker::beside(path)?;
    marker.refuse_loss(path)?;
    // The whole file is read before a byte of it is changed: repairing it may drop what is damaged.
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0) {
        let file = lock(path)?;
        let records = inspect_file(path, file)?;
        check_marker(records.meta, records.content, path, &marker)?;
    }
    let opened = unless_damaged(path, || {
        let database = open_file(path)?;
        let (records, meta) = begin_epoch(&database, path, &marker)?;
        Ok(Opened {
            database,
            recovered: records.recovered,
            meta,
            content: records.content,
        })
    })?;
    marker.write(&opened.meta.id)?;
    Ok(opened)
}

/// Reads a registry that no master has open, and changes nothing.
pub(super) fn inspect(path: &Path) -> Result<Inspected, OpenError> {
    let marker = Marker::beside(path)?;
    marker.refuse_loss(path)?;
    let file = lock(path)?;
    let Records {
        mut recovered,
        meta,
        content,
    } = inspect_file(path, file)?;
    let checked = check_marker(meta.clone(), content, path, &marker);
    recovered.epoch = meta.as_ref().map_or(0, |meta| meta.epoch);
    Ok(Inspected {
        id: meta.map(|meta| meta.id).filter(|id| !id.is_empty()),
        recovered,
        records: content.records,
        damage: checked.err(),
    })
}

/// Opens the file for reading, unless a master has it open.
fn lock(path: &Path) -> Result<File, OpenError> {
    let create_error = |source| OpenError::Create {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(create_error)?;
    match file.try_lock_shared() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(OpenError::InUse {
            path: path.to_owned(),
        }),
        Err(std::fs::TryLockError::Error(source)) => Err(create_error(source)),
    }
}

/// Reads all of a file in a copy of it in memory.
fn inspect_file(path: &Path, mut file: File) -> Result<Records, OpenError> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|source| OpenError::Create {
            path: path.to_owned(),
            source,
        })?;
    unless_damaged(path, || {
        let copy = InMemoryBackend::new();
        let length = bytes.len() as u64;
        let filled = copy.set_len(length).and_then(|()| copy.write(0, &bytes));
        filled.map_err(|error| read_error(path, redb::Error::Io(error)))?;
        let mut database = Database::builder()
            .create_with_backend(copy)
            .map_err(|error| open_error(path, error))?;
        database
            .check_integrity()
            .map_err(|error| open_error(path, error))?;
        let transaction = database
            .begin_read()
            .map_err(|error| read_error(path, error.into()))?;
        match transaction.open_table(RECORDS) {
            Ok(table) => read(&table, path),
            Err(TableError::TableDoesNotExist(_)) => Ok(Records {
                recovered: Recovered::default(),
                meta: None,
                content: Content::default(),
            }),
            Err(error) => Err(read_error(path, error.into())),
        }
    })
}

/// The store checks most of what it reads and panics on some of the rest: to whoever starts a master that is a
/// damaged file like any other.
fn unless_damaged<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, OpenError>,
) -> Result<T, OpenError> {
    // Nothing that the closure touches outlives a panic in it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(OpenError::Unreadable {
            path: path.to_owned(),
        })
    })
}

fn open_file(path: &Path) -> Result<Database, OpenError> {
    let file = work_dir::create_file(path).map_err(|source| OpenError::Create {
        path: path.to_owned(),
        source,
    })?;
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
        .create_file(file)
        .map_err(|error| open_error(path, error))
}

fn begin_epoch(
    database: &Database,
    path: &Path,
    marker: &Marker,
) -> Result<(Records, Meta), OpenError> {
    let failed = |error: redb::Error| read_error(path, error);
    let mut transaction = database
        .begin_write()
        .map_err(|error| failed(error.into()))?;
    transaction.set_two_phase_commit(true);
    let (mut records, meta) = {
        let mut table = transaction
            .open_table(RECORDS)
            .map_err(|error| failed(error.into()))?;
        let records = read(&table, path)?;
        let mut meta = check_marker(records.meta.clone(), records.content, path, marker)?;
        meta.epoch += 1;
        meta.format = FORMAT;
        meta.content = Some(records.content.stored());
        table
            .insert(META_KEY, meta.encode_to_vec().as_slice())
            .map_err(|error| failed(error.into()))?;
        (records, meta)
    };
    transaction.commit().map_err(|error| failed(error.into()))?;
    records.recovered.epoch = meta.epoch;
    Ok((records, meta))
}

fn read(
    table: &impl ReadableTable<&'static str, &'static [u8]>,
    path: &Path,
) -> Result<Records, OpenError> {
    let mut records = Records {
        recovered: Recovered::default(),
        meta: None,
        content: Content::default(),
    };
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
            records.meta = Some(Meta::decode(value).map_err(damaged)?);
        } else {
            records.content.add(key, value);
            records::read(&mut records.recovered, key, value).map_err(damaged)?;
        }
    }
    Ok(records)
}

/// Whether what was read is all there was; gives what is known of the registry as a whole.
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
    let kept = meta.content.map(Content::of);
    if let Some(kept) = kept.filter(|kept| *kept != content) {
        return Err(OpenError::Incomplete {
            path: path.to_owned(),
            marker: marker.path.clone(),
            found: content.records,
            kept: kept.records,
        });
    }
    match &marker.id {
        // An older master knew of no id, and dropped it.
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

fn open_error(path: &Path, error: DatabaseError) -> OpenError {
    let path = path.to_owned();
    match error {
        DatabaseError::DatabaseAlreadyOpen => OpenError::InUse { path },
        error => OpenError::Open {
            path,
            source: Box::new(error.into()),
        },
    }
}

fn read_error(path: &Path, source: redb::Error) -> OpenError {
    OpenError::Read {
        path: path.to_owned(),
        source: Box::new(source),
    }
}
