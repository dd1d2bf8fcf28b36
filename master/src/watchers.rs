//! The recent events of the cluster, and their watchers.
//!
//! The shell writes, watchers read. Events are numbered from 1, and the newest are stored once for all watchers: a
//! disconnected watcher can resume, and a slow watcher costs only its entry. Invariant: nobody waits for a watcher; a
//! watcher whose next event is no longer stored is dropped.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meseta_proto::budget::waiting_bytes;
use tokio::sync::{oneshot, watch};

use crate::budgets::Peer;
use crate::stream_event::StreamEvent;

/// The number of stored events.
const KEPT_MAX: usize = 16_384;

/// An event with its number.
pub(crate) type Numbered = (u64, Arc<StreamEvent>);

/// The writing end of the log, owned by the shell.
#[derive(Debug)]
pub(crate) struct Watchers {
    log: Arc<Mutex<EventLog>>,
    /// The number of the newest event, which wakes waiting watchers.
    newest: watch::Sender<u64>,
    /// The watchers, each with its peer; dropping an entry ends the watcher.
    watchers: VecDeque<(Peer, oneshot::Sender<()>)>,
    /// The number of watchers at a time; above it the oldest watcher of the peer with most is dropped.
    watchers_max: usize,
}

#[derive(Debug)]
struct EventLog {
    /// The events with their sizes.
    events: VecDeque<(Arc<StreamEvent>, usize)>,
    bytes: usize,
    bytes_max: usize,
    last: u64,
}

/// The result of a lookup at a watcher's position.
enum LogLookup {
    Event(Arc<StreamEvent>),
    NotYet,
    Forgotten,
}

impl EventLog {
    fn push(&mut self, event: Arc<StreamEvent>) {
        let bytes = waiting_bytes(&event.event);
        self.last += 1;
        self.bytes += bytes;
        self.events.push_back((event, bytes));
        // The newest event stays whatever its size: watchers that read in time get it.
        while self.events.len() > KEPT_MAX || (self.bytes > self.bytes_max && self.events.len() > 1)
        {
            self.bytes -= self.events.pop_front().map_or(0, |(_, bytes)| bytes);
        }
    }

    /// The number of the oldest stored event, or of the next.
    fn first(&self) -> u64 {
        let kept = u64::try_from(self.events.len()).unwrap_or(u64::MAX);
        (self.last + 1).saturating_sub(kept)
    }

    fn find(&self, number: u64) -> LogLookup {
        if number > self.last {
            return LogLookup::NotYet;
        }
        let at = number.checked_sub(self.first());
        let at = at.and_then(|at| usize::try_from(at).ok());
        match at.and_then(|at| self.events.get(at)) {
            Some((event, _)) => LogLookup::Event(event.clone()),
            None => LogLookup::Forgotten,
        }
    }
}

/// The end of a watcher.
#[derive(Debug)]
pub(crate) struct WatchReceiver {
    log: Arc<Mutex<EventLog>>,
    newest: watch::Receiver<u64>,
    evicted: oneshot::Receiver<()>,
    next: u64,
}

impl WatchReceiver {
    /// The next event; `None` if the watcher was dropped, because it is too far behind or made room for others.
    pub(crate) async fn recv(&mut self) -> Option<Numbered> {
        loop {
            match lock(&self.log).find(self.next) {
                LogLookup::Event(event) => {
                    let number = self.next;
                    self.next += 1;
                    return Some((number, event));
                }
                LogLookup::NotYet => {}
                LogLookup::Forgotten => {
                    tracing::warn!(
                        next = self.next,
                        "slow consumer: its next operator event is no longer stored; ending its \
                         stream"
                    );
                    return None;
                }
            }
            tokio::select! {
                biased;
                _ = &mut self.evicted => return None,
                changed = self.newest.changed() => if changed.is_err() { return None },
            }
        }
    }
}

