//! Until when this master may show anything to anybody.
//!
//! Invariant: what is told of a lease is on the safe side. Its time is counted from before the request that renewed it
//! was sent, on `CLOCK_BOOTTIME`, which goes on while the process is stopped and while the machine sleeps
//! (`clock_gettime(2)`). So a master that was stopped for longer than its lease finds itself fenced when it goes on,
//! before it has asked anybody.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A point on `CLOCK_BOOTTIME`: time since the machine was started, with what it slept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BootTime(u64);

impl BootTime {
    pub(crate) fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// At the latest the last point that there is, which never comes.
    pub(crate) fn after(self, time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The end of the time in which a master may act as the leader. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    until: Arc<AtomicU64>,
}

impl Fence {
    /// Of a master that no other one can replace.
    pub(crate) fn never() -> Self {
        Self {
            until: Arc::new(AtomicU64::new(u64::MAX)),
        }
    }

    /// Of a master that does not lead yet.
    pub(crate) fn closed() -> Self {
        Self {
            until: Arc::new(AtomicU64::new(0)),
        }
    }

    /// Moves the end on; an earlier one changes nothing.
    pub(crate) fn extend(&self, until: BootTime) {
        self.until.fetch_max(until.0, Ordering::AcqRel);
    }

    /// Ends the time at once.
    pub(crate) fn close(&self) {
        self.until.store(0, Ordering::Release);
    }

    fn is_open_at(&self, now: BootTime) -> bool {
        now.0 < self.until.load(Ordering::Acquire)
    }

    pub(crate) fn is_open(&self) -> bool {
        // A single master need not read the clock for each of its messages.
        let never_ends = self.until.load(Ordering::Acquire) == u64::MAX;
        never_ends || self.is_open_at(BootTime::now())
    }

    /// Ready while it is open; whoever finds it closed is woken to look again.
    pub(crate) fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        /// The fence itself wakes nobody.
        const CHECK: Duration = Duration::from_millis(50);
        if self.is_open() {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        tokio::spawn(async move {
            tokio::time::sleep(CHECK).await;
            waker.wake();
        });
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_open_until_its_end() {
        let start = BootTime(5_000_000_000);
        let fence = Fence::closed();
        assert!(!fence.is_open_at(start) && !fence.is_open());
        fence.extend(start.after(8 * SECOND));
        assert!(fence.is_open_at(start.after(7 * SECOND)));
        assert!(!fence.is_open_at(start.after(8 * SECOND)));
        // Answers may come in another order than they were asked for.
        fence.extend(start.after(2 * SECOND));
        assert!(fence.is_open_at(start.after(7 * SECOND)));
        let clone = fence.clone();
        clone.close();
        assert!(!fence.is_open_at(start));
    }

    #[test]
    fn a_single_master_is_never_fenced() {
        let fence = Fence::never();
        assert!(
            fence.is_open()
                && fence.is_open_at(BootTime::now().after(100 * 365 * 24 * 3_600 * SECOND))
        );
    }

    #[test]
    fn the_clock_goes_on() {
        let fence = Fence::closed();
        fence.extend(BootTime::now().after(3_600 * SECOND));
        assert!(fence.is_open());
    }
}
