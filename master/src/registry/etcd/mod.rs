//! The registry of several masters: records in etcd ([`meseta_etcd::store`]), which only the leader writes.
//!
//! [`copying`] reads and fills a registry while no master uses it.

pub(super) mod copying;

use meseta_etcd::Client;
use meseta_etcd::leadership::Fence;
use meseta_etcd::leadership::election::Elected;
use meseta_etcd::store::{self, Cluster, Keys, Layout, Opened, Queue, StoreError, Writing};
use tokio::sync::watch;

use super::{OnPersisted, Registry, records};
use crate::core::{Lsn, Mutation, Recovered};

/// The layout of the registry in etcd.
pub(crate) const LAYOUT: Layout = Layout {
    format: records::FORMAT,
    raised_epoch: Some((records::EPOCH_KEY, records::raised_epoch)),
};

/// The handle to the writer.
#[derive(Debug)]
pub(crate) struct Etcd {
    queue: Queue<Mutation>,
    runtime: tokio::runtime::Handle,
}

/// Takes over the registry as the elected leader and starts the writer, which reports its state.
pub(crate) async fn open(
    client: &Client,
    keys: &Keys,
    cluster: &Cluster,
    elected: &Elected,
    fence: &Fence,
    on_persisted: OnPersisted,
) -> Result<(Recovered, Etcd, watch::Receiver<Writing>), StoreError> {
    let on_durable = Box::new(move |number| on_persisted(Lsn(number)));
    let Opened {
        epoch,
        cluster_id,
        values,
        queue,
        writing,
    } = store::open(
        client,
        keys,
        &LAYOUT,
        cluster,
        (elected, fence),
        records::writes,
        on_durable,
    )
    .await?;
    let mut recovered = Recovered {
        epoch,
        cluster_id,
        ..Recovered::default()
    };
    for (key, value) in &values {
        let read = records::read(&mut recovered, key, value);
        read.map_err(|source| StoreError::Damaged {
            key: keys.record(key),
            source,
        })?;
    }
    let registry = Etcd {
        queue,
        runtime: tokio::runtime::Handle::current(),
    };
    Ok((recovered, registry, writing))
}

impl Registry for Etcd {
    fn persist(&mut self, lsn: Lsn, mutation: Mutation) {
        self.queue.send(lsn.0, mutation);
    }

    fn close(self: Box<Self>) {
        self.runtime.block_on(self.queue.close());
    }
}

#[cfg(test)]
mod tests;
