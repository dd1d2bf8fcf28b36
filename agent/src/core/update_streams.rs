//! Status update streams: the sent and the pending updates of each task.
//!
//! Each task has one stream, first in first out. Only its head is in flight: it is sent again after 10 s, then after
//! twice as long each time up to 10 min, until it is acknowledged by its uuid. The module knows neither disks nor wire
//! formats: the core makes an update durable before it sends the head. Invariant: update k+1 of a task is never in
//! flight before update k was acknowledged, and nothing follows a terminal update.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::schema;
use meseta_resources::{FrameworkId, Moment, TaskId};

use super::shares::Shares;
use super::states::is_terminal;
use crate::byte_semaphore::Permit;

/// First pause before an unacknowledged update is sent again.
pub const RETRY_INTERVAL_MIN: Duration = Duration::from_secs(10);
/// The longest pause, up to which the pauses double.
pub const RETRY_INTERVAL_MAX: Duration = Duration::from_secs(600);
/// Unacknowledged updates kept for one task; a healthy task has three.
pub(super) const UNACKNOWLEDGED_UPDATES_MAX: usize = 1024;
/// The most streams of tasks that are not on this agent, such as refused tasks: of one framework, and of all.
pub(super) const ABSENT_OF_FRAMEWORK_MAX: usize = 4096;
const ABSENT_MAX: usize = 65_536;
/// Acknowledged uuids remembered per stream, to distinguish a repeated acknowledgement from a foreign one.
const ACKNOWLEDGED_REMEMBERED_MAX: usize = 64;

/// The key of a stream of updates.
#[derive(Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct StreamKey {
    /// The framework that gets the updates.
    pub framework: FrameworkId,
    /// The task of the updates.
    pub task: TaskId,
}

#[derive(Debug, Default)]
struct Stream {
    queue: VecDeque<pb::TaskStatus>,
    acknowledged: VecDeque<Vec<u8>>,
    /// The room taken by pending updates, by their uuids.
    room: BTreeMap<Vec<u8>, Room>,
    /// Whether the task is not on this agent.
    is_absent: bool,
    /// Set while the head is in flight.
    retry_at: Option<Moment>,
    /// The log position that its last sending waits for.
    sent_after: u64,
    interval: Duration,
}

/// The room that an update takes until it is acknowledged.
#[derive(Debug, Default)]
struct Room {
    /// The permit of an executor's update.
    _permit: Arc<Permit>,
    /// The bytes of the agent's own update, from the room for checks.
    check_bytes: usize,
}

/// The result of pushing a new update.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Pushed {
    /// The update is the head and must be sent now.
    Send,
    /// The update waits for its turn, or for the return of the master.
    Waits,
    /// The update is pending or acknowledged already.
    Duplicate,
    /// A terminal update is waiting; nothing may follow it.
    AfterTerminal,
    /// [`UNACKNOWLEDGED_UPDATES_MAX`] updates are waiting, or too many bytes of checks, and the update is not terminal.
    Full,
    /// The update belongs to an absent task, of which there are too many: it must be sent now, and is not kept.
    Once,
}

/// The result of an acknowledgement.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Acknowledged {
    /// The head is acknowledged; the next update, if any, must be sent.
    Next,
    /// The terminal update is acknowledged: the stream is closed.
    Closed,
    /// The update was acknowledged before.
    Duplicate,
    /// The update is not the head.
    Unexpected,
    /// There is no such stream.
    Unknown,
}

/// The streams of all tasks.
#[derive(Debug, Default)]
pub struct StatusUpdates {
    streams: BTreeMap<StreamKey, Stream>,
    /// Bytes of unacknowledged updates from checks.
    check_bytes: Shares,
    /// The number of streams of absent tasks.
    absent: Shares,
    retries: BTreeSet<(Moment, StreamKey)>,
    /// Whether the master listens; only then updates are in flight.
    flowing: bool,
}

impl StatusUpdates {
    /// Creates an empty set of streams, with a limit for the bytes of check updates.
    pub fn new(check_bytes_max: usize) -> Self {
        Self {
            check_bytes: Shares::new(check_bytes_max, check_bytes_max / 4 * 3),
            absent: Shares::new(ABSENT_MAX, ABSENT_OF_FRAMEWORK_MAX),
            ..Self::default()
        }
    }

