//! Who watches the cluster, and what has lately happened in it.
//!
//! Owned by the shell. Events are numbered from 1 and the newest are kept, so that a watcher who was cut off
//! can go on where it was. Invariant: nobody waits for a watcher; one that does not keep up is let go.

use std::collections::VecDeque;
use std::sync::Arc;

use meseta_proto::mesos::v1::master::Event;
use tokio::sync::mpsc;

/// Events kept for watchers that come back.
const KEPT_MAX: usize = 10_000;
/// Events that one watcher may leave unread.
const UNREAD_MAX: usize = 16_384;
/// Watchers at a time; above it the oldest is let go.
const WATCHERS_MAX: usize = 1_000;

/// An event and its number.
pub(crate) type Numbered = (u64, Arc<Event>);

/// What is watched.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    watchers: VecDeque<mpsc::Sender<Numbered>>,
    kept: VecDeque<Numbered>,
    last: u64,
}

impl Watchers {
    /// A new watcher. With the number of the last event it knows, and if what followed is still kept, it gets
    /// that; `None` otherwise, and it has to begin with the whole state.
    pub(crate) fn add(
        &mut self,
        after: Option<u64>,
    ) -> (mpsc::Receiver<Numbered>, Option<Vec<Numbered>>) {
        let (sender, events) = mpsc::channel(UNREAD_MAX);
        if self.watchers.len() >= WATCHERS_MAX {
            self.watchers.pop_front();
        }
        self.watchers.push_back(sender);
        let first = self
            .kept
            .front()
            .map_or(self.last + 1, |(number, _)| *number);
        let missed = after
            .filter(|after| (first..=self.last + 1).contains(&after.saturating_add(1)))
            .map(|after| {
                let kept = self.kept.iter();
                kept.filter(|(number, _)| *number > after)
                    .cloned()
                    .collect()
            });
        (events, missed)
    }

    /// The number of the newest event.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// How many watch.
    pub(crate) fn len(&self) -> usize {
        self.watchers.len()
    }

    pub(crate) fn push(&mut self, event: &Arc<Event>) {
        self.last += 1;
        let numbered = (self.last, event.clone());
        self.kept.push_back(numbered.clone());
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
        self.watchers.retain(|watcher| {
            let sent = watcher.try_send(numbered.clone());
            if let Err(mpsc::error::TrySendError::Full(_)) = &sent {
                tracing::warn!(
                    "slow consumer: {UNREAD_MAX} operator events unread, its stream ends"
                );
            }
            sent.is_ok()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_goes_on_where_it_was_or_begins_anew() {
        let mut watchers = Watchers::default();
        let (mut first, missed) = watchers.add(None);
        assert!(missed.is_none());
        for _ in 0..5 {
            watchers.push(&Arc::default());
        }
        assert_eq!(first.try_recv().unwrap().0, 1);
        let (_events, missed) = watchers.add(Some(3));
        let numbers: Vec<u64> = missed.unwrap().iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, [4, 5]);
        assert_eq!(watchers.add(Some(5)).1.unwrap().len(), 0);
        assert!(watchers.add(Some(6)).1.is_none(), "of another master");
        assert!(watchers.add(Some(u64::MAX)).1.is_none());
        for _ in 0..KEPT_MAX {
            watchers.push(&Arc::default());
        }
        assert!(watchers.add(Some(3)).1.is_none(), "too long ago");
    }

    #[test]
    fn who_does_not_read_or_has_left_is_let_go() {
        let mut watchers = Watchers::default();
        let (slow, _) = watchers.add(None);
        drop(watchers.add(None));
        watchers.push(&Arc::default());
        assert_eq!(watchers.len(), 1);
        for _ in 0..UNREAD_MAX {
            watchers.push(&Arc::default());
        }
        assert_eq!(watchers.len(), 0);
        assert_eq!(slow.len(), UNREAD_MAX);
        let kept: Vec<_> = (0..=WATCHERS_MAX).map(|_| watchers.add(None)).collect();
        assert_eq!(
            (watchers.len(), kept.len()),
            (WATCHERS_MAX, WATCHERS_MAX + 1)
        );
    }
}
