//! The queue of messages that leave only once the state they describe is durable.
//!
//! A core pushes a message with the log position it depends on; the shell reports how far the log is durable, and receives
//! the messages that may leave. Invariant: messages to one destination leave in the order of the pushes, so a waiting
//! message holds back those behind it. Pure: no clock, no I/O.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A position in the log; 0 is before everything, so independent messages use 0.
pub type Lsn = u64;

/// The size of a message in the queue.
pub trait QueuedSize {
    /// Returns the size, computed once when a message must wait: it may cost a walk over the message.
    fn bytes(&self) -> usize;
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Limits {
    /// Waiting messages for one destination; a stream that is this far behind is lost anyway.
    pub per_destination: usize,
    /// Waiting messages in total.
    pub total: usize,
    /// Bytes that may wait for one destination. The first waiting message may be larger.
    pub bytes_per_destination: usize,
    /// Bytes of waiting messages in total.
    pub bytes_total: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            per_destination: 65_536,
            total: 1 << 20,
            bytes_per_destination: 128 << 20,
            bytes_total: 512 << 20,
        }
    }
}

impl Limits {
    /// Returns the default numbers of messages, with `bytes` in total.
    #[must_use]
    pub fn of_bytes(bytes: usize) -> Self {
        Self {
            bytes_per_destination: bytes / 2,
            bytes_total: bytes,
            ..Self::default()
        }
    }
}

#[derive(Copy, Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Overflow {
    #[error("{queued} messages wait for the destination already")]
    Destination { queued: usize },
    #[error("{queued} messages wait already")]
    Total { queued: usize },
    #[error("{queued} bytes wait for the destination already")]
    DestinationBytes { queued: usize },
    #[error("{queued} bytes wait already")]
    TotalBytes { queued: usize },
}

#[derive(Debug)]
pub struct Outbox<Dest, Msg> {
    limits: Limits,
    durable: Lsn,
    pushed: u64,
    queued: usize,
    queued_bytes: usize,
    queues: BTreeMap<Dest, Queue<Msg>>,
    /// The log position that the head of each queue waits for: an index for each advance of the log.
    heads: BTreeSet<(Lsn, Dest)>,
}

#[derive(Debug)]
struct Queue<Msg> {
    entries: VecDeque<Entry<Msg>>,
    bytes: usize,
}

impl<Msg> Default for Queue<Msg> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: 0,
        }
    }
}

#[derive(Debug)]
struct Entry<Msg> {
    after: Lsn,
    bytes: usize,
    /// The number of this push: messages are released in this order, even across destinations.
    sequence: u64,
    message: Msg,
}

impl<Dest: Ord + Clone, Msg: QueuedSize> Default for Outbox<Dest, Msg> {
    fn default() -> Self {
        Self::new(Limits::default())
    }
}

