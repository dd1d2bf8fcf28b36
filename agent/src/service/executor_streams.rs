//! The streams to executors: a queue each, bounded in bytes, from the core to the connection that reads it.
//!
//! A slow reader first loses messages of its framework, whose delivery is not guaranteed, and then its stream, but not
//! its events. It subscribes again and gets the missed events, tasks in batches that fit a stream. The opener of a
//! stream notifies the core, and notifies it again when the stream ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meseta_daemon::server::CancellationToken;
use meseta_proto::mesos::v1::executor::{Event, event};
use prost::Message as _;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use crate::core::{ConnectionId, ExecutorAction};

/// Events that may wait for one executor.
const EVENTS_MAX: usize = 1024;
/// The limits of the bytes of waiting events.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Bytes for one executor; a single event may be larger.
    stream: usize,
    /// The bytes from which messages of frameworks are dropped.
    messages: usize,
    /// Bytes for all executors together: beyond this, the stream with the most waiting bytes ends.
    all: usize,
    all_messages: usize,
}

/// All streams that are open.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorStreams {
    limits: Limits,
    opened: Arc<AtomicU64>,
    dropped: Arc<AtomicU64>,
    ended: Arc<AtomicU64>,
    waiting: Arc<Mutex<Waiting>>,
    streams: Arc<Mutex<BTreeMap<ConnectionId, Stream>>>,
}

/// Bytes of waiting events: for each stream with events, and in total. The events of an ended stream no longer count:
/// its reader drops them.
#[derive(Debug, Default)]
struct Waiting {
    own: BTreeMap<ConnectionId, usize>,
    all: usize,
}

impl Waiting {
    fn count_for(&self, connection: ConnectionId) -> usize {
        self.own.get(&connection).copied().unwrap_or_default()
    }

    fn add(&mut self, connection: ConnectionId, bytes: usize) {
        *self.own.entry(connection).or_default() += bytes;
        self.all += bytes;
    }

    fn take_off(&mut self, connection: ConnectionId, bytes: usize) {
        if let Some(own) = self.own.get_mut(&connection) {
            *own -= bytes;
            self.all -= bytes;
            if *own == 0 {
                self.own.remove(&connection);
            }
        }
    }

    /// Forgets a stream and returns its waiting bytes.
    fn forget(&mut self, connection: ConnectionId) -> usize {
        let own = self.own.remove(&connection).unwrap_or_default();
        self.all -= own;
        own
    }

    fn most(&self) -> Option<ConnectionId> {
        let most = self.own.iter().max_by_key(|(_, own)| **own);
        most.map(|(connection, _)| *connection)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Stream {
    /// `None` after the last event was queued.
    events: Option<mpsc::Sender<Queued>>,
    /// Cancelled when the stream is ended, so that its reader drops the remaining events.
    ended: CancellationToken,
}

/// The reading end of a stream.
#[derive(Debug)]
pub(crate) struct Events {
    pub(crate) queue: mpsc::Receiver<Queued>,
    /// Cancelled when the stream was ended: its remaining events must not be sent.
    pub(crate) ended: CancellationToken,
}

/// A waiting event, which counts until it is dropped or its stream is ended.
#[derive(Debug)]
pub(crate) struct Queued {
    event: Event,
    bytes: usize,
    connection: ConnectionId,
    waiting: Arc<Mutex<Waiting>>,
}

impl Queued {
    /// The event to send.
    pub(crate) fn event(&self) -> &Event {
        &self.event
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        locked(&self.waiting).take_off(self.connection, self.bytes);
    }
}

impl ExecutorStreams {
    /// Creates the table; `bytes_max` is the limit for all executors together, of which one may use a third.
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            limits: Limits {
                stream: bytes_max / 3,
                messages: bytes_max / 12,
                all: bytes_max,
                all_messages: bytes_max / 3,
            },
            opened: Arc::default(),
            dropped: Arc::default(),
            ended: Arc::default(),
            waiting: Arc::default(),
            streams: Arc::default(),
        }
    }

    pub(crate) fn open(&self) -> (ConnectionId, Events) {
        let connection = ConnectionId(self.opened.fetch_add(1, Ordering::Relaxed) + 1);
        let (sender, queue) = mpsc::channel(EVENTS_MAX);
        let ended = CancellationToken::new();
        let stream = Stream {
            events: Some(sender),
            ended: ended.clone(),
        };
        locked(&self.streams).insert(connection, stream);
        (connection, Events { queue, ended })
    }

    /// Carries out an action on a stream.
    pub(crate) fn carry_out(&self, action: ExecutorAction) {
        match action {
            ExecutorAction::Send { connection, event } => self.send(connection, *event),
            ExecutorAction::Finish { connection } => self.finish(connection),
        }
    }

