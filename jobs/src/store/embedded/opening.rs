//! Opening a store's file: all of it is read in a copy first.
//!
//! Invariant: what is opened is whole. A file that is damaged, cut, empty or gone where there was one is refused, and the
//! refusal says what to do; nothing of it has been changed then.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use meseta_daemon::work_dir;
use redb::backends::InMemoryBackend;
use redb::{
    Database, DatabaseError, ReadableDatabase as _, ReadableTable as _, StorageBackend as _,
    TableError,
};

use super::super::Records;
use super::{CACHE_BYTES, RECORDS, StoreError};

/// What the marker beside the file says to people; for the scheduler it is enough that it is there.
const MARKER: &str =
    "There are jobs in jobs.redb: without this file an empty one would be taken for a new one.\n";

/// Opens or makes the file, which nobody but its owner reads from now on, and reads all that it has.
pub(super) fn open(path: &Path) -> Result<(Database, Records), StoreError> {
    let marker = path.with_extension("marker");
    let failed = |source| StoreError::Marker {
        marker: marker.clone(),
        source,
    };
    let is_marked = marker.try_exists().map_err(failed)?;
    let length = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(file_error(path, error)),
    };
    if length > 0 {
        // Before a byte of it is changed: repairing it may drop what is damaged.
        inspect(path)?;
    } else if is_marked {
        return Err(StoreError::Lost {
            path: path.to_owned(),
            marker: marker.clone(),
        });
    }
    let opened = unless_damaged(path, || {
        let file = work_dir::create_file(path).map_err(|error| file_error(path, error))?;
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder
            .create_file(file)
            .map_err(|error| open_error(path, error))?;
        let records = read(&database).map_err(|error| read_error(path, error))?;
        Ok((database, records))
    })?;
    if !is_marked {
        work_dir::replace_file(&marker, MARKER).map_err(failed)?;
    }
    Ok(opened)
}

/// Reads all of the file in a copy of it in memory.
fn inspect(path: &Path) -> Result<(), StoreError> {
    let mut file = File::open(path).map_err(|error| file_error(path, error))?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(in_use(path)),
        Err(TryLockError::Error(error)) => return Err(file_error(path, error)),
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|error| file_error(path, error))?;
    unless_damaged(path, || {
        let copy = InMemoryBackend::new();
        let filled = copy.set_len(bytes.len() as u64);
        let filled = filled.and_then(|()| copy.write(0, &bytes));
        filled.map_err(|error| file_error(path, error))?;
        let mut database = Database::builder()
            .create_with_backend(copy)
            .map_err(|error| open_error(path, error))?;
        let checked = database.check_integrity();
        match checked.map_err(|error| open_error(path, error))? {
            true => read(&database)
                .map(drop)
                .map_err(|error| read_error(path, error)),
            false => Err(damaged(path)),
        }
    })
}

fn read(database: &Database) -> Result<Records, redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(RECORDS) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut records = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        records.push((key.value().to_owned(), value.value().to_vec()));
    }
    Ok(records)
}

/// The database checks most of what it reads and panics on some of the rest: to whoever starts a scheduler that is a
/// damaged file like any other.
fn unless_damaged<T>(
    path: &Path,
    read: impl FnOnce() -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    // Nothing that the closure touches outlives a panic in it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(damaged(path)))
}

fn open_error(path: &Path, error: DatabaseError) -> StoreError {
    match error {
        DatabaseError::DatabaseAlreadyOpen => in_use(path),
        error => read_error(path, error.into()),
    }
}

fn read_error(path: &Path, source: redb::Error) -> StoreError {
    StoreError::Read {
        path: path.to_owned(),
        source: Box::new(source),
    }
}

fn file_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::File {
        path: path.to_owned(),
        source,
    }
}

fn in_use(path: &Path) -> StoreError {
    StoreError::InUse {
        path: path.to_owned(),
    }
}

fn damaged(path: &Path) -> StoreError {
    StoreError::Damaged {
        path: path.to_owned(),
    }
}
