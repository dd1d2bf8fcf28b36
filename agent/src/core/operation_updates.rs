//! Results of operations that the master has not acknowledged.
//!
//! Each result is sent at once, then after 10 s, then after twice as long each time up to 10 min, until it is
//! acknowledged by its uuid. The module knows neither disks nor wire formats. Invariant: a result is sent as long as it
//! is stored, and only its acknowledgement removes it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::Moment;
use prost::Message as _;

use super::{RETRY_INTERVAL_MAX, RETRY_INTERVAL_MIN};

/// The UUID of an operation.
pub(super) type OperationUuid = [u8; 16];

/// An operation that has ended here.
#[derive(Debug)]
struct Ended {
    message: Arc<pb::Operation>,
    /// Whether the operation is in the checkpoints; an operation that was never carried out is not.
    kept: bool,
    interval: Duration,
    /// The time of the next attempt; set while the result is in flight.
    retry_at: Option<Moment>,
}

#[derive(Debug, Default)]
pub(super) struct OperationUpdates {
    ended: BTreeMap<OperationUuid, Ended>,
    /// The total size of the messages.
    bytes: usize,
    retries: BTreeSet<(Moment, OperationUuid)>,
    /// Whether the master listens; only then results are in flight.
    flowing: bool,
}

impl OperationUpdates {
    /// Adds a result. Returns whether it must be sent now.
    pub(super) fn push(
        &mut self,
        now: Moment,
        uuid: OperationUuid,
        message: Arc<pb::Operation>,
        kept: bool,
    ) -> bool {
        self.bytes = self.bytes.saturating_add(message.encoded_len());
        let before = self.ended.insert(
            uuid,
            Ended {
                message,
                kept,
                interval: RETRY_INTERVAL_MIN,
                retry_at: None,
            },
        );
        self.release(before.as_ref());
        if self.flowing {
            self.arm(now, uuid, RETRY_INTERVAL_MIN);
        }
        self.flowing
    }

    /// Removes an acknowledged result, if `status` is the uuid of its status. Returns whether the operation was in the
    /// checkpoints.
    pub(super) fn acknowledge(&mut self, uuid: &OperationUuid, status: &[u8]) -> Option<bool> {
        let ended = self.ended.get(uuid)?;
        let told = ended.message.latest_status.uuid.as_ref()?;
        if told.value != status {
            return None;
        }
        self.disarm(uuid);
        let ended = self.ended.remove(uuid);
        self.release(ended.as_ref());
        ended.map(|ended| ended.kept)
    }

    fn release(&mut self, ended: Option<&Ended>) {
        let bytes = ended.map_or(0, |ended| ended.message.encoded_len());
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(super) fn get(&self, uuid: &OperationUuid) -> Option<&Arc<pb::Operation>> {
        self.ended.get(uuid).map(|ended| &ended.message)
    }

    pub(super) fn len(&self) -> usize {
        self.ended.len()
    }

    /// The total size of the messages.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<pb::Operation>> {
        self.ended.values().map(|ended| &ended.message)
    }

    /// The results that belong into the checkpoints.
    pub(super) fn kept(&self) -> Vec<Arc<pb::Operation>> {
        let kept = self.ended.values().filter(|ended| ended.kept);
        kept.map(|ended| ended.message.clone()).collect()
    }

    /// Stops the retries: the master is gone, and nothing is in flight.
    pub(super) fn pause(&mut self) {
        self.flowing = false;
        self.retries.clear();
        for ended in self.ended.values_mut() {
            ended.retry_at = None;
        }
    }

    /// Restarts when the master is back. Returns all results, whose pauses begin again.
    pub(super) fn resume(&mut self, now: Moment) -> Vec<OperationUuid> {
        self.flowing = true;
        let all: Vec<_> = self.ended.keys().copied().collect();
        for uuid in &all {
            self.arm(now, *uuid, RETRY_INTERVAL_MIN);
        }
        all
    }

    /// Returns the results whose pause is over.
    pub(super) fn due(&mut self, now: Moment) -> Vec<OperationUuid> {
        let mut due = Vec::new();
        while let Some((at, uuid)) = self.retries.first().copied() {
            if at > now {
                break;
            }
            let interval = self.ended.get(&uuid).map(|ended| ended.interval);
            let doubled = interval.unwrap_or(RETRY_INTERVAL_MIN).saturating_mul(2);
            self.arm(now, uuid, doubled.min(RETRY_INTERVAL_MAX));
            due.push(uuid);
        }
        due
    }

    /// The next time when [`OperationUpdates::due`] returns results.
    pub(super) fn next_due(&self) -> Option<Moment> {
        self.retries.first().map(|(at, _)| *at)
    }

    fn arm(&mut self, now: Moment, uuid: OperationUuid, interval: Duration) {
        self.disarm(&uuid);
        if let Some(ended) = self.ended.get_mut(&uuid) {
            let at = now + interval;
            ended.interval = interval;
            ended.retry_at = Some(at);
            self.retries.insert((at, uuid));
        } else {
            // No retry is needed any more.
            self.retries.retain(|(_, other)| *other != uuid);
        }
    }

    fn disarm(&mut self, uuid: &OperationUuid) {
        if let Some(ended) = self.ended.get_mut(uuid)
            && let Some(at) = ended.retry_at.take()
        {
            self.retries.remove(&(at, *uuid));
        }
    }
}
