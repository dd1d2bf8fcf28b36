//! Opening a store's file: all of it is read in a copy first.
//!
//! Invariant: what is opened is whole. A file that is damaged, cut, empty or gone where there was one is refused, and the
//! refusal says what to do; nothing of it has been changed then.

use std::path::Path;

use meseta_daemon::database_file::{self, Fault, unless_damaged};
use meseta_daemon::work_dir;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableError};

use super::super::Records;
use super::{CACHE_BYTES, RECORDS, StoreError};

/// What the marker beside the file says to people; for the scheduler it is enough that it is there.
const MARKER: &str =
    "There are jobs in jobs.redb: without this file an empty one would be taken for a new one.\n";

/// Opens or makes the file, which nobody but its owner reads from now on, and reads all that it has.
pub(super) fn open(path: &Path) -> Result<(Database, Records), StoreError> {
    let marker = path.with_extension("marker");
    let marker_error = |source| StoreError::Marker {
        marker: marker.clone(),
        source,
    };
    let is_marked = marker.try_exists().map_err(marker_error)?;
    if !database_file::is_blank(path).map_err(failed(path))? {
        // Before a byte of it is changed: repairing it may drop what is damaged.
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

/// Opens a file again that was opened before.
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

/// Makes an error of what is wrong with this file.
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
