//! Divides `--memory_budget` into limits for queues, requests in flight and history.
//!
//! Each part is bounded for all peers together, and most parts for each peer as well. The parts, the largest frame
//! while the agent reads it, and the connections together take at most three quarters of the budget. The remaining
//! quarter is for memory that nothing counts: the program, live tasks, answers under construction, and the memory that
//! the allocator retains. Invariant: nothing here depends on the number of tasks or peers.

use meseta_proto::Invalid;
use meseta_resources::ByteSize;

/// The smallest budget that an agent accepts.
const MEMORY_BUDGET_MIN: ByteSize = ByteSize::from_bytes(128 << 20);

/// Largest body of a call, if the budget allows it.
const CALL_BYTES_MAX: usize = 6 << 20;
/// Largest frame from the master, if the budget allows it: a task group with its data.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// The memory of one download.
const DOWNLOAD_BYTES: usize = 64 << 10;
/// The memory of a connection with an incomplete request.
const CONNECTION_BYTES: usize = 32 << 10;
/// Resident memory of an idle agent, mapped pages of the program included, plus the memory of a hundred tasks.
const PROGRAM_BYTES: usize = 32 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Budgets {
    total_bytes: usize,
}

impl Budgets {
    /// Divides this number of bytes.
    pub(crate) fn from_total_bytes(total_bytes: usize) -> Self {
        Self { total_bytes }
    }

    /// Reads the flag, or returns the reason why its value is unusable.
    pub(crate) fn read(flag: ByteSize) -> Result<Self, Invalid> {
        if flag < MEMORY_BUDGET_MIN {
            return Err(format!("{flag} is too little: give {MEMORY_BUDGET_MIN} or more").into());
        }
        let bytes = usize::try_from(flag.as_bytes()).unwrap_or(usize::MAX);
        Ok(Self::from_total_bytes(bytes))
    }

    /// The given number of parts of 128. With 1 GiB a part is 8 MiB; other budgets are divided in proportion, after
    /// subtracting the program's memory.
    fn part(self, count: usize) -> usize {
        let beside = |bytes: usize| bytes.saturating_sub(PROGRAM_BYTES) as u128;
        let of_a_gib = count as u128 * ((1 << 30) / 128);
        let part = of_a_gib * beside(self.total_bytes) / beside(1 << 30);
        usize::try_from(part).unwrap_or(usize::MAX)
    }

    /// Events that executors have not read.
    pub(crate) fn events(self) -> usize {
        self.part(6)
    }

    /// Messages between frameworks and executors that wait for the disk.
    pub(crate) fn messages(self) -> usize {
        self.part(2)
    }

    /// Messages that wait for the master to read them.
    pub(crate) fn outgoing(self) -> usize {
        self.part(2)
    }

    /// Outputs that wait for the disk before the core accepts no new inputs.
    pub(crate) fn outbox(self) -> usize {
        self.part(4)
    }

    /// Writes that are not durable before the core accepts no new inputs.
    pub(crate) fn writes(self) -> usize {
        self.part(8)
    }

    /// Calls of executors while the agent reads them.
    pub(crate) fn reading(self) -> usize {
        self.part(3)
    }

    /// Updates of executors that wait for a permit as unacknowledged updates.
    pub(crate) fn waiting(self) -> usize {
        self.part(2)
    }

    /// Updates of executors that are not acknowledged.
    pub(crate) fn unacknowledged(self) -> usize {
        self.part(3)
    }

    /// Ended operations that are not acknowledged.
    pub(crate) fn operations(self) -> usize {
        self.part(2)
    }

    /// Unacknowledged updates from checks.
    pub(crate) fn check_updates(self) -> usize {
        self.part(1)
    }

    /// Calls while the agent decodes them, bodies of operators' calls, and terminal input.
    pub(crate) fn bodies(self) -> usize {
        self.part(4)
    }

    /// Answers that are not sent yet.
    pub(crate) fn answers(self) -> usize {
        self.part(4)
    }

    /// Frames from the master that wait for the core.
    pub(crate) fn frames(self) -> usize {
        self.part(6)
    }

    /// Completed executors with their tasks.
    pub(crate) fn history(self) -> usize {
        self.part(8)
    }

    /// Downloads at a time.
    pub(crate) fn downloads_max(self) -> usize {
        self.part(2) / DOWNLOAD_BYTES
    }

    /// Connections at a time.
    pub(crate) fn connections_max(self) -> usize {
        self.part(16) / CONNECTION_BYTES
    }

    /// Largest body of a call: the agent can read four of them at a time.
    pub(crate) fn call_bytes_max(self) -> usize {
        CALL_BYTES_MAX.min(self.reading() / 4)
    }

    /// Largest frame accepted from the master; decoding holds the frame twice.
    pub(crate) fn frame_bytes_max(self) -> usize {
        FRAME_BYTES_MAX.min(self.part(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn budget_leaves_room_for_uncounted_memory() {
        for total in [128 * MIB, 1024 * MIB, 8192 * MIB] {
            let budgets = Budgets::from_total_bytes(total);
            let waiting = budgets.events()
                + budgets.messages()
                + budgets.outgoing()
                + budgets.outbox()
                + budgets.writes()
                + budgets.reading()
                + budgets.waiting()
                + budgets.unacknowledged()
                + budgets.operations()
                + budgets.check_updates()
                + budgets.bodies()
                + budgets.answers()
                + budgets.frames()
                + budgets.history();
            let under_way = budgets.downloads_max() * DOWNLOAD_BYTES
                + budgets.connections_max() * CONNECTION_BYTES
                + 2 * budgets.frame_bytes_max();
            let parts = waiting + under_way;
            assert!(
                parts > total / 2 && parts <= total * 3 / 4,
                "{parts} of {total}"
            );
        }
    }

    #[test]
    fn default_budgets_match_earlier_fixed_limits() {
        let budgets = Budgets::from_total_bytes(1024 * MIB);
        for (part, mebibytes) in [
            (budgets.events(), 48),
            (budgets.messages(), 16),
            (budgets.outgoing(), 16),
            (budgets.outbox(), 32),
            (budgets.writes(), 64),
            (budgets.reading(), 24),
            (budgets.waiting(), 16),
            (budgets.unacknowledged(), 24),
            (budgets.operations(), 16),
            (budgets.call_bytes_max(), 6),
            (budgets.frame_bytes_max(), 64),
        ] {
            assert_eq!(part, mebibytes * MIB);
        }
        assert_eq!(budgets.downloads_max(), 256);
    }

    #[test]
    fn too_small_budget_is_refused() {
        let least = Budgets::read(MEMORY_BUDGET_MIN).expect("enough");
        assert!(least.call_bytes_max() > 512 << 10 && least.frame_bytes_max() > 6 * MIB);
        let error = Budgets::read(ByteSize::from_bytes(127 << 20)).expect_err("too little");
        assert!(error.to_string().contains("128MB or more"), "{error}");
    }
}
