//! The durable store: a file in the work directory ([`embedded`]), or etcd, which several schedulers share ([`etcd`]).
//! [`disk_report`] tells `/health` about the disk of that file.
//!
//! Invariants: a write is reported durable after all before it; a store that refuses a write ends the process, since it
//! could no longer keep its promises; queueing a write never waits. While a store is full ([`Store::is_full`]), the
//! scheduler decides nothing more until it has room.

pub(crate) mod disk_report;
pub(crate) mod embedded;
pub(crate) mod etcd;

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;

use crate::core::Record;

/// Writes that may wait to become durable, and their bytes. While more wait, the scheduler makes no decisions.
const WRITES_MAX: usize = 1_024;
const BYTES_MAX: usize = 64 << 20;

/// The time that the end of a scheduler waits for its store. Without the last writes the end equals that of a killed
/// scheduler, which promised none of them.
const CLOSE_WAIT: Duration = Duration::from_secs(10);

/// Between two tries to write to a full disk.
pub(crate) const ROOM_POLL: Duration = Duration::from_secs(1);

/// All records of a store.
pub(crate) type Records = Vec<(String, Vec<u8>)>;

/// The queue of the writer, and the writes that are not durable yet.
#[derive(Debug)]
pub(crate) struct Store {
    writer: Writer,
    /// The writes' numbers and bytes, the oldest first.
    waiting: VecDeque<(u64, usize)>,
    waiting_bytes: usize,
}

#[derive(Debug)]
pub(crate) enum Writer {
    Embedded(embedded::Embedded),
    Etcd(etcd::Etcd),
    /// A writer that makes writes durable when the test permits it.
    #[cfg(test)]
    Stalled(watch::Receiver<u64>),
}

impl Store {
    pub(crate) fn new(writer: Writer) -> Self {
        Self {
            writer,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
        }
    }

    /// Queues a write; never waits.
    pub(crate) fn write(&mut self, id: u64, records: Vec<Record>) {
        let bytes = records.iter().map(bytes_of).sum();
        self.waiting.push_back((id, bytes));
        self.waiting_bytes += bytes;
        match &self.writer {
            Writer::Embedded(store) => store.write(id, records),
            Writer::Etcd(store) => store.write(id, records),
            #[cfg(test)]
            Writer::Stalled(_) => {}
        }
    }

    /// Whether the largest allowed number of writes waits.
    pub(crate) fn is_full(&mut self) -> bool {
        let durable = *self.durable().borrow();
        while let Some((_, bytes)) = self.waiting.pop_front_if(|(id, _)| *id <= durable) {
            self.waiting_bytes -= bytes;
        }
        self.waiting.len() >= WRITES_MAX || self.waiting_bytes >= BYTES_MAX
    }

    /// Returns the number of the last durable write, which grows with further writes.
    pub(crate) fn durable(&self) -> watch::Receiver<u64> {
        match &self.writer {
            Writer::Embedded(store) => store.durable(),
            Writer::Etcd(store) => store.durable(),
            #[cfg(test)]
            Writer::Stalled(durable) => durable.clone(),
        }
    }

    /// Waits until all queued writes are durable, or cannot become durable. An unresponsive disk is waited for
    /// [`CLOSE_WAIT`].
    pub(crate) async fn close(self) {
        match self.writer {
            Writer::Embedded(store) => {
                let closing = tokio::task::spawn_blocking(move || store.close());
                if tokio::time::timeout(CLOSE_WAIT, closing).await.is_err() {
                    tracing::error!(
                        "the disk of the store takes too long; ending before the last writes are durable"
                    );
                }
            }
            Writer::Etcd(store) => store.close().await,
            #[cfg(test)]
            Writer::Stalled(_) => {}
        }
    }
}

/// Returns whether there is no room on the disk, which may come.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded
    )
}

/// The reason why a scheduler waits for a disk, in words for people.
pub(crate) fn full_text(path: &Path) -> String {
    format!("the disk of {} is full: free space on it", path.display())
}

fn bytes_of(record: &Record) -> usize {
    record.key.len() + record.value.as_ref().map_or(0, Vec::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_large_writes_fill_store_equally() {
        let record = |bytes: usize| Record {
            key: String::new(),
            value: Some(vec![0; bytes]),
        };
        for (bytes, most) in [(0, WRITES_MAX), (BYTES_MAX / 4, 4)] {
            let (told, durable) = watch::channel(0);
            let mut store = Store::new(Writer::Stalled(durable));
            for id in 1..=most as u64 {
                assert!(!store.is_full(), "{id} of {bytes} bytes");
                store.write(id, vec![record(bytes)]);
            }
            assert!(store.is_full(), "{bytes} bytes");
            told.send_replace(1);
            assert!(!store.is_full(), "one is durable");
        }
    }
}