    /// Sends an event on a stream, or drops it if the stream is gone.
    pub(crate) fn send(&self, connection: ConnectionId, event: Event) {
        let bytes = event.encoded_len();
        let is_message = event.r#type() == event::Type::Message;
        let mut table = locked(&self.streams);
        let events = table
            .get(&connection)
            .and_then(|stream| stream.events.clone());
        let Some(events) = events else {
            return;
        };
        let (own, all) = {
            let mut waiting = locked(&self.waiting);
            let own = waiting.count_for(connection);
            let all = waiting.all.saturating_add(bytes);
            let is_behind = own > 0 && own.saturating_add(bytes) > self.limits.messages;
            if is_message && (is_behind || all > self.limits.all_messages) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                debug!(
                    ?connection,
                    "dropped a message to an executor that does not read its events"
                );
                return;
            }
            waiting.add(connection, bytes);
            (own, all)
        };
        let queued = Queued {
            event,
            bytes,
            connection,
            waiting: self.waiting.clone(),
        };
        let is_over = own > 0 && own.saturating_add(bytes) > self.limits.stream;
        if is_over || events.try_send(queued).is_err() {
            self.end(&mut table, connection);
        } else if all > self.limits.all {
            let most = locked(&self.waiting).most();
            if let Some(most) = most {
                self.end(&mut table, most);
            }
        }
    }

    fn end(&self, table: &mut BTreeMap<ConnectionId, Stream>, connection: ConnectionId) {
        if let Some(stream) = table.remove(&connection) {
            stream.ended.cancel();
        }
        let waiting_bytes = locked(&self.waiting).forget(connection);
        self.ended.fetch_add(1, Ordering::Relaxed);
        warn!(
            ?connection,
            waiting_bytes,
            "an executor does not read its events; its stream ends, and it may subscribe again"
        );
    }

    /// Ends a stream; earlier events still arrive.
    fn finish(&self, connection: ConnectionId) {
        if let Some(stream) = locked(&self.streams).get_mut(&connection) {
            stream.events = None;
        }
    }

    /// Forgets a stream that nobody reads any more.
    pub(crate) fn close(&self, connection: ConnectionId) {
        locked(&self.streams).remove(&connection);
    }

    /// Messages that were dropped because their executor did not read.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Streams that were ended because their executor did not read.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
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
        locked(&streams.waiting).all
    }

    #[test]
    fn unread_messages_are_dropped_stream_stays() {
        let streams = ExecutorStreams::new(48 * MIB);
        let (connection, mut events) = streams.open();
        for _ in 0..100 {
            streams.send(connection, message(MIB));
        }
        assert!(waiting(&streams) <= streams.limits.messages);
        assert_eq!(streams.ended(), 0);
        let mut read = 0;
        while let Ok(queued) = events.queue.try_recv() {
            assert_eq!(queued.event().r#type(), event::Type::Message);
            read += 1;
        }
        assert_eq!(streams.dropped() + read, 100);
        assert_eq!(waiting(&streams), 0, "what was read counts no more");
        streams.send(connection, message(6 * MIB));
        assert!(events.queue.try_recv().is_ok(), "one alone may be larger");
    }

    #[test]
    fn unread_stream_ends_and_may_reopen() {
        let streams = ExecutorStreams::new(48 * MIB);
        let (connection, mut events) = streams.open();
        for _ in 0..100 {
            streams.send(connection, error(MIB));
            assert!(waiting(&streams) <= streams.limits.stream);
        }
        assert_eq!(streams.ended(), 1);
        assert_eq!(waiting(&streams), 0, "an ended stream counts no more");
        assert!(events.ended.is_cancelled(), "its reader drops the rest");
        while events.queue.try_recv().is_ok() {}
        assert_eq!(waiting(&streams), 0);
        let (again, mut events) = streams.open();
        streams.send(again, error(1));
        assert!(events.queue.try_recv().is_ok());
    }

    #[test]
    fn total_limit_ends_largest_stream() {
        let streams = ExecutorStreams::new(48 * MIB);
        let (patient, mut kept) = streams.open();
        streams.send(patient, error(1));
        let mut open = Vec::new();
        for _ in 0..10 {
            let (connection, events) = streams.open();
            for _ in 0..14 {
                streams.send(connection, error(MIB));
            }
            // The ended streams are not dropped: their connections do not read.
            open.push(events);
            assert!(waiting(&streams) <= streams.limits.all);
        }
        assert_eq!(streams.ended(), 7, "one for each that is too much");
        let is_open = |events: &&Events| !events.ended.is_cancelled();
        assert_eq!(open.iter().filter(is_open).count(), 3);
        streams.send(patient, error(1));
        assert!(kept.queue.try_recv().is_ok() && kept.queue.try_recv().is_ok());
        let dropped = streams.dropped();
        streams.send(patient, message(1));
        assert_eq!(streams.dropped(), dropped + 1, "messages first");
    }
}
