//! The streams to executors: a queue each, bounded in bytes, from the core to the connection that reads it.
//!
//! A reader that does not keep up is spared messages of its framework, which promise nothing, and then loses
//! its stream, not its events: it subscribes again and is told what it has missed. Whoever opens a stream
//! tells the core, and tells it again when it ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use meseta_proto::mesos::v1::executor::{Event, event};
use prost::Message as _;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::core::ConnectionId;

/// Events that one executor may have waiting.
const EVENTS_MAX: usize = 1024;
/// Bytes of events that one executor may have waiting; one event alone may be larger.
const STREAM_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Messages of frameworks are dropped from here on.
const MESSAGES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same for all executors together: whoever has most waiting loses its stream.
const ALL_BYTES_MAX: usize = 48 * 1024 * 1024;
const ALL_MESSAGES_BYTES_MAX: usize = 16 * 1024 * 1024;

/// All streams that are open.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExecutorStreams {
    opened: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    waiting: Arc<AtomicUsize>,
    streams: Arc<Mutex<BTreeMap<ConnectionId, Stream>>>,
}

#[derive(Debug)]
struct Stream {
    events: mpsc::Sender<Queued>,
    waiting: Arc<AtomicUsize>,
}

/// An event that waits, and counts until it is gone.
#[derive(Debug)]
pub(crate) struct Queued {
    event: Event,
    bytes: usize,
    counted_in: [Arc<AtomicUsize>; 2],
}

impl Queued {
    /// What is to be said.
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        for counter in &self.counted_in {
            counter.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }
}

impl ExecutorStreams {
    /// A new stream.
    pub(crate) fn open(&self) -> (ConnectionId, mpsc::Receiver<Queued>) {
        let connection = ConnectionId(self.opened.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let stream = Stream {
            events: sender,
            waiting: Arc::default(),
        };
        self.table().insert(connection, stream);
        (connection, events)
    }

    /// Says something on a stream; to nobody if it is gone.
    pub(crate) fn tell(&self, connection: ConnectionId, event: Event) {
        let bytes = event.encoded_len();
        let is_message = event.r#type() == event::Type::Message;
        let mut table = self.table();
        let Some(stream) = table.get(&connection) else {
            return;
        };
        let own = stream.waiting.load(Ordering::Relaxed);
        let all = self.waiting.load(Ordering::Relaxed).saturating_add(bytes);
        let is_behind = own > 0 && own.saturating_add(bytes) > MESSAGES_BYTES_MAX;
        if is_message && (is_behind || all > ALL_MESSAGES_BYTES_MAX) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            debug!(
                ?connection,
                "dropped a message to an executor that does not read its events"
            );
            return;
        }
        let counted_in = [stream.waiting.clone(), self.waiting.clone()];
        for counter in &counted_in {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
        let queued = Queued {
            event,
            bytes,
            counted_in,
        };
        let is_over = own > 0 && own.saturating_add(bytes) > STREAM_BYTES_MAX;
        let events = stream.events.clone();
        if is_over || events.try_send(queued).is_err() {
            self.end(&mut table, connection);
        }
        if all > ALL_BYTES_MAX {
            let waiting = |stream: &Stream| stream.waiting.load(Ordering::Relaxed);
            let most = table.iter().max_by_key(|(_, stream)| waiting(stream));
            if let Some(most) = most.map(|(most, _)| *most) {
                self.end(&mut table, most);
            }
        }
    }

    fn end(&self, table: &mut BTreeMap<ConnectionId, Stream>, connection: ConnectionId) {
        let stream = table.remove(&connection);
        let waiting = stream.map(|stream| stream.waiting.load(Ordering::Relaxed));
        self.ended.fetch_add(1, Ordering::Relaxed);
        warn!(
            ?connection,
            waiting_bytes = waiting.unwrap_or_default(),
            "an executor does not read its events; its stream ends, and it may subscribe again"
        );
    }

    /// Ends a stream.
    pub(crate) fn close(&self, connection: ConnectionId) {
        self.table().remove(&connection);
    }

    /// Messages that were dropped because their executor did not read.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Streams that were ended because their executor did not read.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    fn table(&self) -> std::sync::MutexGuard<'_, BTreeMap<ConnectionId, Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    fn message(bytes: usize) -> Event {
        Event {
            r#type: Some(event::Type::Message.into()),
            message: Some(event::Message {
                data: vec![0; bytes],
            }),
            ..Event::default()
        }
    }

    fn error(bytes: usize) -> Event {
        Event {
            r#type: Some(event::Type::Error.into()),
            error: Some(event::Error {
                message: "x".repeat(bytes),
            }),
            ..Event::default()
        }
    }

    fn waiting(streams: &ExecutorStreams) -> usize {
        streams.waiting.load(Ordering::Relaxed)
    }

    #[test]
    fn messages_that_nobody_reads_are_dropped_and_the_stream_stays() {
        let streams = ExecutorStreams::default();
        let (connection, mut events) = streams.open();
        for _ in 0..100 {
            streams.tell(connection, message(MIB));
        }
        assert!(waiting(&streams) <= MESSAGES_BYTES_MAX);
        assert_eq!(streams.ended(), 0);
        let mut read = 0;
        while let Ok(queued) = events.try_recv() {
            assert_eq!(queued.event().r#type(), event::Type::Message);
            read += 1;
        }
        assert_eq!(streams.dropped() + read, 100);
        assert_eq!(waiting(&streams), 0, "what was read counts no more");
        streams.tell(connection, message(6 * MIB));
        assert!(events.try_recv().is_ok(), "one alone may be larger");
    }

    #[test]
    fn a_stream_that_is_not_read_ends_and_may_be_opened_again() {
        let streams = ExecutorStreams::default();
        let (connection, mut events) = streams.open();
        for _ in 0..100 {
            streams.tell(connection, error(MIB));
            assert!(waiting(&streams) <= STREAM_BYTES_MAX);
        }
        assert_eq!(streams.ended(), 1);
        while events.try_recv().is_ok() {}
        assert!(events.is_closed() || events.try_recv().is_err());
        assert_eq!(waiting(&streams), 0);
        let (again, mut events) = streams.open();
        streams.tell(again, error(1));
        assert!(events.try_recv().is_ok());
    }

    #[test]
    fn all_together_have_a_limit_and_whoever_has_most_goes() {
        let streams = ExecutorStreams::default();
        let (patient, mut kept) = streams.open();
        streams.tell(patient, error(1));
        let mut open = Vec::new();
        for _ in 0..10 {
            let (connection, events) = streams.open();
            for _ in 0..14 {
                streams.tell(connection, error(MIB));
            }
            open.push(events);
            // One that was ended still holds what its reader has not thrown away.
            open.retain(|events| !events.is_closed());
            assert!(waiting(&streams) <= ALL_BYTES_MAX + MIB + 1024);
        }
        assert!(streams.ended() >= 6);
        streams.tell(patient, error(1));
        assert!(kept.try_recv().is_ok() && kept.try_recv().is_ok());
        let dropped = streams.dropped();
        streams.tell(patient, message(1));
        assert_eq!(streams.dropped(), dropped + 1, "messages first");
    }
}