impl<Dest: Ord + Clone, Msg: QueuedSize> Outbox<Dest, Msg> {
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            durable: 0,
            pushed: 0,
            queued: 0,
            queued_bytes: 0,
            queues: BTreeMap::new(),
            heads: BTreeSet::new(),
        }
    }

    /// Queues a message that may be sent once `after` is durable. On overflow, the queue is unchanged and the message is
    /// dropped: the caller must give up the destination.
    pub fn push(&mut self, destination: Dest, after: Lsn, message: Msg) -> Result<(), Overflow> {
        if self.queued >= self.limits.total {
            return Err(Overflow::Total {
                queued: self.queued,
            });
        }
        let queue = self.queues.get(&destination);
        let (waiting, queued) = queue.map_or((0, 0), |queue| (queue.entries.len(), queue.bytes));
        if waiting >= self.limits.per_destination {
            return Err(Overflow::Destination { queued: waiting });
        }
        let bytes = message.bytes();
        if waiting > 0 && queued.saturating_add(bytes) > self.limits.bytes_per_destination {
            return Err(Overflow::DestinationBytes { queued });
        }
        if self.queued > 0 && self.queued_bytes.saturating_add(bytes) > self.limits.bytes_total {
            return Err(Overflow::TotalBytes {
                queued: self.queued_bytes,
            });
        }
        if waiting == 0 {
            self.heads.insert((after, destination.clone()));
        }
        let entry = Entry {
            after,
            bytes,
            sequence: self.pushed,
            message,
        };
        self.pushed += 1;
        self.queued += 1;
        self.queued_bytes += bytes;
        let queue = self.queues.entry(destination).or_default();
        queue.bytes += bytes;
        queue.entries.push_back(entry);
        Ok(())
    }

    /// Whether a message may leave at once, or would leave half of the room to others, for its destination and in total. A
    /// message that may be lost need not wait otherwise.
    pub fn leaves_half(&self, destination: &Dest, after: Lsn, message: &Msg) -> bool {
        let queue = self.queues.get(destination);
        if after <= self.durable && queue.is_none() {
            return true;
        }
        let (waiting, queued) = queue.map_or((0, 0), |queue| (queue.entries.len(), queue.bytes));
        let bytes = message.bytes();
        waiting < self.limits.per_destination / 2
            && self.queued < self.limits.total / 2
            && queued.saturating_add(bytes) <= self.limits.bytes_per_destination / 2
            && self.queued_bytes.saturating_add(bytes) <= self.limits.bytes_total / 2
    }

    /// Pushes a message like [`Outbox::push`], or returns it if it may leave at once.
    pub fn pass(
        &mut self,
        destination: Dest,
        after: Lsn,
        message: Msg,
    ) -> Result<Option<Msg>, Overflow> {
        if after <= self.durable && !self.queues.contains_key(&destination) {
            return Ok(Some(message));
        }
        self.push(destination, after, message).map(|()| None)
    }

    /// Records that the log is durable up to and including `lsn`, and returns the messages that may leave. An older `lsn`
    /// changes nothing.
    pub fn durable(&mut self, lsn: Lsn) -> Vec<(Dest, Msg)> {
        self.durable = self.durable.max(lsn);
        self.release()
    }

    /// Returns the messages that may leave already; to be called after pushes that depend on nothing new.
    pub fn release(&mut self) -> Vec<(Dest, Msg)> {
        let mut released = Vec::new();
        while let Some((after, _)) = self.heads.first()
            && *after <= self.durable
            && let Some((_, destination)) = self.heads.pop_first()
        {
            self.release_from(destination, &mut released);
        }
        released.sort_unstable_by_key(|(sequence, ..)| *sequence);
        self.queued -= released.len();
        released
            .into_iter()
            .map(|(_, destination, message)| (destination, message))
            .collect()
    }

    fn release_from(&mut self, destination: Dest, released: &mut Vec<(u64, Dest, Msg)>) {
        let Some(queue) = self.queues.get_mut(&destination) else {
            return;
        };
        let durable = self.durable;
        while let Some(entry) = queue.entries.pop_front_if(|entry| entry.after <= durable) {
            queue.bytes -= entry.bytes;
            self.queued_bytes -= entry.bytes;
            released.push((entry.sequence, destination.clone(), entry.message));
        }
        match queue.entries.front() {
            Some(head) => {
                self.heads.insert((head.after, destination));
            }
            None => {
                self.queues.remove(&destination);
            }
        }
    }

    /// Forgets the messages of a destination, and returns their number.
    pub fn drop_destination(&mut self, destination: &Dest) -> usize {
        let Some(queue) = self.queues.remove(destination) else {
            return 0;
        };
        if let Some(head) = queue.entries.front() {
            self.heads.remove(&(head.after, destination.clone()));
        }
        self.queued -= queue.entries.len();
        self.queued_bytes -= queue.bytes;
        queue.entries.len()
    }

    #[must_use]
    pub fn durable_lsn(&self) -> Lsn {
        self.durable
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.queued
    }

    /// Returns the bytes of all queued messages.
    #[must_use]
    pub fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queued == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Implements the size of messages of this type.
    macro_rules! sized {
        ($($message:ty = $bytes:expr),*) => {
            $(impl QueuedSize for $message {
                fn bytes(&self) -> usize {
                    $bytes(self)
                }
            })*
        };
    }

    sized!(
        &str = |it: &&str| it.len(),
        usize = |it: &usize| *it,
        i32 = |_: &i32| 1
    );

    #[test]
    fn message_leaves_when_dependency_is_durable() {
        let mut outbox = Outbox::default();
        outbox.push("a", 2, "a2").unwrap();
        outbox.push("b", 1, "b1").unwrap();
        outbox.push("c", 0, "c0").unwrap();
        assert_eq!(outbox.release(), [("c", "c0")]);
        assert_eq!(outbox.durable(1), [("b", "b1")]);
        assert_eq!(outbox.durable(0), []);
        assert_eq!(outbox.durable(5), [("a", "a2")]);
        outbox.push("a", 4, "a4").unwrap();
        assert_eq!(outbox.release(), [("a", "a4")]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn independent_message_passes_an_empty_queue() {
        let mut outbox = Outbox::default();
        assert_eq!(outbox.pass("a", 0, "a0"), Ok(Some("a0")));
        assert_eq!(outbox.pass("a", 2, "a2"), Ok(None));
        assert_eq!(outbox.pass("a", 0, "a1"), Ok(None));
        assert_eq!(outbox.pass("b", 0, "b0"), Ok(Some("b0")));
        assert_eq!(outbox.durable(2), [("a", "a2"), ("a", "a1")]);
        assert_eq!(outbox.pass("a", 2, "a3"), Ok(Some("a3")));
        assert!(outbox.is_empty());
    }

    #[test]
    fn order_is_kept_within_each_destination() {
        let mut outbox = Outbox::default();
        outbox.push("a", 3, 0).unwrap();
        outbox.push("a", 1, 1).unwrap();
        outbox.push("b", 2, 2).unwrap();
        outbox.push("a", 9, 3).unwrap();
        assert_eq!(outbox.durable(2), [("b", 2)]);
        assert_eq!(outbox.durable(3), [("a", 0), ("a", 1)]);
        assert_eq!(outbox.len(), 1);
        assert_eq!(outbox.durable(9), [("a", 3)]);
    }

    #[test]
    fn messages_released_together_keep_push_order() {
        let mut outbox = Outbox::default();
        for (sequence, destination) in ["b", "a", "c", "a", "b"].into_iter().enumerate() {
            outbox.push(destination, 1, sequence).unwrap();
        }
        let order: Vec<usize> = outbox.durable(1).into_iter().map(|(_, n)| n).collect();
        assert_eq!(order, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn dropped_destination_may_return() {
        let mut outbox = Outbox::default();
        outbox.push("a", 1, 1).unwrap();
        outbox.push("a", 2, 2).unwrap();
        outbox.push("b", 1, 3).unwrap();
        assert_eq!(outbox.drop_destination(&"a"), 2);
        assert_eq!(outbox.drop_destination(&"a"), 0);
        outbox.push("a", 2, 4).unwrap();
        assert_eq!(outbox.durable(1), [("b", 3)]);
        assert_eq!(outbox.durable(2), [("a", 4)]);
    }

    #[test]
    fn overflow_at_either_limit_changes_nothing() {
        let mut outbox = Outbox::new(Limits {
            per_destination: 2,
            total: 3,
            ..Limits::default()
        });
        outbox.push("a", 1, 0).unwrap();
        outbox.push("a", 1, 1).unwrap();
        assert_eq!(
            outbox.push("a", 1, 9),
            Err(Overflow::Destination { queued: 2 })
        );
        outbox.push("b", 1, 2).unwrap();
        assert_eq!(outbox.push("c", 0, 9), Err(Overflow::Total { queued: 3 }));
        assert_eq!(outbox.durable(1), [("a", 0), ("a", 1), ("b", 2)]);
        outbox.push("c", 0, 3).unwrap();
        assert_eq!(outbox.len(), 1);
    }

    #[test]
    fn destination_and_total_bytes_are_bounded() {
        let mut outbox: Outbox<&str, usize> = Outbox::new(Limits {
            bytes_per_destination: 10,
            bytes_total: 25,
            ..Limits::default()
        });
        outbox.push("a", 1, 6).unwrap();
        assert_eq!(
            outbox.push("a", 1, 5),
            Err(Overflow::DestinationBytes { queued: 6 })
        );
        outbox.push("a", 2, 4).unwrap();
        // A single message may be larger than its destination's part.
        outbox.push("b", 1, 12).unwrap();
        assert_eq!(
            outbox.push("c", 0, 4),
            Err(Overflow::TotalBytes { queued: 22 })
        );
        outbox.push("c", 1, 3).unwrap();
        assert_eq!(outbox.queued_bytes(), 25);
        assert_eq!(outbox.durable(1), [("a", 6), ("b", 12), ("c", 3)]);
        assert_eq!(outbox.queued_bytes(), 4);
        outbox.drop_destination(&"a");
        assert_eq!(outbox.queued_bytes(), 0);
        // A message that may be lost leaves half of the room.
        let fits = |outbox: &Outbox<&str, usize>, bytes| outbox.leaves_half(&"a", 2, &bytes);
        assert!(fits(&outbox, 5) && !fits(&outbox, 6));
        outbox.push("a", 2, 3).unwrap();
        assert!(fits(&outbox, 2) && !fits(&outbox, 3));
        outbox.push("b", 2, 10).unwrap();
        assert!(!fits(&outbox, 0));
        assert!(outbox.leaves_half(&"c", 1, &1_000), "it goes at once");
        outbox.drop_destination(&"a");
        outbox.drop_destination(&"b");
        outbox.push("d", 9, 1_000).unwrap();
        assert_eq!(outbox.queued_bytes(), 1_000, "nothing else waits");
    }
}
