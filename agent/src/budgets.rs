//! Divides `--memory_budget` into limits for queues, requests in flight and history.
//!
//! Each part is bounded for all peers together, and most for each peer as well. The parts together, with what the
//! largest frame takes while it is read and what connections take at most, are at most three quarters of the whole;
//! the rest is for what is not counted: the program, tasks that live, answers while they are made, and what the
//! allocator of memory keeps. Invariant: nothing here depends on how many tasks or peers there are.

use meseta_proto::Invalid;
use meseta_resources::ByteSize;

/// The smallest budget that an agent takes.
const MEMORY_BUDGET_MIN: ByteSize = ByteSize::from_bytes(128 << 20);

/// Largest body of a call, if the budget allows it.
const CALL_BYTES_MAX: usize = 6 << 20;
/// Largest frame of the master's, likewise: a task group with its data.
const FRAME_BYTES_MAX: usize = 64 << 20;
/// What a download has in memory.
const DOWNLOAD_BYTES: usize = 64 << 10;
/// What a connection takes whose request does not end.
const CONNECTION_BYTES: usize = 32 << 10;
/// What an agent has resident that does nothing, mapped pages of the program included, with what a hundred tasks add.
const PROGRAM_BYTES: usize = 32 << 20;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Budgets {
    total_bytes: usize,
}

impl Budgets {
    /// Divides so many bytes.
    pub(crate) fn of(total_bytes: usize) -> Self {
        Self { total_bytes }
    }

    /// Understands the flag; if it cannot be used, why.
    pub(crate) fn read(flag: ByteSize) -> Result<Self, Invalid> {
        if flag < MEMORY_BUDGET_MIN {
            return Err(format!("{flag} is too little: give {MEMORY_BUDGET_MIN} or more").into());
        }
        let bytes = usize::try_from(flag.as_bytes()).unwrap_or(usize::MAX);
        Ok(Self::of(bytes))
    }

    /// So many parts of 128: of a whole GiB 8 MiB each, and of another budget in proportion to what it has beside the
    /// program.
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

    /// What waits for the master to take it.
    pub(crate) fn outgoing(self) -> usize {
        self.part(2)
    }

    /// What waits for the disk before the core takes nothing new.
    pub(crate) fn outbox(self) -> usize {
        self.part(4)
    }

    /// Writes that are not durable, likewise.
    pub(crate) fn writes(self) -> usize {
        self.part(8)
    }

    /// Calls of executors that are being read.
    pub(crate) fn reading(self) -> usize {
        self.part(3)
    }

    /// Updates of executors that wait to be among those that are not acknowledged.
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

    /// What checks have told and nobody has acknowledged.
    pub(crate) fn check_updates(self) -> usize {
        self.part(1)
    }

    /// Calls while they are decoded, and bodies of operators' calls and of what is typed.
    pub(crate) fn bodies(self) -> usize {
        self.part(4)
    }

    /// Answers that are not sent.
    pub(crate) fn answers(self) -> usize {
        self.part(4)
    }

    /// Frames of the master's that wait for the core.
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

    /// Largest body of a call: four of them can be read at a time.
    pub(crate) fn call_bytes_max(self) -> usize {
        CALL_BYTES_MAX.min(self.reading() / 4)
    }

    /// Largest frame taken from the master, which is there twice while it is decoded.
    pub(crate) fn frame_bytes_max(self) -> usize {
        FRAME_BYTES_MAX.min(self.part(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn all_parts_together_leave_room_for_what_is_not_counted() {
        for total in [128 * MIB, 1024 * MIB, 8192 * MIB] {
            let budgets = Budgets::of(total);
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
    fn by_default_nothing_is_smaller_than_it_was_without_a_budget() {
        let budgets = Budgets::of(1024 * MIB);
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
    fn a_budget_that_is_too_small_is_refused() {
        let least = Budgets::read(MEMORY_BUDGET_MIN).expect("enough");
        assert!(least.call_bytes_max() > 512 << 10 && least.frame_bytes_max() > 6 * MIB);
        let error = Budgets::read(ByteSize::from_bytes(127 << 20)).expect_err("too little");
        assert!(error.to_string().contains("128MB or more"), "{error}");
    }
}
