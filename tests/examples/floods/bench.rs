//! The common parts of the floods: the daemons under attack, the remaining time, and the results.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::fleet::{Fleet, REGISTER_LIMIT, VICTIM};

/// The pause between two checks whether a pause is over.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) fleet: Fleet,
    pub(crate) time: Arc<Time>,
    /// Held for reading during a measurement, and for writing while the master is stopped.
    pub(crate) master_runs: RwLock<()>,
}

impl Bench {
    /// Kills the victim's agent, starts it, and waits until it is registered; called by the holder of the victim.
    pub(crate) fn restart_victim(&self, tally: &Tally) -> anyhow::Result<()> {
        self.fleet.restart_victim();
        let began = Instant::now();
        while !self.fleet.says_registered(VICTIM) {
            if self.time.was_interrupted() {
                return Ok(());
            }
            if began.elapsed() > REGISTER_LIMIT {
                bail!("a node did not register again within {REGISTER_LIMIT:?}");
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        tally.most("ms for the slowest registration", began.elapsed());
        tally.count("registrations");
        Ok(())
    }
}

/// The end of all work.
#[derive(Debug)]
pub(crate) struct Time {
    end: Mutex<Instant>,
    stop: AtomicBool,
    interrupted: AtomicBool,
}

impl Time {
    pub(crate) fn new() -> Self {
        Self {
            end: Mutex::new(Instant::now()),
            stop: AtomicBool::new(false),
            interrupted: AtomicBool::new(false),
        }
    }

    pub(crate) fn begin(&self, length: Duration) {
        *lock(&self.end) = Instant::now() + length;
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Notes that an operator interrupted the run.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
        self.stop();
    }

    pub(crate) fn was_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || Instant::now() >= *lock(&self.end)
    }

    /// Waits for this time, or until the end.
    pub(crate) fn pause(&self, length: Duration) {
        self.wait_for(length, || false);
    }

    /// Waits until a condition holds, for this time at most; returns whether it did.
    pub(crate) fn wait_for(&self, length: Duration, mut holds: impl FnMut() -> bool) -> bool {
        let began = Instant::now();
        loop {
            if holds() {
                return true;
            }
            let left = length.saturating_sub(began.elapsed());
            if self.is_over() || left.is_zero() {
                return false;
            }
            std::thread::sleep(left.min(POLL_INTERVAL));
        }
    }
}

/// The counts of events, and the longest durations.
#[derive(Debug, Default)]
pub(crate) struct Tally(Mutex<BTreeMap<String, u64>>);

impl Tally {
    pub(crate) fn count(&self, what: impl Into<String>) {
        *lock(&self.0).entry(what.into()).or_default() += 1;
    }

    /// Records the highest time, in ms.
    pub(crate) fn most(&self, what: &str, time: Duration) {
        let time = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let mut counts = lock(&self.0);
        let highest = counts.entry(what.to_owned()).or_default();
        *highest = time.max(*highest);
    }

    /// Counts an answer by its status, or by its error.
    pub(crate) fn answer(&self, what: &str, answer: &std::io::Result<u16>) {
        self.count(match answer {
            Ok(status) => format!("{what} {status}"),
            Err(error) => format!("{what} {:?}", error.kind()),
        });
    }

    pub(crate) fn text(&self) -> String {
        let counts = lock(&self.0);
        let parts = counts.iter().map(|(what, count)| format!("{count} {what}"));
        parts.collect::<Vec<_>>().join(", ")
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
