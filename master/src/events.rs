//! The queues between the core and the readers of its messages: subscribed schedulers, and agents.
//!
//! The queues are limited in messages and in unread bytes. Invariants: pushing never waits; a stalled reader is
//! closed with a reason and costs nobody else; the unread messages of a dropped reader are freed at once, whatever
//! the state of its connection.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use meseta_daemon::server::Connection;
use meseta_proto::budget::{Budget, Charge, Exhausted, waiting_bytes};
use meseta_proto::mesos::v1::scheduler::{Event, event};
use prost::Message;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};

use meseta_etcd::leadership::Fence;

/// The number of events that may wait for one subscriber.
pub(crate) const EVENTS_MAX: usize = 131_072;

/// The time for which a reader may read nothing while messages wait.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// The reason for closing a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overflow {
    #[error("slow consumer: {0} messages unread")]
    Messages(usize),
    #[error("slow consumer: too much unread: {0}")]
    Bytes(Exhausted),
    #[error("the reader has left")]
    Gone,
}

/// A waiting message with its charge.
pub(crate) type Waiting<M> = (Charge, Box<M>);

#[derive(Debug)]
pub(crate) struct Sink<M> {
    messages: mpsc::Sender<Waiting<M>>,
    queue: Weak<Mutex<Option<mpsc::Receiver<Waiting<M>>>>>,
    /// The budget for messages in the queue, and on the way to the reader.
    budget: Budget,
    /// The reader's connection, closed when the reader is dropped.
    connection: Option<Connection>,
    _ends: DropGuard,
}

/// The reading end of the queue. Clones read from the same queue.
#[derive(Debug)]
pub(crate) struct Source<M> {
    fence: Fence,
    messages: Arc<Mutex<Option<mpsc::Receiver<Waiting<M>>>>>,
    ended: CancellationToken,
}

pub(crate) type EventSink = Sink<Event>;
pub(crate) type EventSource = Source<Event>;

/// A queue of at most `messages_max` messages within `budget`.
pub(crate) fn queue<M>(budget: Budget, messages_max: usize) -> (Sink<M>, Source<M>) {
    let (messages, receiver) = mpsc::channel(messages_max);
    let ended = CancellationToken::new();
    let queue = Arc::new(Mutex::new(Some(receiver)));
    let sink = Sink {
        messages,
        queue: Arc::downgrade(&queue),
        budget,
        connection: None,
        _ends: ended.clone().drop_guard(),
    };
    let source = Source {
        fence: Fence::never(),
        messages: queue,
        ended,
    };
    (sink, source)
}

impl<M: Message> Sink<M> {
    /// Charges a message before it is pushed.
    pub(crate) fn charge(&self, message: &M) -> Result<Charge, Overflow> {
        // A reader that has left is not a slow reader.
        if self.messages.is_closed() {
            return Err(Overflow::Gone);
        }
        let charge = self.budget.charge(waiting_bytes(message));
        charge.map_err(Overflow::Bytes)
    }

    /// Pushes a message that may be lost, if half of the reader's room remains for other messages. Drops no reader.
    pub(crate) fn push_if_half_free(&self, message: Box<M>) -> bool {
        let bytes = waiting_bytes(&*message);
        let has_free_slots = self.messages.capacity() > self.messages.max_capacity() / 2;
        if !has_free_slots || self.budget.used().saturating_add(bytes) > self.budget.limit() / 2 {
            return false;
        }
        let charge = self.budget.charge(bytes);
        charge.is_ok_and(|charge| self.push(charge, message).is_ok())
    }

    pub(crate) fn push(&self, charge: Charge, message: Box<M>) -> Result<(), Overflow> {
        let sent = self.messages.try_send((charge, message));
        sent.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => Overflow::Messages(self.messages.max_capacity()),
            mpsc::error::TrySendError::Closed(_) => Overflow::Gone,
        })
    }
}

impl<M> Sink<M> {
    /// Sets the reader's connection, which is closed when the reader is dropped.
    pub(crate) fn on(mut self, connection: Option<Connection>) -> Self {
        self.connection = connection;
        self
    }

    /// Marks the reader as long-lived: the server does not close its connection for its age.
    pub(crate) fn set_long_lived(&self) {
        if let Some(connection) = &self.connection {
            connection.set_long_lived();
        }
    }