    /// Adds an executor's new update, which must carry a uuid. It keeps its permit until it is acknowledged or
    /// forgotten. Rejected updates release their permit at once. Updates without a permit are the agent's own.
    pub fn push(
        &mut self,
        now: Moment,
        key: &StreamKey,
        status: pb::TaskStatus,
        permit: Arc<Permit>,
    ) -> Pushed {
        self.note_present(key);
        let of_check = match permit.is_some() {
            true => 0,
            false => check_bytes(&status),
        };
        if of_check > 0 && !self.check_bytes.has_room(&key.framework, of_check) {
            return Pushed::Full;
        }
        self.enqueue(now, key, status, permit, of_check)
    }

    /// Adds an update from the log of an earlier agent process, of an executor or the agent's own.
    pub fn push_recovered(
        &mut self,
        now: Moment,
        key: &StreamKey,
        status: pb::TaskStatus,
        is_executors: bool,
    ) -> Pushed {
        if is_executors {
            self.note_present(key);
            return self.enqueue(now, key, status, Arc::default(), 0);
        }
        self.push_own(now, key, status)
    }

    /// Adds the agent's own update. It replaces a pending update of the same check and state, so that a slow receiver
    /// gets the last result. The head may have been sent, and stays. Without room for the new update, the earlier one
    /// stays too.
    pub fn push_own(&mut self, now: Moment, key: &StreamKey, status: pb::TaskStatus) -> Pushed {
        let earlier = self.superseded(key, &status);
        let bytes = earlier.iter().filter_map(|uuid| {
            let stream = self.streams.get(key)?;
            Some(stream.room.get(uuid)?.check_bytes)
        });
        let of_check = check_bytes(&status);
        let more = of_check.saturating_sub(bytes.sum());
        if more > 0 && !self.check_bytes.has_room(&key.framework, more) {
            return Pushed::Full;
        }
        self.note_present(key);
        for uuid in earlier {
            self.drop_waiting(key, &uuid);
        }
        self.enqueue(now, key, status, Arc::default(), of_check)
    }

    /// Adds an update of a task that is not on this agent.
    pub fn push_absent(
        &mut self,
        now: Moment,
        key: &StreamKey,
        status: pb::TaskStatus,
        permit: Arc<Permit>,
    ) -> Pushed {
        let is_new = !self.streams.contains_key(key);
        if is_new && !self.absent.has_room(&key.framework, 1) {
            return Pushed::Once;
        }
        let pushed = self.enqueue(now, key, status, permit, 0);
        if let Some(stream) = self.streams.get_mut(key).filter(|_| is_new) {
            stream.is_absent = true;
            self.absent.add(&key.framework, 1);
        }
        pushed
    }

    /// Notes that the task of a stream, if there is one, is on this agent now.
    fn note_present(&mut self, key: &StreamKey) {
        if let Some(stream) = self.streams.get_mut(key).filter(|stream| stream.is_absent) {
            stream.is_absent = false;
            self.absent.take_off(&key.framework, 1);
        }
    }

    /// Queues an update if there is room.
    fn enqueue(
        &mut self,
        now: Moment,
        key: &StreamKey,
        status: pb::TaskStatus,
        permit: Arc<Permit>,
        of_check: usize,
    ) -> Pushed {
        let stream = self.streams.entry(key.clone()).or_default();
        let uuid = status.uuid.clone().unwrap_or_default();
        let queued = |held: &pb::TaskStatus| held.uuid.as_ref() == Some(&uuid);
        if stream.queue.iter().any(queued) || stream.acknowledged.contains(&uuid) {
            return Pushed::Duplicate;
        }
        if stream
            .queue
            .back()
            .is_some_and(|last| is_terminal(last.state))
        {
            return Pushed::AfterTerminal;
        }
        // A terminal update is never dropped; there is only one.
        if stream.queue.len() >= UNACKNOWLEDGED_UPDATES_MAX && !is_terminal(status.state) {
            return Pushed::Full;
        }
        self.check_bytes.add(&key.framework, of_check);
        stream.queue.push_back(status);
        if permit.is_some() || of_check > 0 {
            let room = Room {
                _permit: permit,
                check_bytes: of_check,
            };
            stream.room.insert(uuid, room);
        }
        if self.flowing && stream.queue.len() == 1 {
            self.arm(now, key, RETRY_INTERVAL_MIN);
            return Pushed::Send;
        }
        Pushed::Waits
    }

