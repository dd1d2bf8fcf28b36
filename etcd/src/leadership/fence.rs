//! The lease fence: after its deadline this daemon emits nothing.
//!
//! Invariant: the deadline is on the safe side. A lease counts from before its renewal request was sent, on `CLOCK_BOOTTIME`,
//! which goes on while the process is stopped and while the machine sleeps (`clock_gettime(2)`). So a daemon that was stopped
//! for longer than its lease finds itself fenced when it goes on, before it has sent any request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::sync::Notify;

/// A point on `CLOCK_BOOTTIME`: the time since the machine was started, including sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootTime(u64);

impl BootTime {
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Boottime);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
        Self(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
    }

    /// The runtime's time instead, which a test may control.
    #[cfg(feature = "testing")]
    pub fn of_runtime() -> Self {
        /// Far enough from 0 for runtimes that are older than the origin.
        const AT_ORIGIN: BootTime = BootTime(86_400_000_000_000);
        static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let origin = *ORIGIN.get_or_init(std::time::Instant::now);
        let now = tokio::time::Instant::now().into_std();
        let before = u64::try_from(origin.saturating_duration_since(now).as_nanos());
        let Self(nanos) = AT_ORIGIN.after(now.saturating_duration_since(origin));
        Self(nanos.saturating_sub(before.unwrap_or(u64::MAX)))
    }

    /// The later point; saturates at the last possible point, which never comes.
    pub fn after(self, time: Duration) -> Self {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// The source of the time of a fence.
pub type Clock = fn() -> BootTime;

/// The end of the time in which a daemon may act as the leader. Clones share it.
#[derive(Clone, Debug)]
pub struct Fence {
    shared: Arc<Shared>,
    clock: Clock,
}

#[derive(Debug)]
struct Shared {
    until: AtomicU64,
    /// Signals a change of the deadline.
    moved: Notify,
}

impl Fence {
    /// The fence of a daemon that no other daemon can replace.
    pub fn never() -> Self {
        Self::new(u64::MAX, BootTime::now)
    }

    /// The fence of a daemon that does not lead yet.
    pub fn closed() -> Self {
        Self::closed_by(BootTime::now)
    }

    /// A closed fence with this clock.
    pub fn closed_by(clock: Clock) -> Self {
        Self::new(0, clock)
    }

    fn new(until: u64, clock: Clock) -> Self {
        let shared = Shared {
            until: AtomicU64::new(until),
            moved: Notify::new(),
        };
        Self {
            shared: Arc::new(shared),
            clock,
        }
    }

    fn until(&self) -> u64 {
        self.shared.until.load(Ordering::Acquire)
    }

    /// Extends the deadline; an earlier one changes nothing.
    pub fn extend(&self, until: BootTime) {
        self.shared.until.fetch_max(until.0, Ordering::AcqRel);
        self.shared.moved.notify_waiters();
    }

    /// Ends the right to act at once.
    pub fn close(&self) {
        self.shared.until.store(0, Ordering::Release);
        self.shared.moved.notify_waiters();
    }

    fn is_open_at(&self, now: BootTime) -> bool {
        now.0 < self.until()
    }

    pub fn is_open(&self) -> bool {
        // A single daemon need not read the clock for each of its messages.
        self.until() == u64::MAX || self.is_open_at((self.clock)())
    }

    /// Returns when the fence is open.
    pub async fn opened(&self) {
        loop {
            let moved = self.shared.moved.notified();
            if self.is_open() {
                return;
            }
            moved.await;
        }
    }

    /// Returns when the fence is closed.
    pub async fn ended(&self) {
        /// The runtime's timers stand still while the machine sleeps, and the fence does not.
        const CHECK: Duration = Duration::from_secs(1);
        loop {
            let moved = self.shared.moved.notified();
            let left = self.until().saturating_sub((self.clock)().0);
            if left == 0 {
                return;
            }
            // A timer may fire slightly early, which this margin prevents.
            let left = Duration::from_nanos(left) + Duration::from_millis(1);
            tokio::select! {
                () = moved => {}
                () = tokio::time::sleep(left.min(CHECK)) => {}
            }
        }
    }

    /// Ready while the fence is open. If it is closed, the task is woken when it opens, and for regular checks.
    pub fn poll_open(&self, context: &Context<'_>) -> Poll<()> {
        /// The longest time that a waiting task outlives its ended stream.
        const CHECK: Duration = Duration::from_secs(1);
        if self.is_open() {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        let fence = self.clone();
        tokio::spawn(async move {
            let _opened = tokio::time::timeout(CHECK, fence.opened()).await;
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
        // Answers may arrive in another order than their requests.
        fence.extend(start.after(2 * SECOND));
        assert!(fence.is_open_at(start.after(7 * SECOND)));
        let clone = fence.clone();
        clone.close();
        assert!(!fence.is_open_at(start));
    }

    #[test]
    fn a_single_daemon_is_never_fenced() {
        let fence = Fence::never();
        assert!(
            fence.is_open()
                && fence.is_open_at(BootTime::now().after(100 * 365 * 24 * 3_600 * SECOND))
        );
    }

    /// The kernel's own value of the same clock, in hundredths of a second.
    fn uptime() -> BootTime {
        let text = std::fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        BootTime(0).after(Duration::from_secs_f64(seconds))
    }

    #[test]
    fn boot_time_matches_machine_uptime() {
        let before = uptime();
        let now = BootTime::now();
        let hundredth = SECOND / 100;
        assert!(
            before <= now.after(hundredth) && now <= uptime().after(hundredth),
            "{now:?} is not on CLOCK_BOOTTIME, which was {before:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn fence_reports_opening_and_expiry() {
        let fence = Fence::closed_by(BootTime::of_runtime);
        fence.ended().await;
        let opening = tokio::spawn({
            let fence = fence.clone();
            async move { fence.opened().await }
        });
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        opening.await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
        tokio::time::sleep(5 * SECOND).await;
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        fence.ended().await;
        let open_for = begun.elapsed();
        assert!(
            open_for >= 13 * SECOND && open_for < 13 * SECOND + SECOND / 10,
            "{open_for:?}"
        );
        fence.extend(BootTime::of_runtime().after(8 * SECOND));
        let ending = tokio::spawn({
            let fence = fence.clone();
            async move { fence.ended().await }
        });
        tokio::task::yield_now().await;
        let begun = tokio::time::Instant::now();
        fence.close();
        ending.await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }
}
