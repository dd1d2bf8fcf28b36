//! One redb file, written by one thread, which commits all that waits with one fsync.
//!
//! Entered through [`open`]. Invariant: a write is told to be durable after its commit and all before it; a store that
//! cannot be written ends the process, since what was promised could no longer be kept.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use meseta_daemon::work_dir;
use redb::{Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition};
use tokio::sync::{mpsc, watch};

use super::{QUEUE_MAX, Records, Store};
use crate::core::Record;

const RECORDS: TableDefinition<'static, &'static str, &'static [u8]> =
    TableDefinition::new("records");
/// The page cache, in bytes: the file is read once.
const CACHE_BYTES: usize = 1024 * 1024;
/// Between two looks at a store that another process has.
const HELD_POLL: Duration = Duration::from_secs(1);

/// Why a store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to open the store {path}: is another scheduler running with this --work_dir?")]
    Open {
        path: PathBuf,
        #[source]
        source: redb::Error,
    },
    #[error("failed to read the store {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: redb::Error,
    },
    #[error("failed to start the thread that writes the store")]
    Spawn(#[source] std::io::Error),
}

/// The way to the thread that writes.
#[derive(Debug)]
pub(crate) struct Embedded {
    queue: Option<mpsc::Sender<(u64, Vec<Record>)>>,
    durable: watch::Receiver<u64>,
    writer: Option<JoinHandle<()>>,
}

/// Opens or makes a store, and gives what it has. Waits as long as `patience` for another process that has it and may be
/// ending.
///
/// # Errors
/// It cannot be opened or read, or the other process has it still.
pub(crate) async fn open(path: &Path, patience: Duration) -> Result<(Records, Store), StoreError> {
    let until = tokio::time::Instant::now() + patience;
    let database = loop {
        match open_database(path) {
            Ok(database) => break database,
            Err(redb::Error::DatabaseAlreadyOpen) if tokio::time::Instant::now() < until => {
                tracing::info!(path = %path.display(), "another process has the store; waiting for its end");
                tokio::time::sleep(HELD_POLL).await;
            }
            Err(source) => {
                let path = path.to_owned();
                return Err(StoreError::Open { path, source });
            }
        }
    };
    let records = read(&database).map_err(|source| StoreError::Read {
        path: path.to_owned(),
        source,
    })?;
    let (queue, waiting) = mpsc::channel(usize::from(QUEUE_MAX));
    let (told, durable) = watch::channel(0);
    let path = path.to_owned();
    let writer = std::thread::Builder::new()
        .name("store".to_owned())
        .spawn(move || write_all(&database, &path, waiting, &told))
        .map_err(StoreError::Spawn)?;
    let store = Embedded {
        queue: Some(queue),
        durable,
        writer: Some(writer),
    };
    Ok((records, Store::Embedded(store)))
}

/// A file that nobody but its owner reads, whatever it was before: jobs hold secrets in their environment.
fn open_database(path: &Path) -> Result<Database, redb::Error> {
    work_dir::create_file(path)?;
    let builder = &mut Database::builder();
    Ok(builder.set_cache_size(CACHE_BYTES).create(path)?)
}

impl Embedded {
    pub(super) async fn write(&self, id: u64, records: Vec<Record>) {
        if let Some(queue) = &self.queue {
            // The writer ends with the process or with this handle.
            let _ = queue.send((id, records)).await;
        }
    }

    pub(super) fn durable(&self) -> watch::Receiver<u64> {
        self.durable.clone()
    }

    /// Waits until all that was queued is durable.
    pub(super) fn close(mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the thread that writes the store panicked");
        }
    }
}

fn read(database: &Database) -> Result<Records, redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(RECORDS) {
        Ok(table) => table,
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut records = Vec::new();
    for entry in table.iter()? {
        let (key, value) = entry?;
        records.push((key.value().to_owned(), value.value().to_vec()));
    }
    Ok(records)
}

fn write_all(
    database: &Database,
    path: &Path,
    mut waiting: mpsc::Receiver<(u64, Vec<Record>)>,
    told: &watch::Sender<u64>,
) {
    while let Some(first) = waiting.blocking_recv() {
        let mut batch = vec![first];
        while let Ok(next) = waiting.try_recv() {
            batch.push(next);
        }
        if let Err(error) = commit(database, &batch) {
            tracing::error!(path = %path.display(), %error, "failed to write the store; ending the process");
            std::process::abort();
        }
        if let Some((last, _)) = batch.last() {
            told.send_replace(*last);
        }
    }
}

fn commit(database: &Database, batch: &[(u64, Vec<Record>)]) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(RECORDS)?;
        for record in batch.iter().flat_map(|(_, records)| records) {
            match &record.value {
                Some(value) => table.insert(record.key.as_str(), value.as_slice())?,
                None => table.remove(record.key.as_str())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn nobody_else_reads_a_store() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        open(&path, Duration::ZERO).await.unwrap().1.close().await;
        assert_eq!(mode(), 0o600);
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        open(&path, Duration::ZERO).await.unwrap().1.close().await;
        assert_eq!(mode(), 0o600);
    }

    #[tokio::test]
    async fn what_is_told_to_be_durable_is_there_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("jobs.redb");
        let (records, store) = open(&path, Duration::ZERO).await.unwrap();
        assert_eq!(records, []);
        let put = |key: &str, value: Option<&str>| Record {
            key: key.to_owned(),
            value: value.map(|value| value.as_bytes().to_vec()),
        };
        store
            .write(1, vec![put("a", Some("1")), put("b", Some("2"))])
            .await;
        store
            .write(2, vec![put("a", None), put("b", Some("3"))])
            .await;
        let mut durable = store.durable();
        durable.wait_for(|last| *last == 2).await.unwrap();
        let error = open(&path, Duration::ZERO).await.unwrap_err();
        assert!(error.to_string().contains("--work_dir"), "{error}");
        store.close().await;
        let (records, store) = open(&path, Duration::ZERO).await.unwrap();
        assert_eq!(records, [("b".to_owned(), b"3".to_vec())]);
        store.close().await;
    }
}