    /// The uuids of updates that a new update of the agent replaces.
    fn superseded(&self, key: &StreamKey, status: &pb::TaskStatus) -> Vec<Vec<u8>> {
        let Some(stream) = self.streams.get(key).filter(|_| is_of_check(status)) else {
            return Vec::new();
        };
        let waiting = stream.queue.iter().skip(1).rev();
        let of_run = waiting.take_while(|old| is_of_check(old) && old.state == status.state);
        let of_check = of_run.filter(|old| old.reason == status.reason);
        of_check.filter_map(|old| old.uuid.clone()).collect()
    }

    fn drop_waiting(&mut self, key: &StreamKey, uuid: &[u8]) {
        let Some(stream) = self.streams.get_mut(key) else {
            return debug_assert!(false, "only an update of a stream is superseded");
        };
        stream
            .queue
            .retain(|waiting| waiting.uuid.as_deref() != Some(uuid));
        let room = stream.room.remove(uuid).unwrap_or_default();
        self.check_bytes.take_off(&key.framework, room.check_bytes);
    }

    /// Acknowledges the head, if this is its uuid.
    pub fn acknowledge(&mut self, now: Moment, key: &StreamKey, uuid: &[u8]) -> Acknowledged {
        let Some(stream) = self.streams.get_mut(key) else {
            return Acknowledged::Unknown;
        };
        let is_head = |head: &pb::TaskStatus| head.uuid.as_deref() == Some(uuid);
        if !stream.queue.front().is_some_and(is_head) {
            let known = stream.acknowledged.iter().any(|old| old == uuid);
            return if known {
                Acknowledged::Duplicate
            } else {
                Acknowledged::Unexpected
            };
        }
        let head = stream.queue.pop_front();
        let room = stream.room.remove(uuid).unwrap_or_default();
        self.check_bytes.take_off(&key.framework, room.check_bytes);
        let is_idle = stream.is_absent && stream.queue.is_empty();
        if stream.queue.is_empty() {
            // Saves memory during the hours without events of the task.
            stream.queue.shrink_to_fit();
        }
        stream.acknowledged.push_back(uuid.to_vec());
        if stream.acknowledged.len() > ACKNOWLEDGED_REMEMBERED_MAX {
            stream.acknowledged.pop_front();
        }
        self.disarm(key);
        if head.is_some_and(|head| is_terminal(head.state)) {
            self.forget(key);
            return Acknowledged::Closed;
        }
        if is_idle {
            // Nothing else would ever close the stream.
            self.forget(key);
        }
        if self.flowing && self.head(key).is_some() {
            self.arm(now, key, RETRY_INTERVAL_MIN);
        }
        Acknowledged::Next
    }

    /// Whether an update with this uuid was accepted before, for a stream that is not closed.
    pub fn knows(&self, key: &StreamKey, uuid: &[u8]) -> bool {
        self.streams.get(key).is_some_and(|stream| {
            let mut queue = stream.queue.iter();
            queue.any(|held| held.uuid.as_deref() == Some(uuid))
                || stream.acknowledged.iter().any(|old| old == uuid)
        })
    }

    /// The oldest unacknowledged update.
    pub fn head(&self, key: &StreamKey) -> Option<&pb::TaskStatus> {
        self.streams.get(key)?.queue.front()
    }

    /// Whether a stream has an unacknowledged update.
    pub fn has_unacknowledged(&self, key: &StreamKey) -> bool {
        self.head(key).is_some()
    }

    /// Whether any sent update waits for its acknowledgement.
    pub fn awaits_any(&self) -> bool {
        self.streams.values().any(|stream| !stream.queue.is_empty())
    }

    /// Whether updates are being sent.
    pub fn is_flowing(&self) -> bool {
        self.flowing
    }

    /// Stops sending: the master is gone, and nothing is in flight.
    pub fn pause(&mut self) {
        self.flowing = false;
        self.retries.clear();
        for stream in self.streams.values_mut() {
            stream.retry_at = None;
        }
    }

