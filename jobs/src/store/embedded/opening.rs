//! The opening of a store's file: all of it is read in a copy first.
//!
//! Invariant: an opened file is whole. A file that is damaged, cut, empty or missing although it existed is refused without
//! any change, and the refusal names the remedy.

use std::path::Path;

use meseta_daemon::database_file::{self, Fault, unless_damaged};
use meseta_daemon::work_dir;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableError};

use super::super::Records;
use super::{CACHE_BYTES, RECORDS, StoreError};

/// The text of the marker for people; for the scheduler its existence is enough.
const MARKER: &str =
    "There are jobs in jobs.redb: without this file an empty store would count as a new store.\n";

/// Opens or creates the file, readable by its owner only from now on, and reads all its records.
pub(super) fn open(path: &Path) -> Result<(Database, Records), StoreError> {
    let marker = path.with_extension("marker");
    let marker_error = |source| StoreError::Marker {
        marker: marker.clone(),
        source,
    };
    let is_marked = marker.try_exists().map_err(marker_error)?;
    if !database_file::is_blank(path).map_err(failed(path))? {
        // Inspect the file before any change: a repair may drop damaged parts.
        inspect(path)?;
    } else if is_marked {
        return Err(StoreError::Lost {
            path: path.to_owned(),
            marker: marker.clone(),
        });
    }
    let opened = unless_damaged(failed(path), || {
        let database = database_file::open(path, CACHE_BYTES).map_err(failed(path))?;
        let records = read(&database).map_err(|error| read_error(path, error))?;
        Ok((database, records))
    })?;
    if !is_marked {
        work_dir::replace_file(&marker, MARKER).map_err(marker_error)?;
    }
    Ok(opened)
}

/// Opens a file that was opened before.
pub(super) fn reopen(path: &Path) -> Result<Database, StoreError> {
    unless_damaged(failed(path), || {
        database_file::open(path, CACHE_BYTES).map_err(failed(path))
    })
}

fn inspect(path: &Path) -> Result<(), StoreError> {
    database_file::inspect(path, failed(path), |database, is_whole| {
        if !is_whole {
            return Err(failed(path)(Fault::Unreadable));
        }
        let records = read(database);
        records.map(drop).map_err(|error| read_error(path, error))
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

/// Converts a fault of this file into an error.
fn failed(path: &Path) -> impl Fn(Fault) -> StoreError {
    let path = path.to_owned();
    move |fault| {
        let path = path.clone();
        match fault {
            Fault::InUse => StoreError::InUse { path },
            Fault::File(source) => StoreError::File { path, source },
            Fault::Open(source) => StoreError::Read { path, source },
            Fault::Unreadable => StoreError::Damaged { path },
        }
    }
}

pub(super) fn read_error(path: &Path, error: redb::Error) -> StoreError {
    failed(path)(error.into())
}
