//! The calls of the core on their way to the queue of the present stream.
//!
//! Entered through [`Outgoing::send`]. Invariants: the core never waits for room in the queue; calls without room keep
//! their order, and the core takes no further step until they have left.

use std::collections::VecDeque;

use meseta_proto::mesos::v1::scheduler::Call;
use tokio::sync::mpsc::error::TrySendError;

use super::queue::CallQueue;

#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    queue: Option<CallQueue>,
    /// The calls of one step; the core takes the next step when they have left.
    backlog: VecDeque<Call>,
}

impl Outgoing {
    /// Sends calls to the queue of a new stream; waiting calls of the earlier stream are dropped.
    pub(crate) fn connect(&mut self, queue: CallQueue) {
        self.queue = Some(queue);
        self.backlog.clear();
    }

    /// Queues a call behind the waiting calls. Drops a call of an ended stream: the core learns of the end.
    pub(crate) fn send(&mut self, call: Call) {
        let Some(queue) = &self.queue else {
            return;
        };
        queue.count(&call);
        if !self.backlog.is_empty() {
            return self.backlog.push_back(call);
        }
        if let Err(TrySendError::Full(call)) = queue.lane(&call).try_send(call) {
            self.backlog.push_back(call);
        }
    }

    /// Whether calls wait for room.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// Returns the number of kills in the queue.
    pub(crate) fn kills_waiting(&self) -> usize {
        self.queue.as_ref().map_or(0, CallQueue::kills_waiting)
    }

    /// Queues waiting calls while there is room, until none waits. The future may be dropped at any time.
    pub(crate) async fn drain(&mut self) {
        while let (Some(queue), Some(next)) = (&self.queue, self.backlog.front()) {
            let Ok(room) = queue.lane(next).reserve().await else {
                // The stream has ended.
                return self.backlog.clear();
            };
            if let Some(call) = self.backlog.pop_front() {
                room.send(call);
            }
        }
    }
}