    /// Resumes when the master is back. Returns the streams whose heads must be sent, and restarts their pauses.
    pub fn resume(&mut self, now: Moment) -> Vec<StreamKey> {
        self.flowing = true;
        let heads =
            |(key, stream): (&StreamKey, &Stream)| (!stream.queue.is_empty()).then(|| key.clone());
        let keys: Vec<_> = self.streams.iter().filter_map(heads).collect();
        for key in &keys {
            self.arm(now, key, RETRY_INTERVAL_MIN);
        }
        keys
    }

    /// Returns the streams of a framework with a new scheduler, whose heads must be sent again.
    pub fn resend_of(&mut self, now: Moment, framework: &FrameworkId) -> Vec<StreamKey> {
        if !self.flowing {
            return Vec::new();
        }
        let of_it = |(key, stream): (&StreamKey, &Stream)| {
            (key.framework == *framework && !stream.queue.is_empty()).then(|| key.clone())
        };
        let keys: Vec<_> = self.streams.iter().filter_map(of_it).collect();
        for key in &keys {
            self.arm(now, key, RETRY_INTERVAL_MIN);
        }
        keys
    }

    /// Returns the streams with a head whose pause is over: it is sent again, and the next pause is twice as long.
    pub fn due(&mut self, now: Moment) -> Vec<StreamKey> {
        let mut keys = Vec::new();
        while let Some((at, key)) = self.retries.first().cloned() {
            if at > now {
                break;
            }
            let interval = self.streams.get(&key).map(|stream| stream.interval);
            let doubled = interval.unwrap_or(RETRY_INTERVAL_MIN).saturating_mul(2);
            self.arm(now, &key, doubled.min(RETRY_INTERVAL_MAX));
            keys.push(key);
        }
        keys
    }

    /// Notes that the head is sent once the log is durable up to this position.
    pub fn sent(&mut self, key: &StreamKey, after: u64) {
        if let Some(stream) = self.streams.get_mut(key) {
            stream.sent_after = after;
        }
    }

    /// Whether the last sending of a head has left, if the log is durable up to this position. A head that waits for
    /// the disk is not sent again, however long it waits.
    pub fn has_left(&self, key: &StreamKey, durable: u64) -> bool {
        let stream = self.streams.get(key);
        stream.is_none_or(|stream| stream.sent_after <= durable)
    }

    /// The next time when [`StatusUpdates::due`] returns streams.
    pub fn next_due(&self) -> Option<Moment> {
        self.retries.first().map(|(at, _)| *at)
    }

    /// Forgets a task's stream.
    pub fn remove(&mut self, key: &StreamKey) {
        self.disarm(key);
        self.forget(key);
    }

    fn forget(&mut self, key: &StreamKey) {
        if let Some(stream) = self.streams.remove(key) {
            let bytes = stream.room.values().map(|room| room.check_bytes).sum();
            self.check_bytes.take_off(&key.framework, bytes);
            let absent = usize::from(stream.is_absent);
            self.absent.take_off(&key.framework, absent);
        }
    }

    /// Forgets all streams of a framework.
    pub fn remove_framework(&mut self, framework: &FrameworkId) {
        self.streams.retain(|key, _| key.framework != *framework);
        self.check_bytes.forget(framework);
        self.absent.forget(framework);
        self.retries.retain(|(_, key)| key.framework != *framework);
    }

    fn arm(&mut self, now: Moment, key: &StreamKey, interval: Duration) {
        self.disarm(key);
        if let Some(stream) = self.streams.get_mut(key) {
            let at = now + interval;
            stream.interval = interval;
            stream.retry_at = Some(at);
            self.retries.insert((at, key.clone()));
        }
    }

    fn disarm(&mut self, key: &StreamKey) {
        if let Some(stream) = self.streams.get_mut(key)
            && let Some(at) = stream.retry_at.take()
        {
            self.retries.remove(&(at, key.clone()));
        }
    }
}

/// The size of a check's update while it waits; zero for other updates, which have a permit or are few.
fn check_bytes(status: &pb::TaskStatus) -> usize {
    if is_of_check(status) && !is_terminal(status.state) {
        schema::bytes_of(status)
    } else {
        0
    }
}

fn is_of_check(status: &pb::TaskStatus) -> bool {
    matches!(
        status.reason(),
        Reason::TaskHealthCheckStatusUpdated | Reason::TaskCheckStatusUpdated
    )
}
