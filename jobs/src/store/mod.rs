//! What is durable: a file in the work directory ([`embedded`]), or etcd, which several schedulers share ([`etcd`]).
//!
//! Invariant: a write is told to be durable after all before it; what a store no longer takes ends the process, since
//! what was promised could no longer be kept.

pub(crate) mod embedded;
pub(crate) mod etcd;

use tokio::sync::watch;

use crate::core::Record;

/// Writes that may wait to become durable; more hold the scheduler up.
const QUEUE_MAX: u16 = 1_024;

/// All records that a store has.
pub(crate) type Records = Vec<(String, Vec<u8>)>;

/// The way to whoever writes.
#[derive(Debug)]
pub(crate) enum Store {
    Embedded(embedded::Embedded),
    Etcd(etcd::Etcd),
}

impl Store {
    /// Queues a write; waits while too many are queued.
    pub(crate) async fn write(&self, id: u64, records: Vec<Record>) {
        match self {
            Self::Embedded(store) => store.write(id, records).await,
            Self::Etcd(store) => store.write(id, records).await,
        }
    }

    /// The last write that is durable; changes as more are.
    pub(crate) fn durable(&self) -> watch::Receiver<u64> {
        match self {
            Self::Embedded(store) => store.durable(),
            Self::Etcd(store) => store.durable(),
        }
    }

    /// Waits until all that was queued is durable, or cannot become it.
    pub(crate) async fn close(self) {
        match self {
            Self::Embedded(store) => {
                let _ = tokio::task::spawn_blocking(move || store.close()).await;
            }
            Self::Etcd(store) => store.close().await,
        }
    }
}
