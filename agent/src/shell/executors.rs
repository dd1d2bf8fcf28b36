//! The streams to executors: a bounded queue each, from the core to the connection that reads it.
//!
//! A reader that does not keep up loses its stream, not its events: it subscribes again and is told
//! what it has missed. Whoever opens a stream tells the core, and tells it again when it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use meseta_proto::mesos::v1::executor::Event;
use tokio::sync::mpsc;
use tracing::warn;

use crate::core::ConnectionId;

/// Events that one executor may have waiting.
const EVENTS_MAX: usize = 1024;

/// All streams that are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecutorStreams {
    opened: Arc<AtomicU64>,
    streams: Arc<Mutex<BTreeMap<ConnectionId, mpsc::Sender<Event>>>>,
}

impl ExecutorStreams {
    /// A new stream.
    pub(crate) fn open(&self) -> (ConnectionId, mpsc::Receiver<Event>) {
        let connection = ConnectionId(self.opened.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        self.table().insert(connection, sender);
        (connection, events)
    }

    /// Says something on a stream; to nobody if it is gone.
    pub(crate) fn tell(&self, connection: ConnectionId, event: Event) {
        let mut table = self.table();
        let Some(stream) = table.get(&connection) else {
            return;
        };
        if stream.try_send(event).is_err() {
            warn!(
                ?connection,
                "an executor does not read its events; its stream ends"
            );
            table.remove(&connection);
        }
    }

    /// Ends a stream.
    pub(crate) fn close(&self, connection: ConnectionId) {
        self.table().remove(&connection);
    }

    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<ConnectionId, mpsc::Sender<Event>>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
