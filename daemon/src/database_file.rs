//! The file of an embedded database, which is read as a whole in a copy before a byte of it is changed: repairing it may drop
//! what is damaged.
//!
//! Entered through [`inspect`] and [`open`]. Invariant: a file that is damaged or in use is a [`Fault`], also where the
//! database panics on it, and nothing of it has been changed then.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{Database, DatabaseError, StorageBackend as _};

use crate::work_dir;

/// Why a file cannot be used.
#[derive(Debug)]
pub enum Fault {
    /// Another process has it open.
    InUse,
    /// The file system does not give it.
    File(io::Error),
    /// The database does not open it.
    Open(Box<redb::Error>),
    /// The database panicked on it.
    Unreadable,
}

impl From<DatabaseError> for Fault {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            error => Self::Open(Box::new(error.into())),
        }
    }
}

/// What `read` makes of a copy in memory of a file that nobody has open. `read` is told whether the database found the
/// file whole, and `failed` makes an error of a fault. Blocks, and takes memory as the file is long.
///
/// # Errors
/// Those of `read`, and every [`Fault`].
pub fn inspect<T, E>(
    path: &Path,
    failed: impl Fn(Fault) -> E,
    read: impl FnOnce(&Database, bool) -> Result<T, E>,
) -> Result<T, E> {
    let bytes = bytes(path).map_err(&failed)?;
    unless_damaged(&failed, || {
        let mut database = copy(&bytes).map_err(&failed)?;
        let is_whole = database.check_integrity();
        let is_whole = is_whole.map_err(|error| failed(error.into()))?;
        read(&database, is_whole)
    })
}

/// Opens or makes the file, which nobody but its owner reads from now on.
///
/// # Errors
/// Every [`Fault`] but [`Fault::Unreadable`].
pub fn open(path: &Path, cache_bytes: usize) -> Result<Database, Fault> {
    let file = work_dir::create_file(path).map_err(Fault::File)?;
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    Ok(builder.create_file(file)?)
}

/// What `read` gives. The database checks most of what it reads and panics on some of the rest: to whoever starts a daemon
/// that is a damaged file like any other.
///
/// # Errors
/// Those of `read`, and [`Fault::Unreadable`] where it panics.
pub fn unless_damaged<T, E>(
    failed: impl Fn(Fault) -> E,
    read: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    // Nothing that the closure touches outlives a panic in it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(failed(Fault::Unreadable)))
}

/// All of a file that no other process has open.
fn bytes(path: &Path) -> Result<Vec<u8>, Fault> {
    let mut file = File::open(path).map_err(Fault::File)?;
    match file.try_lock_shared() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(Fault::InUse),
        Err(TryLockError::Error(error)) => return Err(Fault::File(error)),
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Fault::File)?;
    Ok(bytes)
}

fn copy(bytes: &[u8]) -> Result<Database, Fault> {
    let copy = InMemoryBackend::new();
    let filled = copy.set_len(bytes.len() as u64);
    let filled = filled.and_then(|()| copy.write(0, bytes));
    filled.map_err(Fault::File)?;
    Ok(Database::builder().create_with_backend(copy)?)
}
