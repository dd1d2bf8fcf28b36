//! Outcomes of operators' operations, for waiting callers and for a while after.
//!
//! Owned by the shell. Invariant: bounded; the oldest outcome is forgotten first, and whoever waits for what
//! nobody knows is told so.

use std::collections::{BTreeMap, VecDeque};

use meseta_proto::mesos::v1::OperationStatus;
use tokio::sync::oneshot;

use crate::core::OperationUuid;

/// Outcomes that are remembered.
const KEPT_MAX: usize = 10_000;
/// Operations that somebody waits for.
const AWAITED_MAX: usize = 10_000;

/// What is known of an operation.
#[derive(Debug)]
pub(crate) enum OperationOutcome {
    Over(Box<OperationStatus>),
    /// Told when it is over; closed without a word if the master ends before.
    Pending(oneshot::Receiver<OperationStatus>),
    /// Never heard of, or forgotten.
    Unknown,
    /// Too many requests wait already.
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct OperationOutcomes {
    over: BTreeMap<OperationUuid, OperationStatus>,
    /// In the order in which they ended.
    order: VecDeque<OperationUuid>,
    /// Under way, with those who wait.
    pending: BTreeMap<OperationUuid, Vec<oneshot::Sender<OperationStatus>>>,
    awaited: usize,
}

impl OperationOutcomes {
    /// An operation was taken.
    pub(crate) fn begin(&mut self, uuid: OperationUuid) {
        if self.pending.len() < AWAITED_MAX && !self.over.contains_key(&uuid) {
            self.pending.entry(uuid).or_default();
        }
    }

    /// An operation has ended.
    pub(crate) fn end(&mut self, uuid: OperationUuid, status: &OperationStatus) {
        let waiting = self.pending.remove(&uuid).unwrap_or_default();
        self.awaited -= waiting.len();
        for waiter in waiting {
            // Who waited may have left.
            let _unsent = waiter.send(status.clone());
        }
        if self.over.insert(uuid, status.clone()).is_none() {
            self.order.push_back(uuid);
        }
        if self.order.len() > KEPT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.over.remove(&oldest);
        }
    }

    pub(crate) fn of(&mut self, uuid: OperationUuid) -> OperationOutcome {
        if let Some(status) = self.over.get(&uuid) {
            return OperationOutcome::Over(Box::new(status.clone()));
        }
        let Some(waiting) = self.pending.get_mut(&uuid) else {
            return OperationOutcome::Unknown;
        };
        let before = waiting.len();
        waiting.retain(|waiter| !waiter.is_closed());
        self.awaited -= before - waiting.len();
        if self.awaited >= AWAITED_MAX {
            return OperationOutcome::Full;
        }
        let (waiter, finished) = oneshot::channel();
        waiting.push(waiter);
        self.awaited += 1;
        OperationOutcome::Pending(finished)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(message: &str) -> OperationStatus {
        OperationStatus {
            message: Some(message.to_owned()),
            ..OperationStatus::default()
        }
    }

    #[test]
    fn whoever_waits_is_told_and_whoever_comes_late_too() {
        let mut outcomes = OperationOutcomes::default();
        assert!(matches!(outcomes.of([1; 16]), OperationOutcome::Unknown));
        outcomes.begin([1; 16]);
        let OperationOutcome::Pending(mut first) = outcomes.of([1; 16]) else {
            panic!("it is under way");
        };
        drop(outcomes.of([1; 16]));
        outcomes.end([1; 16], &status("done"));
        assert_eq!(first.try_recv().unwrap(), status("done"));
        assert!(matches!(outcomes.of([1; 16]), OperationOutcome::Over(_)));
        assert_eq!(outcomes.awaited, 0);
        for number in 0..u64::try_from(KEPT_MAX).unwrap() {
            let mut uuid = [2; 16];
            uuid[..8].copy_from_slice(&number.to_le_bytes());
            outcomes.end(uuid, &status("another"));
        }
        assert!(matches!(outcomes.of([1; 16]), OperationOutcome::Unknown));
        assert_eq!(outcomes.over.len(), KEPT_MAX);
    }
}