fn lock(log: &Mutex<EventLog>) -> MutexGuard<'_, EventLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watchers {
    /// A log of this many bytes of events, for this many watchers.
    pub(crate) fn new(bytes_max: usize, watchers_max: usize) -> Self {
        Self {
            log: Arc::new(Mutex::new(EventLog {
                events: VecDeque::new(),
                bytes: 0,
                bytes_max,
                last: 0,
            })),
            newest: watch::channel(0).0,
            watchers: VecDeque::new(),
            watchers_max,
        }
    }

    /// Adds a watcher. If it knows the number of its last event and the later events are still stored, the watcher
    /// resumes there, and the flag is true; otherwise it must begin with the whole state.
    pub(crate) fn add(&mut self, peer: Peer, after: Option<u64>) -> (WatchReceiver, bool) {
        self.watchers.retain(|(_, watcher)| !watcher.is_closed());
        let (watcher, evicted) = oneshot::channel();
        self.watchers.push_back((peer, watcher));
        if self.watchers.len() > self.watchers_max {
            self.evict_one();
        }
        let log = lock(&self.log);
        let known = after.and_then(|after| after.checked_add(1));
        let known = known.filter(|next| (log.first()..=log.last + 1).contains(next));
        let watched = WatchReceiver {
            log: self.log.clone(),
            newest: self.newest.subscribe(),
            evicted,
            next: known.unwrap_or(log.last + 1),
        };
        (watched, known.is_some())
    }

    /// Closes the oldest stream of the caller with most streams, so that no caller ends the streams of others.
    fn evict_one(&mut self) {
        let mut counts: HashMap<&Peer, usize> = HashMap::new();
        for (peer, _) in &self.watchers {
            *counts.entry(peer).or_default() += 1;
        }
        let most = counts.values().max().copied();
        let oldest = self.watchers.iter();
        let oldest = oldest.map(|(peer, _)| counts.get(peer).copied());
        if let Some(at) = oldest.into_iter().position(|count| count == most) {
            self.watchers.remove(at);
        }
    }

    /// The number of the newest event.
    pub(crate) fn last(&self) -> u64 {
        *self.newest.borrow()
    }

    /// The number of connected readers.
    pub(crate) fn len(&self) -> usize {
        let there = |watcher: &&(Peer, oneshot::Sender<()>)| !watcher.1.is_closed();
        self.watchers.iter().filter(there).count()
    }

    pub(crate) fn push(&mut self, event: Arc<StreamEvent>) {
        let last = {
            let mut log = lock(&self.log);
            log.push(event);
            log.last
        };
        self.newest.send_replace(last);
    }

    /// Drops all watchers and forgets the events, because events were lost. The lost events count as one, so that a
    /// watcher that knows the last event before them has missed something.
    pub(crate) fn begin_anew(&mut self) {
        self.watchers.clear();
        let last = {
            let mut log = lock(&self.log);
            log.events.clear();
            log.bytes = 0;
            log.last += 1;
            log.last
        };
        self.newest.send_replace(last);
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::TaskStatus;
    use meseta_proto::mesos::v1::master::Event;
    use meseta_proto::mesos::v1::master::event::TaskUpdated;

    use super::*;

    const WATCHERS_MAX: usize = 100;

    fn watchers() -> Watchers {
        Watchers::new(64 << 20, WATCHERS_MAX)
    }

    fn large() -> Arc<StreamEvent> {
        let status = TaskStatus {
            data: Some(vec![0; 1 << 20]),
            ..TaskStatus::default()
        };
        let event = Event {
            task_updated: Some(TaskUpdated {
                status,
                ..TaskUpdated::default()
            }),
            ..Event::default()
        };
        Arc::new(StreamEvent {
            event,
            task_user: None,
        })
    }

    #[tokio::test]
    async fn watcher_resumes_or_restarts() {
        let mut watchers = watchers();
        let (mut first, goes_on) = watchers.add(Peer::new(), None);
        assert!(!goes_on);
        for _ in 0..5 {
            watchers.push(Arc::default());
        }
        assert_eq!(first.recv().await.unwrap().0, 1);
        let (mut again, goes_on) = watchers.add(Peer::new(), Some(3));
        assert!(goes_on);
        assert_eq!(again.recv().await.unwrap().0, 4);
        assert_eq!(again.recv().await.unwrap().0, 5);
        assert!(watchers.add(Peer::new(), Some(5)).1, "nothing was missed");
        assert!(!watchers.add(Peer::new(), Some(6)).1, "of another master");
        assert!(!watchers.add(Peer::new(), Some(u64::MAX)).1);
        for _ in 0..KEPT_MAX {
            watchers.push(Arc::default());
        }
        assert!(!watchers.add(Peer::new(), Some(3)).1, "too long ago");
    }

    #[tokio::test]
    async fn stalled_or_departed_watcher_is_dropped() {
        let mut watchers = watchers();
        let (mut slow, _) = watchers.add(Peer::new(), None);
        drop(watchers.add(Peer::new(), None));
        assert_eq!(watchers.len(), 1);
        for _ in 0..KEPT_MAX {
            watchers.push(Arc::default());
        }
        assert_eq!(slow.recv().await.unwrap().0, 1, "all is still kept");
        watchers.push(Arc::default());
        watchers.push(Arc::default());
        assert!(slow.recv().await.is_none(), "the second is not");
        drop(slow);
        let mut kept: Vec<_> = (0..=WATCHERS_MAX)
            .map(|_| watchers.add(Peer::new(), None))
            .collect();
        assert_eq!(
            (watchers.len(), kept.len()),
            (WATCHERS_MAX, WATCHERS_MAX + 1)
        );
        assert!(kept[0].0.recv().await.is_none(), "the oldest was let go");
        watchers.push(Arc::default());
        assert!(kept[1].0.recv().await.is_some());
        watchers.begin_anew();
        assert!(kept[2].0.recv().await.is_none());
        let (mut last, _) = watchers.add(Peer::new(), None);
        drop(watchers);
        assert!(last.recv().await.is_none(), "the master ends");
    }

    #[tokio::test]
    async fn lost_events_force_full_state() {
        let mut watchers = watchers();
        watchers.push(Arc::default());
        assert!(watchers.add(Peer::new(), Some(1)).1);
        watchers.begin_anew();
        assert!(!watchers.add(Peer::new(), Some(1)).1, "it has missed some");
        let last = watchers.last();
        let (mut anew, goes_on) = watchers.add(Peer::new(), Some(last));
        assert!(goes_on, "it has the state of since then");
        watchers.push(Arc::default());
        assert_eq!(anew.recv().await.unwrap().0, last + 1);
    }

    #[tokio::test]
    async fn busiest_watcher_loses_own_streams_only() {
        let mut watchers = watchers();
        let (mut admin, _) = watchers.add("admin".to_owned(), None);
        let add = |_| watchers.add("mallory".to_owned(), None).0;
        let mut others: Vec<_> = (0..2 * WATCHERS_MAX).map(add).collect();
        assert_eq!(watchers.len(), WATCHERS_MAX);
        assert!(others.remove(0).recv().await.is_none());
        watchers.push(Arc::default());
        assert!(admin.recv().await.is_some());
        assert!(others.pop().unwrap().recv().await.is_some());
    }

    #[tokio::test]
    async fn stalled_watchers_share_memory() {
        let mut watchers = watchers();
        let kept: Vec<_> = (0..WATCHERS_MAX)
            .map(|_| watchers.add(Peer::new(), None).0)
            .collect();
        let first = large();
        watchers.push(first.clone());
        for _ in 0..200 {
            watchers.push(large());
        }
        assert_eq!(Arc::strong_count(&first), 1, "nobody has it any more");
        let log = lock(&watchers.log);
        assert!(log.bytes <= log.bytes_max && log.events.len() < 64);
        drop(log);
        drop(kept);
    }
}
