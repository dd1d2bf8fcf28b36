//! The file of an embedded database. It is read as a whole in a copy before any change: a repair may drop damaged parts.
//!
//! Entered through [`is_blank`], [`inspect`] and [`open`]. Invariants: a file that is damaged or in use is a [`Fault`],
//! even if the database panics on it, and has not been changed then; a file that may hold a record is never created anew.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use redb::backends::InMemoryBackend;
use redb::{Database, DatabaseError, StorageBackend as _};

use crate::work_dir;

/// The first bytes of a database file. The database writes them last when it creates a file.
const MAGIC: [u8; 9] = *b"redb\x1a\x0a\xa9\x0d\x0a";

/// The bytes of the header, which begins with the magic number; records follow it.
const HEADER_BYTES: usize = 320;

/// The reason why a file cannot be used.
#[derive(Debug)]
pub enum Fault {
    /// Another process has opened the file.
    InUse,
    /// The system cannot open, read or write the file, which says nothing about its contents: [`cure`] has the remedy.
    File(io::Error),
    /// The database cannot open the file.
    Open(Box<redb::Error>),
    /// The database panicked while reading the file.
    Unreadable,
}

impl From<DatabaseError> for Fault {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => Self::InUse,
            error => redb::Error::from(error).into(),
        }
    }
}

impl From<redb::Error> for Fault {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            // Errors that the database itself finds have no system error number.
            redb::Error::Io(error)
                if error.raw_os_error().is_some() || error.kind() == ErrorKind::WriteZero =>
            {
                Self::File(error)
            }
            redb::Error::PreviousIo => Self::File(io::Error::other("an earlier write failed")),
            error => Self::Open(Box::new(error)),
        }
    }
}

/// Returns the remedy for a file that the system cannot open, read or write.
#[must_use]
pub fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "make the user of this daemon its owner",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "free space on its file system and start again: the file keeps its contents"
        }
        ErrorKind::ReadOnlyFilesystem => {
            "make its file system writable; the system's log shows whether a failure made it \
             read-only. The file keeps its contents"
        }
        _ => {
            "the contents are not damaged: look for errors of the disk in the system's log (`dmesg`), and start again"
        }
    }
}

/// Whether a file has no content, so that a new database may be created in it: the file is missing or empty, or its
/// creation was interrupted by a full disk or a crash.
///
/// # Errors
///
/// Returns [`Fault::File`].
pub fn is_blank(path: &Path) -> Result<bool, Fault> {
    match File::open(path) {
        Ok(file) => holds_nothing(&file).map_err(Fault::File),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(true),
        Err(error) => Err(Fault::File(error)),
    }
}

/// Whether a file has neither a magic number nor data after its header. Reads from the current position.
fn holds_nothing(file: &File) -> io::Result<bool> {
    const CHUNK_BYTES: usize = 64 * 1024;
    // A device has no end of file.
    let mut left = file.take(file.metadata()?.len());
    let mut header = Vec::with_capacity(HEADER_BYTES);
    left.by_ref()
        .take(HEADER_BYTES as u64)
        .read_to_end(&mut header)?;
    if header.iter().take(MAGIC.len()).any(|byte| *byte != 0) {
        return Ok(false);
    }
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let length = left.read(&mut chunk)?;
        if length == 0 {
            return Ok(true);
        }
        if chunk.iter().take(length).any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
}

/// Runs `read` on a copy in memory of a file that no process has open. The argument of `read` says whether the database
/// found the file whole, and `failed` converts a fault. Blocks, and needs memory for the whole file.
///
/// # Errors
///
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

/// Opens or creates the file, which only its owner may read from now on. A file that [`is_blank`] is created anew: callers
/// that know of earlier contents check before.
///
/// # Errors
///
/// Every [`Fault`] but [`Fault::Unreadable`].
pub fn open(path: &Path, cache_bytes: usize) -> Result<Database, Fault> {
    let file = work_dir::create_file(path).map_err(Fault::File)?;
    // The database keeps this lock. Before the lock is taken, another process may be creating the file.
    locked(file.try_lock())?;
    let length = file.metadata().map_err(Fault::File)?.len();
    if length > 0 && holds_nothing(&file).map_err(Fault::File)? {
        tracing::warn!(
            path = %path.display(),
            length,
            "the file has no contents, for example after a full disk or a crash; creating it again"
        );
        file.set_len(0).map_err(Fault::File)?;
    }
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    Ok(builder.create_file(file)?)
}

/// Runs `read` and catches its panics. The database checks most of its input and panics on some of the rest: for the
/// operator both are a damaged file.
///
/// # Errors
///
/// Those of `read`, and [`Fault::Unreadable`] where it panics.
pub fn unless_damaged<T, E>(
    failed: impl Fn(Fault) -> E,
    read: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    // No state of the closure outlives a panic in it.
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| Err(failed(Fault::Unreadable)))
}

/// Returns all bytes of a file that no other process has open.
fn bytes(path: &Path) -> Result<Vec<u8>, Fault> {
    let mut file = File::open(path).map_err(Fault::File)?;
    locked(file.try_lock_shared())?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(Fault::File)?;
    Ok(bytes)
}

fn locked(locked: Result<(), TryLockError>) -> Result<(), Fault> {
    locked.map_err(|error| match error {
        TryLockError::WouldBlock => Fault::InUse,
        TryLockError::Error(error) => Fault::File(error),
    })
}

fn copy(bytes: &[u8]) -> Result<Database, Fault> {
    let copy = InMemoryBackend::new();
    let filled = copy.set_len(bytes.len() as u64);
    let filled = filled.and_then(|()| copy.write(0, bytes));
    filled.map_err(Fault::File)?;
    Ok(Database::builder().create_with_backend(copy)?)
}

#[cfg(test)]
mod tests;
