//! The registry of a single master: one redb file in its work directory, and a marker beside it.
//!
//! One thread writes. It takes all waiting mutations, commits them in one transaction with an fsync, and reports the
//! last lsn: a burst of mutations costs one commit, and a single one waits for no other.

mod filling;
mod marker;
mod opening;

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use meseta_daemon::disk_pulse::{self, DiskPulse};
use prost::Message;
use redb::{Database, Durability, TableDefinition};
use rustix::fs::{Mode, OFlags};

use super::content::Content;
use super::records::{self, META_KEY, Meta};
use super::{OnPersisted, OpenError, Registry};
use crate::core::{Lsn, Mutation, Recovered};
use opening::Opened;

const RECORDS: TableDefinition<'static, &'static str, &'static [u8]> =
    TableDefinition::new("records");

/// The number of mutations in one transaction, so that a long queue still reports progress.
const BATCH_MAX: usize = 1_024;

/// The time without a write after which the thread checks whether the disk still accepts one.
const PROBE_INTERVAL: Duration = Duration::from_secs(10);

/// The size of the page cache; the registry is small and is read once.
const CACHE_BYTES: usize = 1024 * 1024;

/// The handle to the writer.
#[derive(Debug)]
pub struct Embedded {
    /// The queue to the writer. The sender observes [`super::QUEUE_MAX`], because a thread of the runtime must not
    /// wait for the disk.
    queue: Option<Sender<(Lsn, Mutation)>>,
    writer: Option<JoinHandle<()>>,
    pulse: DiskPulse,
}

impl Embedded {
    /// Opens or creates the file, makes the new epoch durable and starts the writer, which reports through `pulse`
    /// whether the disk responds.
    pub fn open(
        path: &Path,
        pulse: DiskPulse,
        on_persisted: OnPersisted,
    ) -> Result<(Recovered, Self), OpenError> {
        let Opened {
            database,
            recovered,
            meta,
            content,
        } = opening::open(path)?;
        let (queue, waiting) = channel();
        let path = path.to_owned();
        let writer_pulse = pulse.clone();
        let writer = std::thread::Builder::new()
            .name("registry".to_owned())
            .spawn(move || {
                let mut state = State { meta, content };
                write_all(
                    &database,
                    &path,
                    &waiting,
                    &on_persisted,
                    &writer_pulse,
                    &mut state,
                );
            })
            .map_err(OpenError::Spawn)?;
        let registry = Self {
            queue: Some(queue),
            writer: Some(writer),
            pulse,
        };
        Ok((recovered, registry))
    }
}

pub(super) use filling::fill;
pub(super) use opening::{inspect, is_absent};

/// The state that the writer updates with each write.
struct State {
    meta: Meta,
    content: Content,
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
        if let Some(writer) = self.writer.take() {
            disk_pulse::join_writer(writer, self.pulse);
        }
    }
}

/// The writer thread; ends when the queue is closed and empty.
fn write_all(
    database: &Database,
    path: &Path,
    waiting: &Receiver<(Lsn, Mutation)>,
    on_persisted: &OnPersisted,
    pulse: &DiskPulse,
    state: &mut State,
) {
    loop {
        let first = match waiting.recv_timeout(PROBE_INTERVAL) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) => {
                try_disk(path, pulse);
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut batch = vec![first];
        batch.extend(waiting.try_iter().take(BATCH_MAX - 1));
        let Some(last) = batch.iter().map(|(lsn, _)| *lsn).max() else {
            continue;
        };
        pulse.begin();
        let committed = commit(database, &batch, state);
        pulse.end();
        if let Err(error) = committed {
            fail(
                &format!("failed to write the registry {}", path.display()),
                &error,
            );
        }
        on_persisted(last);
    }
}

/// Writes a byte beside the registry and waits until the disk has it. An error counts as a response too: the next
/// commit reports the problem.
fn try_disk(path: &Path, pulse: &DiskPulse) {
    pulse.begin();
    let probe = path.with_extension("probe");
    let opened = rustix::fs::open(
        probe,
        OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC,
        Mode::RUSR | Mode::WUSR,
    );
    if let Ok(file) = opened {
        let mut file = File::from(file);
        let _ = file.write_all(b"w").and_then(|()| file.sync_data());
    }
    pulse.end();
}

fn commit(
    database: &Database,
    batch: &[(Lsn, Mutation)],
    state: &mut State,
) -> Result<(), redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    // A durable commit stays durable after a later interrupted commit.
    transaction.set_two_phase_commit(true);
    {
        let mut table = transaction.open_table(RECORDS)?;
        for write in batch
            .iter()
            .flat_map(|(_, mutation)| records::writes(mutation))
        {
            let before = match &write.value {
                Some(value) => table.insert(write.key.as_str(), value.as_slice())?,
                None => table.remove(write.key.as_str())?,
            };
            if let Some(before) = before {
                state.content.remove(&write.key, before.value());
            }
            if let Some(value) = &write.value {
                state.content.add(&write.key, value);
            }
        }
        state.meta.content = Some(state.content.stored());
        table.insert(META_KEY, state.meta.encode_to_vec().as_slice())?;
    }
    transaction.commit()?;
    Ok(())
}

/// Ends the process: the registry can no longer keep its promises, and a restart reads the true state.
fn fail(what: &str, error: &dyn std::fmt::Display) -> ! {
    tracing::error!(%error, "{what}; ending the process");
    std::process::abort();
}

#[cfg(test)]
mod tests;
