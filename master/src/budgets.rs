//! Division of `--memory_budget` into limits in bytes for queues and for stored data.
//!
//! Each part is limited for all peers together, and most parts for each peer as well. The parts together take at most
//! four fifths of the whole; the rest is for uncounted memory: the core's tables, answers under construction, and the
//! overhead of the memory allocator. Invariant: no limit depends on the number of peers.

use std::time::Duration;

use meseta_daemon::fair_semaphore::{FairSemaphore, Rules};
use meseta_daemon::outbox;
use meseta_proto::budget::{Budget, Shares};

/// The smallest budget of a master. A scheduler's largest call is 32 MiB, and the charge also includes its decoded
/// form: with a small budget such a call never finds room and gets 413.
pub(crate) const MEMORY_BUDGET_MIN: u64 = 256 << 20;

/// The upper limit of the bytes guaranteed to a subscriber, an agent or a request, whatever the others use.
const FLOOR_BYTES_MAX: usize = 64 * 1024;

/// The bytes guaranteed to the requests of a peer, whatever the others use: small calls always pass.
const PEER_FLOOR_BYTES: usize = 64 * 1024;

/// The time without progress after which an agent's frame makes room for another's.
const FRAME_STALL_MAX: Duration = Duration::from_secs(2);
/// The time that the first message of a stream may take while others wait. The progress of sending is unknown.
const INITIAL_MESSAGE_STALL_MAX: Duration = Duration::from_secs(10);
/// The number of frames, or first messages, of one group that wait for room; below, those of all groups. Thousands of
/// agents may return at once.
const WAITING_OF_GROUP_MAX: usize = 256;
const WAITING_MAX: usize = 16_384;

/// The sender of requests: a principal, or else a user of this machine, or else a network.
pub(crate) type Peer = String;

#[derive(Debug)]
pub(crate) struct Budgets {
    /// Events that schedulers have not read.
    events: Budget,
    /// Frames that agents have not read.
    frames: Budget,
    /// Frames of agents that wait for the core.
    pub(crate) incoming_frames: Budget,
    /// Frames of agents while they are read, by their hosts.
    pub(crate) frame_buffer: FairSemaphore,
    /// Records of operators' streams that are encoded and not yet sent.
    records: Budget,
    /// The first events of operators' streams, which show the whole cluster.
    pub(crate) initial_messages: FairSemaphore,
    /// Bodies of requests, while they are read, decoded and wait for the core.
    bodies: Shares<Peer>,
    total_bytes: usize,
}

impl Budgets {
    /// Divides the total into the parts.
    #[must_use]
    pub(crate) fn from_total_bytes(total_bytes: usize) -> Self {
        Self {
            events: Budget::new(total_bytes / 16),
            frames: Budget::new(total_bytes / 16),
            incoming_frames: Budget::new(total_bytes / 32),
            frame_buffer: fair_budget(total_bytes / 32, FRAME_STALL_MAX),
            records: Budget::new(total_bytes / 32),
            initial_messages: fair_budget(total_bytes / 32, INITIAL_MESSAGE_STALL_MAX),
            bodies: Shares::new(Budget::new(total_bytes / 32 * 5), PEER_FLOOR_BYTES),
            total_bytes,
        }
    }

    /// The limit of unread events of one subscribed scheduler.
    pub(crate) fn subscriber(&self) -> Budget {
        self.events
            .share(self.total_bytes / 64, floor(self.total_bytes))
    }

    /// The limit of unread frames of one agent.
    pub(crate) fn agent(&self) -> Budget {
        self.frames
            .share(self.total_bytes / 128, floor(self.total_bytes))
    }

    /// The unread bytes of all agents.
    #[cfg(test)]
    pub(crate) fn unread_frames(&self) -> usize {
        self.frames.used()
    }

    /// The limit of unsent records of one operator's stream.
    pub(crate) fn stream(&self) -> Budget {
        self.records
            .share(self.total_bytes / 256, floor(self.total_bytes))
    }

    /// The limit of one request, within that of all requests of the peer. A larger request could never pass, whatever
    /// the others do.
    pub(crate) fn request_of(&self, peer: Peer) -> Budget {
        let all = self.peer(peer);
        all.share(all.limit(), floor(self.total_bytes))
    }

    /// The limit of all requests of a peer.
    pub(crate) fn peer(&self, peer: Peer) -> Budget {
        self.bodies.for_peer(peer)
    }

    /// The limits of output that waits for the registry.
    pub(crate) fn outbox(&self) -> outbox::Limits {
        outbox::Limits::of_bytes(self.total_bytes / 32)
    }

    /// The limit of the newest operator events, from which all watchers read.
    pub(crate) fn watched_bytes(&self) -> usize {
        self.total_bytes / 32
    }
}

/// A budget in which each group leaves the others as much as it uses.
fn fair_budget(bytes_max: usize, stall_timeout: Duration) -> FairSemaphore {
    FairSemaphore::new(Rules {
        units_max: bytes_max,
        leaves_half: true,
        stall_timeout: Some(stall_timeout),
        newest_first: false,
        waiting_of_group_max: WAITING_OF_GROUP_MAX,
        waiting_max: WAITING_MAX,
    })
}

fn floor(total_bytes: usize) -> usize {
    (total_bytes / 65_536).min(FLOOR_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Memory;

    #[test]
    fn budgets_leave_memory_for_uncounted_parts() {
        let total = 512 << 20;
        let budgets = Budgets::from_total_bytes(total);
        let memory = Memory::from_total_bytes(total);
        let queued = budgets.events.limit()
            + budgets.frames.limit()
            + budgets.incoming_frames.limit()
            + budgets.frame_buffer.limit()
            + budgets.records.limit()
            + budgets.initial_messages.limit()
            + budgets.outbox().bytes_total
            + budgets.watched_bytes()
            + total / 32 * 5;
        let remembered = memory.history
            + memory.terms
            + memory.agents
            + memory.partial_reregistrations
            + memory.operations;
        let parts = queued + remembered;
        assert!(parts > total / 2 && parts <= total / 5 * 4, "{parts}");
        assert!(budgets.subscriber().limit() < budgets.events.limit());
        assert!(budgets.agent().limit() < budgets.frames.limit());
    }
}
