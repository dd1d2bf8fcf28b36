//! Records in etcd below one prefix, which only the leader of the daemons that share them writes.
//!
//! [`open`] takes them over.
//! - [`copying`]: reading and filling them while nobody leads;
//! - [`keep_role`](mod@keep_role): a leader's role while it acts;
//! - [`keys`]: the keys of all data;
//! - [`plan`]: the transactions of changes;
//! - [`reading`]: taking the records over;
//! - [`writer`]: carrying the transactions out, in order, until each one is done.
//!
//! Invariant: each transaction is compared with *the leader's key is mine, and the number of the last transaction is the one
//! before this*, so that a transaction that was sent twice, late, or by a former leader takes no effect.

pub mod copying;
mod keep_role;
mod keys;
mod plan;
mod reading;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prost::Message;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::leadership::Fence;
use crate::leadership::election::Elected;
use crate::{Client, Error};

pub use keep_role::keep_role;
pub use keys::Keys;
pub use reading::{Meta, check_name, is_of_cluster, read_record, until_another_cluster};

/// A write of one record, or its deletion if there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub key: String,
    pub value: Option<Vec<u8>>,
}

impl Write {
    pub fn put(key: String, value: &impl Message) -> Self {
        Self {
            key,
            value: Some(value.encode_to_vec()),
        }
    }

    pub fn delete(key: String) -> Self {
        Self { key, value: None }
    }
}

/// The layout of the records of a kind of daemon.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// The version of all records together.
    pub format: u32,
    /// A record that may require a higher epoch than the last, and the parser of its value.
    pub raised_epoch: Option<RaisedEpoch>,
}

/// The name of the record of a raised epoch, and the parser of its value.
pub type RaisedEpoch = (&'static str, fn(&[u8]) -> Result<u64, prost::DecodeError>);

/// The cluster of the records.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The configured name of the cluster; empty if it has no name.
    pub name: String,
    /// The cluster's id if the records are new.
    pub new_id: String,
}

/// Errors that make records in etcd unusable.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to read or write the records in etcd")]
    Etcd(#[from] Error),
    #[error("another daemon leads now")]
    LeadershipLost,
    #[error(
        "the data below {prefix} in etcd has format {found}; this version knows formats up to {known}: start \
         the newer version that wrote it"
    )]
    Newer {
        prefix: String,
        found: u32,
        known: u32,
    },
    #[error(
        "the data below {prefix} in etcd belongs to the cluster {found:?}, but this is {given:?}: give another --etcd_prefix, or the right cluster name"
    )]
    AnotherCluster {
        prefix: String,
        found: String,
        given: String,
    },
    #[error("the record {key} in etcd is damaged: restore etcd from a snapshot")]
    Damaged {
        key: String,
        #[source]
        source: prost::DecodeError,
    },
    #[error("{key} in etcd has {found:?} instead of a number: restore etcd from a snapshot")]
    Unreadable { key: String, found: String },
    #[error(
        "a change below {key} in etcd has {found} of {expected} parts: restore etcd from a snapshot"
    )]
    Incomplete {
        key: String,
        found: u32,
        expected: u32,
    },
    #[error(
        "etcd has a different number of transactions than this daemon wrote: stop the other \
         program that writes there"
    )]
    Interfered,
}

/// The state of the writer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Writing {
    #[default]
    Works,
    /// All writes have failed for a while, and the writer keeps trying.
    Stalled(String),
    /// The writer has ended and writes nothing more.
    Ended(String),
}

/// The writer calls this with the number of the last durable change.
pub type OnDurable = Box<dyn Fn(u64) + Send>;

/// The queue of changes of one kind, which leads to their writer.
pub struct Queue<C> {
    fence: Fence,
    changes: Option<mpsc::UnboundedSender<(u64, C)>>,
    writer: Option<JoinHandle<()>>,
}

impl<C> fmt::Debug for Queue<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl<C> Queue<C> {
    /// Queues a change, and never waits; numbers only grow. The caller limits the number of changes that are not durable.
    pub fn send(&self, number: u64, change: C) {
        // A writer that has ended has reported it, and the daemon ends.
        if let Some(changes) = &self.changes {
            let _unsent = changes.send((number, change));
        }
    }

    /// Returns when all queued changes are durable, or cannot be written.
    pub async fn close(mut self) {
        /// Changes that are unwritten by then were never promised.
        const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
        self.changes = None;
        let Some(mut writer) = self.writer.take().filter(|_| self.fence.is_open()) else {
            return;
        };
        match tokio::time::timeout(CLOSE_TIMEOUT, &mut writer).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!("the writer of the records in etcd panicked"),
            Err(_) => {
                tracing::warn!("not all records were written to etcd");
                writer.abort();
            }
        }
    }
}

/// Records that were taken over.
#[derive(Debug)]
pub struct Opened<C> {
    pub epoch: u64,
    pub cluster_id: String,
    /// The records by name.
    pub values: BTreeMap<String, Vec<u8>>,
    pub queue: Queue<C>,
    pub writing: watch::Receiver<Writing>,
}

/// Takes the records over as the elected leader and starts the writer, which reports its state. `writes` returns the records
/// that a change touches.
///
/// # Errors
/// When the records cannot be read, or another daemon leads by now.
pub async fn open<C: Send + 'static>(
    client: &Client,
    keys: &Keys,
    layout: &Layout,
    cluster: &Cluster,
    (elected, fence): (&Elected, &Fence),
    writes: fn(&C) -> Vec<Write>,
    on_durable: OnDurable,
) -> Result<Opened<C>, StoreError> {
    let taken = reading::take_over(client, keys, layout, cluster, elected).await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever sends limits how many are not durable, and must not wait"
    )]
    let (changes, waiting) = mpsc::unbounded_channel();
    let (told, writing) = watch::channel(Writing::default());
    let writer = writer::Writer {
        client: client.clone(),
        keys: keys.clone(),
        leader_created: elected.created,
        fence: fence.clone(),
        planner: taken.planner,
        waiting,
        writes,
        told,
    };
    let queue = Queue {
        fence: fence.clone(),
        changes: Some(changes),
        writer: Some(tokio::spawn(writer.run(taken.unfinished, on_durable))),
    };
    Ok(Opened {
        epoch: taken.meta.epoch,
        cluster_id: taken.meta.id,
        values: taken.values,
        queue,
        writing,
    })
}
