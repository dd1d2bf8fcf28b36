//! The queue between the core and one subscriber.
//!
//! Bounded in events and in bytes, by what is still unread. Invariant: pushing never waits; a
//! subscriber that does not read is closed with a reason and costs nobody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use meseta_proto::mesos::v1::scheduler::{Event, event};
use prost::Message;
use tokio::sync::mpsc;

/// Events that may wait for one subscriber: the answers to one reconciliation of 100,000 tasks,
/// which come at once, and some more.
pub(crate) const EVENTS_MAX: usize = 131_072;

/// What these events may amount to, encoded.
pub(crate) const EVENT_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What all subscribers together may leave unread. Above it whoever has more than
/// [`FAIR_BYTES`] unread is closed when the next event comes for it.
pub(crate) const TOTAL_BYTES_MAX: usize = 256 * 1024 * 1024;

/// What every subscriber may leave unread, whatever the others do.
pub(crate) const FAIR_BYTES: usize = 64 * 1024;

/// For how long a subscriber may take nothing while something waits for it.
pub(crate) const STALL_MAX: Duration = Duration::from_secs(60);

/// Why a subscriber was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Overflow {
    #[error("slow consumer: {EVENTS_MAX} events unread")]
    Events,
    #[error("slow consumer: {EVENT_BYTES_MAX} bytes unread")]
    Bytes,
    #[error("slow consumer: all subscribers together left {TOTAL_BYTES_MAX} bytes unread")]
    Total,
    #[error("the subscriber has left")]
    Gone,
}

/// What is unread of all subscribers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<AtomicUsize>);

/// The core's end.
#[derive(Debug)]
pub(crate) struct EventSink {
    events: mpsc::Sender<(usize, Box<Event>)>,
    unread: Arc<Unread>,
}

/// What is unread of one subscriber; given back to the budget when both ends are gone.
#[derive(Debug)]
struct Unread {
    own: AtomicUsize,
    budget: Budget,
}

impl Unread {
    fn add(&self, bytes: usize) -> (usize, usize) {
        let own = self.own.fetch_add(bytes, Ordering::Relaxed);
        let all = self.budget.0.fetch_add(bytes, Ordering::Relaxed);
        (own.saturating_add(bytes), all.saturating_add(bytes))
    }

    fn take(&self, bytes: usize) {
        self.own.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.budget
            .0
            .fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

/// The stream's end.
#[derive(Debug)]
pub(crate) struct EventSource {
    events: mpsc::Receiver<(usize, Box<Event>)>,
    unread: Arc<Unread>,
}

pub(crate) fn queue(budget: &Budget) -> (EventSink, EventSource) {
    let (sender, receiver) = mpsc::channel(EVENTS_MAX);
    let unread = Arc::new(Unread {
        own: AtomicUsize::new(0),
        budget: budget.clone(),
    });
    let sink = EventSink {
        events: sender,
        unread: unread.clone(),
    };
    let source = EventSource {
        events: receiver,
        unread,
    };
    (sink, source)
}

impl EventSink {
    pub(crate) fn push(&mut self, event: Box<Event>) -> Result<(), Overflow> {
        let bytes = event.encoded_len();
        let (own, all) = self.unread.add(bytes);
        if own > EVENT_BYTES_MAX {
            return Err(Overflow::Bytes);
        }
        if all > TOTAL_BYTES_MAX && own > FAIR_BYTES {
            return Err(Overflow::Total);
        }
        self.events
            .try_send((bytes, event))
            .map_err(|error| match error {
                mpsc::error::TrySendError::Full(_) => Overflow::Events,
                mpsc::error::TrySendError::Closed(_) => Overflow::Gone,
            })
    }
}

impl EventSource {
    /// The next event; `None` once the core has closed the stream and all is read.
    pub(crate) async fn next(&mut self) -> Option<Box<Event>> {
        let (bytes, event) = self.events.recv().await?;
        self.unread.take(bytes);
        Some(event)
    }
}

/// The last event for a subscriber that stopped reading, in case it reads again.
pub(crate) fn stalled() -> Event {
    Event {
        r#type: Some(event::Type::Error.into()),
        error: Some(event::Error {
            message: format!(
                "Subscription closed: nothing was read for {} seconds",
                STALL_MAX.as_secs()
            ),
        }),
        ..Event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat() -> Event {
        Event {
            r#type: Some(event::Type::Heartbeat.into()),
            ..Event::default()
        }
    }

    #[tokio::test]
    async fn events_come_out_in_order_and_then_the_end() {
        let (mut sink, mut source) = queue(&Budget::default());
        sink.push(Box::new(heartbeat())).unwrap();
        sink.push(Box::new(stalled())).unwrap();
        drop(sink);
        assert_eq!(source.next().await, Some(Box::new(heartbeat())));
        assert_eq!(source.next().await, Some(Box::new(stalled())));
        assert_eq!(source.next().await, None);
        assert_eq!(source.unread.own.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_reader_who_does_not_read_is_given_up() {
        let (mut sink, source) = queue(&Budget::default());
        for _ in 0..EVENTS_MAX {
            sink.push(Box::new(heartbeat())).unwrap();
        }
        assert_eq!(sink.push(Box::new(heartbeat())), Err(Overflow::Events));
        drop(source);
        let (mut sink, _source) = queue(&Budget::default());
        let mut big = heartbeat();
        big.error = Some(event::Error {
            message: "x".repeat(EVENT_BYTES_MAX),
        });
        assert_eq!(sink.push(Box::new(big)), Err(Overflow::Bytes));
    }

    #[test]
    fn what_nobody_reads_is_bounded_for_all_together() {
        let budget = Budget::default();
        let mut event = heartbeat();
        event.error = Some(event::Error {
            message: "x".repeat(EVENT_BYTES_MAX / 2),
        });
        let mut hoarders = Vec::new();
        let refused = loop {
            let (mut sink, source) = queue(&budget);
            let result = sink.push(Box::new(event.clone()));
            hoarders.push((sink, source));
            if let Err(refused) = result {
                break refused;
            }
        };
        assert_eq!(refused, Overflow::Total);
        assert!(hoarders.len() <= TOTAL_BYTES_MAX / (EVENT_BYTES_MAX / 2) + 1);
        // A modest reader is served all the same, and those who leave give back what they had.
        let (mut modest, _source) = queue(&budget);
        modest.push(Box::new(heartbeat())).unwrap();
        drop(hoarders);
        let (mut sink, _source) = queue(&budget);
        sink.push(Box::new(event)).unwrap();
    }
}