    /// Drops the reader: frees its unread messages now, and those on the way as soon as its connection is closed.
    pub(crate) fn abandon(self) {
        // The connection of a reader that has left may have other uses.
        let has_left = self.messages.is_closed();
        if let Some(connection) = self.connection.as_ref().filter(|_| !has_left) {
            connection.close();
        }
        if let Some(queue) = self.queue.upgrade() {
            drop(queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// The reader to drop to make room for a message: the reader with the most unread bytes, in its queue and on the way to
/// it. The message counts as unread by its own reader, which may therefore be the reader to drop.
pub(crate) fn slowest<K: Copy + Ord, M>(sinks: &HashMap<K, Sink<M>>, to: K, bytes: usize) -> K {
    let unread = |key: K, sink: &Sink<M>| {
        let more = if key == to { bytes } else { 0 };
        (sink.budget.used().saturating_add(more), key)
    };
    let most = sinks.iter().map(|(key, sink)| unread(*key, sink)).max();
    most.map_or(to, |(_, key)| key)
}

impl<M> Clone for Source<M> {
    fn clone(&self) -> Self {
        Self {
            fence: self.fence.clone(),
            messages: self.messages.clone(),
            ended: self.ended.clone(),
        }
    }
}

impl<M> Source<M> {
    /// Adds a fence: while the fence is closed, nothing is read.
    pub(crate) fn fenced(self, fence: &Fence) -> Self {
        let fence = fence.clone();
        Self { fence, ..self }
    }

    /// The next message; `None` once the core has closed the stream and all messages that may be shown are read.
    pub(crate) async fn next(&self) -> Option<Waiting<M>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub(crate) fn poll_next(&self, context: &mut Context<'_>) -> Poll<Option<Waiting<M>>> {
        let mut receiver = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(receiver) = &mut *receiver else {
            return Poll::Ready(None);
        };
        match self.fence.poll_open(context) {
            Poll::Ready(()) => receiver.poll_recv(context),
            // Without a core the fence never opens again: the reader should look for another master.
            Poll::Pending if self.ended.is_cancelled() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Completes when the core's end is dropped, however many messages are unread.
    pub(crate) async fn ended(&self) {
        self.ended.cancelled().await;
    }
}

/// The last event for a stalled subscriber, in case it reads again.
pub(crate) fn stalled() -> Event {
    Event {
        r#type: Some(event::Type::Error.into()),
        error: Some(event::Error {
            message: format!(
                "Subscription closed: the client read nothing for {} seconds",
                STALL_MAX.as_secs()
            ),
        }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use meseta_daemon::server::Peer;

    use super::*;
    use crate::budgets::Budgets;

    fn heartbeat() -> Event {
        Event {
            r#type: Some(event::Type::Heartbeat.into()),
            ..Event::default()
        }
    }

    fn push(sink: &Sink<Event>, event: Box<Event>) -> Result<(), Overflow> {
        let charge = sink.charge(&event)?;
        sink.push(charge, event)
    }

    fn large(bytes: usize) -> Box<Event> {
        let mut event = heartbeat();
        event.error = Some(event::Error {
            message: "x".repeat(bytes),
        });
        Box::new(event)
    }

    #[tokio::test(start_paused = true)]
    async fn fenced_stream_ends_without_more_events() {
        let (sink, source) = queue(Budget::new(1 << 20), EVENTS_MAX);
        let source = source.fenced(&Fence::closed());
        push(&sink, Box::new(heartbeat())).unwrap();
        let wait = std::time::Duration::from_secs(60);
        let next = tokio::time::timeout(wait, source.next()).await;
        assert!(next.is_err(), "it is open while the core is there");
        drop(sink);
        let next = tokio::time::timeout(wait, source.next()).await;
        assert!(matches!(next, Ok(None)), "it ends with the core");
    }

    #[tokio::test]
    async fn events_arrive_in_order_before_end() {
        let budget = Budget::new(1 << 20);
        let (sink, source) = queue(budget.clone(), EVENTS_MAX);
        push(&sink, Box::new(heartbeat())).unwrap();
        push(&sink, Box::new(stalled())).unwrap();
        assert!(budget.used() > 0);
        drop(sink);
        source.ended().await;
        assert_eq!(source.next().await.unwrap().1, Box::new(heartbeat()));
        assert_eq!(source.next().await.unwrap().1, Box::new(stalled()));
        assert!(source.next().await.is_none());
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn stalled_reader_is_dropped() {
        let budget = Budget::new(1 << 30);
        let (sink, source) = queue(budget.clone(), 100);
        for _ in 0..100 {
            push(&sink, Box::new(heartbeat())).unwrap();
        }
        assert_eq!(
            push(&sink, Box::new(heartbeat())),
            Err(Overflow::Messages(100))
        );
        drop(source);
        assert_eq!(push(&sink, Box::new(heartbeat())), Err(Overflow::Gone));
        assert_eq!(budget.used(), 0);
        let (sink, _source) = queue(Budgets::from_total_bytes(64 << 20).subscriber(), EVENTS_MAX);
        push(&sink, large(400_000)).unwrap();
        assert!(matches!(
            push(&sink, large(400_000)),
            Err(Overflow::Bytes(_))
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn closed_fence_stops_reading() {
        use tokio::time::{Instant, timeout};

        use meseta_etcd::leadership::fence::BootTime;

        let fence = Fence::closed_by(BootTime::of_runtime);
        let (sink, source) = queue(Budget::new(1 << 20), EVENTS_MAX);
        let source = source.fenced(&fence);
        push(&sink, Box::new(heartbeat())).unwrap();
        let minute = Duration::from_secs(60);
        let read = timeout(minute, source.next()).await;
        assert!(read.is_err(), "shown behind a closed fence: {read:?}");
        let waiting = tokio::spawn(async move { source.next().await });
        tokio::task::yield_now().await;
        let begun = Instant::now();
        fence.extend(BootTime::of_runtime().after(minute));
        assert!(waiting.await.unwrap().is_some());
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    /// The connection of a stalled peer is not polled, and holds its end of the queue.
    #[tokio::test]
    async fn abandoned_queue_frees_memory_despite_connection() {
        let budget = Budget::new(1 << 20);
        let (sink, source) = queue(budget.clone(), EVENTS_MAX);
        let held_by_the_connection = source.clone();
        push(&sink, large(100_000)).unwrap();
        sink.abandon();
        source.ended().await;
        assert_eq!(budget.used(), 0);
        assert!(held_by_the_connection.next().await.is_none());
    }

    #[test]
    fn droppable_events_use_half_the_queue() {
        let (sink, _source) = queue(Budgets::from_total_bytes(64 << 20).subscriber(), EVENTS_MAX);
        let pushed = (0..100).filter(|_| sink.push_if_half_free(large(20_000)));
        assert!((5..50).contains(&pushed.count()));
        assert!(!sink.push_if_half_free(large(20_000)));
        push(&sink, large(200_000)).unwrap();
        let (sink, _source) = queue(Budget::new(1 << 30), 100);
        let pushed = (0..200).filter(|_| sink.push_if_half_free(Box::new(heartbeat())));
        assert_eq!(pushed.count(), 50);
        push(&sink, Box::new(heartbeat())).unwrap();
    }

    #[test]
    fn unread_events_share_one_limit() {
        let total = 64 << 20;
        let budgets = Budgets::from_total_bytes(total);
        let mut hoarders = Vec::new();
        let refused = loop {
            let (sink, source) = queue(budgets.subscriber(), EVENTS_MAX);
            let result = push(&sink, large(400_000));
            hoarders.push((sink, source));
            if let Err(refused) = result {
                break refused;
            }
        };
        assert!(matches!(refused, Overflow::Bytes(Exhausted::Total { .. })));
        assert!(hoarders.len() <= total / 16 / 800_000 + 1);
        // A modest reader is served nevertheless, and departing readers return their room.
        let (modest, _source) = queue(budgets.subscriber(), EVENTS_MAX);
        push(&modest, Box::new(heartbeat())).unwrap();
        drop(hoarders);
        let (sink, _source) = queue(budgets.subscriber(), EVENTS_MAX);
        push(&sink, large(400_000)).unwrap();
    }

    #[test]
    fn evicts_slowest_reader_and_frees_queue() {
        let budget = Budget::new(1 << 20);
        let mut sinks = HashMap::new();
        let mut sources = Vec::new();
        for (key, bytes) in [(1, 10_000), (2, 400_000), (3, 20_000)] {
            let (sink, source) = queue(budget.share(1 << 20, 0), EVENTS_MAX);
            push(&sink, large(bytes)).unwrap();
            sinks.insert(key, sink);
            sources.push(source);
        }
        assert_eq!(slowest(&sinks, 1, 1_000), 2);
        assert_eq!(slowest(&sinks, 1, 900_000), 1, "what it would have itself");
        let before = budget.used();
        sinks.remove(&2).unwrap().abandon();
        assert!(budget.used() < before - 800_000);
        assert_eq!(slowest(&sinks, 1, 1_000), 3);
    }

    /// The queue is empty: all messages are on their way to a socket that nobody reads.
    #[tokio::test]
    async fn events_in_transit_count_as_unread() {
        let budget = Budget::new(1 << 20);
        let mut sinks = HashMap::new();
        let mut sources = Vec::new();
        for (key, bytes) in [(1, 400_000), (2, 10_000)] {
            let (sink, source) = queue(budget.share(1 << 20, 0), EVENTS_MAX);
            push(&sink, large(bytes)).unwrap();
            sinks.insert(key, sink);
            sources.push(source);
        }
        let _on_its_way = sources[0].next().await.unwrap();
        assert_eq!(slowest(&sinks, 2, 1_000), 1);
    }

    #[tokio::test]
    async fn dropped_reader_loses_connection() {
        for (has_left, is_closed) in [(false, true), (true, false)] {
            let peer = Peer::at("10.0.0.1:9".parse().unwrap());
            let (sink, source) = queue::<Event>(Budget::new(1 << 20), EVENTS_MAX);
            let sink = sink.on(Some(peer.connection()));
            if has_left {
                drop(source);
            }
            sink.abandon();
            assert_eq!(peer.connection().is_closed(), is_closed);
        }
    }
}
