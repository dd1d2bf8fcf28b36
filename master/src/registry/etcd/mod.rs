//! The registry of several masters: records in etcd, which only the leader writes.
//!
//! - [`copying`]: reading and filling one while no master has it;
//! - [`keys`]: where things lie;
//! - [`plan`]: which transactions mutations become;
//! - [`reading`]: taking a registry over;
//! - [`writer`]: doing the transactions, in order, until each one is done.
//!
//! Invariant: each transaction is compared with *the leader's key is mine, and the number of the last transaction is
//! the one before this*, so one that was sent twice, late, or by a master that leads no more takes no effect.

pub(super) mod copying;
mod keys;
mod plan;
mod reading;
mod writer;

use std::time::Duration;

use meseta_etcd::Client;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::{OnPersisted, Registry};
use crate::core::{Lsn, Mutation, Recovered};
use crate::leadership::Fence;
use crate::leadership::election::Elected;

pub(crate) use keys::Keys;
use plan::Transaction;

/// Which cluster the registry is of.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    /// As `--cluster` names it; empty if it does not.
    pub(crate) name: String,
    /// For a registry that is new.
    pub(crate) new_id: String,
}

/// Why a registry in etcd cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("failed to reach the registry in etcd")]
    Etcd(#[from] meseta_etcd::Error),
    #[error("another master leads now")]
    LeadershipLost,
    #[error(
        "the registry below {prefix} in etcd was written in format {found}; this master knows formats up to {known}: \
         start the newer version that wrote it"
    )]
    Newer {
        prefix: String,
        found: u32,
        known: u32,
    },
    #[error(
        "the registry below {prefix} in etcd is of the cluster {found:?}, and --cluster is {given:?}: give another \
         --etcd_prefix, or the cluster's name"
    )]
    AnotherCluster {
        prefix: String,
        found: String,
        given: String,
    },
    #[error("the registry in etcd has a damaged record {key}: restore etcd from a snapshot")]
    Damaged {
        key: String,
        #[source]
        source: prost::DecodeError,
    },
    #[error(
        "the registry in etcd has {found:?} where a number belongs, at {key}: restore etcd from a snapshot"
    )]
    Unreadable { key: String, found: String },
    #[error(
        "the registry in etcd has {found} of {expected} parts of a change, below {key}: restore etcd from a snapshot"
    )]
    Incomplete {
        key: String,
        found: u32,
        expected: u32,
    },
    #[error(
        "the registry in etcd has another number of transactions than this master wrote: another program writes it"
    )]
    Interfered,
}

/// How the writing of mutations goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Writing {
    #[default]
    Works,
    /// Nothing could be written for a while, and the writer goes on trying.
    Stalled(String),
    /// Nothing will be written any more.
    Ended(String),
}

/// The handle to the writer.
#[derive(Debug)]
pub(crate) struct Etcd {
    fence: Fence,
    queue: Option<mpsc::UnboundedSender<(Lsn, Mutation)>>,
    writer: Option<JoinHandle<()>>,
    runtime: tokio::runtime::Handle,
}

/// Takes the registry over as the elected leader and starts the writer, which tells how it goes.
pub(crate) async fn open(
    client: &Client,
    keys: &Keys,
    cluster: &Cluster,
    elected: &Elected,
    fence: &Fence,
    on_persisted: OnPersisted,
) -> Result<(Recovered, Etcd, watch::Receiver<Writing>), EtcdError> {
    let taken = reading::take_over(client, keys, cluster, elected).await?;
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever sends keeps to QUEUE_MAX, and must not wait"
    )]
    let (queue, waiting) = mpsc::unbounded_channel();
    let (told, writing) = watch::channel(Writing::default());
    let writer = writer::Writer {
        client: client.clone(),
        keys: keys.clone(),
        leader_created: elected.created,
        fence: fence.clone(),
        planner: taken.planner,
        waiting,
        told,
    };
    let registry = Etcd {
        fence: fence.clone(),
        queue: Some(queue),
        writer: Some(tokio::spawn(writer.run(taken.unfinished, on_persisted))),
        runtime: tokio::runtime::Handle::current(),
    };
    Ok((taken.recovered, registry, writing))
}

impl Registry for Etcd {
    fn persist(&mut self, lsn: Lsn, mutation: Mutation) {
        // A writer that has ended has told so, and the master ends.
        if let Some(queue) = &self.queue {
            let _unsent = queue.send((lsn, mutation));
        }
    }

    fn close(mut self: Box<Self>) {
        /// What is not written by then was promised to nobody.
        const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
        self.queue = None;
        let Some(mut writer) = self.writer.take().filter(|_| self.fence.is_open()) else {
            return;
        };
        let written = tokio::time::timeout(CLOSE_TIMEOUT, &mut writer);
        match self.runtime.block_on(written) {
            Ok(Ok(())) => {}
            Ok(Err(_)) => tracing::error!("the registry's writer panicked"),
            Err(_) => {
                tracing::warn!("not all that was to be written to the registry was");
                writer.abort();
            }
        }
    }
}

#[cfg(test)]
mod tests;
