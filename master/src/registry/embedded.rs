//! The registry of a single master: one redb file in its work directory.
//!
//! One thread writes. It takes all that waits, commits it in one transaction with an fsync, and
//! reports the last lsn: a burst of mutations costs one commit, a lone one waits for nobody.

use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use prost::Message;
use redb::{Database, DatabaseError, Durability, ReadableTable, TableDefinition};

use crate::core::{Lsn, Mutation, Recovered};
use crate::work_dir;

use super::records::{self, FORMAT, META_KEY, Meta};
use super::{OnPersisted, OpenError, Registry};

const RECORDS: TableDefinition<'static, &'static str, &'static [u8]> =
    TableDefinition::new("records");

/// Mutations in one transaction at most, so that a long queue still reports progress.
const BATCH_MAX: usize = 1_024;

/// The page cache; the registry is read once and is small.
const CACHE_BYTES: usize = 1024 * 1024;

/// The handle to the writer.
#[derive(Debug)]
pub struct Embedded {
    /// Whoever sends keeps to [`super::QUEUE_MAX`]: a thread of the runtime must not wait for the disk.
    queue: Option<Sender<(Lsn, Mutation)>>,
    writer: Option<JoinHandle<()>>,
}

impl Embedded {
    /// Opens or creates the file, makes the new epoch durable and starts the writer.
    pub fn open(path: &Path, on_persisted: OnPersisted) -> Result<(Recovered, Self), OpenError> {
        let file = work_dir::create_file(path).map_err(|source| OpenError::Create {
            path: path.to_owned(),
            source,
        })?;
        let mut builder = Database::builder();
        builder.set_cache_size(CACHE_BYTES);
        let database = builder.create_file(file).map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => OpenError::InUse {
                path: path.to_owned(),
            },
            error => OpenError::Open {
                path: path.to_owned(),
                source: Box::new(error.into()),
            },
        })?;
        let recovered = recover(&database, path)?;
        let (queue, waiting) = channel();
        let path = path.to_owned();
        let writer = std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || write_all(&database, &path, &waiting, &on_persisted))
            .map_err(OpenError::Spawn)?;
        let registry = Self {
            queue: Some(queue),
            writer: Some(writer),
        };
        Ok((recovered, registry))
    }
}

impl Registry for Embedded {
    fn persist(&mut self, lsn: Lsn, mutation: Mutation) {
        let Some(queue) = &self.queue else { return };
        if queue.send((lsn, mutation)).is_err() {
            fail("the registry's writer has ended", &"its queue is closed");
        }
    }

    fn close(mut self: Box<Self>) {
        self.queue = None;
        if let Some(writer) = self.writer.take()
            && writer.join().is_err()
        {
            tracing::error!("the registry's writer panicked");
        }
    }
}

/// Reads everything and makes this start's epoch durable.
fn recover(database: &Database, path: &Path) -> Result<Recovered, OpenError> {
    let read_error = |source: redb::Error| OpenError::Read {
        path: path.to_owned(),
        source: Box::new(source),
    };
    let mut recovered = Recovered::default();
    let mut meta = Meta {
        format: FORMAT,
        epoch: 0,
    };
    let transaction = database
        .begin_write()
        .map_err(|error| read_error(error.into()))?;
    {
        let mut table = transaction
            .open_table(RECORDS)
            .map_err(|error| read_error(error.into()))?;
        for entry in table.iter().map_err(|error| read_error(error.into()))? {
            let (key, value) = entry.map_err(|error| read_error(error.into()))?;
            let damaged = |source| OpenError::Damaged {
                path: path.to_owned(),
                key: key.value().to_owned(),
                source,
            };
            if key.value() == META_KEY {
                meta = Meta::decode(value.value()).map_err(damaged)?;
            } else {
                records::read(&mut recovered, key.value(), value.value()).map_err(damaged)?;
            }
        }
        if meta.format > FORMAT {
            return Err(OpenError::Newer {
                path: path.to_owned(),
                found: meta.format,
                known: FORMAT,
            });
        }
        meta.epoch += 1;
        meta.format = FORMAT;
        table
            .insert(META_KEY, meta.encode_to_vec().as_slice())
            .map_err(|error| read_error(error.into()))?;
    }
    transaction
        .commit()
        .map_err(|error| read_error(error.into()))?;
    recovered.epoch = meta.epoch;
    Ok(recovered)
}

/// The writer: ends when the queue is closed and empty.
fn write_all(
    database: &Database,
    path: &Path,
    waiting: &Receiver<(Lsn, Mutation)>,
    on_persisted: &OnPersisted,
) {
    while let Ok(first) = waiting.recv() {
        let mut batch = vec![first];
        batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
        let Some(last) = batch.iter().map(|(lsn, _)| *lsn).max() else {
            continue;
        };
        if let Err(error) = commit(database, &batch) {
            fail(
                &format!("failed to write the registry {}", path.display()),
                &error,
            );
        }
        on_persisted(last);
    }
}

fn commit(database: &Database, batch: &[(Lsn, Mutation)]) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    {
        let mut table = transaction.open_table(RECORDS)?;
        for write in batch
            .iter()
            .flat_map(|(_, mutation)| records::writes(mutation))
        {
            match write.value {
                Some(value) => table.insert(write.key.as_str(), value.as_slice())?,
                None => table.remove(write.key.as_str())?,
            };
        }
    }
    transaction.commit()?;
    Ok(())
}

/// Ends the process: what was promised can no longer be kept, and a fresh start reads the truth.
fn fail(what: &str, error: &dyn std::fmt::Display) -> ! {
    tracing::error!(%error, "{what}; ending the process");
    std::process::abort();
}

#[cfg(test)]
mod tests;
