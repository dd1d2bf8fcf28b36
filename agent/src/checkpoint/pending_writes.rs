//! Writes handed to the disk and not yet durable, bounded in bytes and number.
//!
//! A disk that is full for hours must neither end the agent nor stop its answers. Beyond the bound the core takes no
//! new inputs, but the agent still answers queries. Pure.

use std::collections::VecDeque;

/// The number of writes that may wait.
const WRITES_MAX: usize = 262_144;

/// The position of a write in the order of all writes. Zero is before the first.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct Lsn(pub u64);

/// Writes that were handed over and are not durable.
#[derive(Debug)]
pub(crate) struct PendingWrites {
    /// Bytes that may wait; the bytes of one further input may exceed this.
    bytes_max: usize,
    writes: VecDeque<(Lsn, usize)>,
    bytes: usize,
}

impl PendingWrites {
    pub(crate) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            writes: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Adds a write of this size.
    pub(crate) fn add(&mut self, lsn: Lsn, bytes: usize) {
        self.writes.push_back((lsn, bytes));
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Notes that all writes up to this position are durable.
    pub(crate) fn durable(&mut self, lsn: Lsn) {
        while let Some((_, bytes)) = self.writes.pop_front_if(|(at, _)| *at <= lsn) {
            self.bytes = self.bytes.saturating_sub(bytes);
        }
    }

    /// Whether the core must take no new inputs.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= self.bytes_max || self.writes.len() >= WRITES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_bounds_hold_until_writes_finish() {
        let mut few = PendingWrites::new(64 << 20);
        let mut many = PendingWrites::new(64 << 20);
        let mut lsn = 0;
        while !few.is_full() {
            lsn += 1;
            few.add(Lsn(lsn), 1024 * 1024);
        }
        assert_eq!(lsn, 64);
        few.durable(Lsn(1));
        assert!(!few.is_full());
        few.durable(Lsn(64));
        assert_eq!((few.bytes, few.writes.len()), (0, 0));
        for lsn in 1..=WRITES_MAX as u64 {
            assert!(!many.is_full());
            many.add(Lsn(lsn), 1);
        }
        assert!(many.is_full());
    }
}
