//! Operators' writes of every kind, one after the other, compared with the model of the acknowledged writes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meseta_tests::acknowledged::Writes;

use crate::board::Board;

/// The pause between two writes to the ledger.
const INTERVAL: Duration = Duration::from_millis(200);
/// The number of attempts to read an unavailable page.
const TRIES: usize = 100;

#[derive(Debug)]
pub(crate) struct Ledger {
    writes: Mutex<Writes>,
    /// Whether the registry was reset to an earlier state, which the model does not know.
    is_retired: AtomicBool,
}

impl Ledger {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            writes: Mutex::new(Writes::new(seed)),
            is_retired: AtomicBool::new(false),
        }
    }

    fn writes(&self) -> MutexGuard<'_, Writes> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes until the end of the run.
    pub(crate) fn run(&self, board: &Board) {
        while !board.is_over() && !self.is_retired() {
            if let Some(leader) = board.leader() {
                let mut writes = self.writes();
                let write = writes.next();
                let outcome = write.send(&board.urls[leader.master]);
                writes.record(&write, outcome);
            }
            std::thread::sleep(INTERVAL);
        }
    }

    /// Ends the writes and the checks: the registry is about to receive an earlier state.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::Relaxed)
    }

    /// Checks that the leader of a healthy cluster has all acknowledged writes, to the last; no write happens meanwhile.
    pub(crate) fn check(&self, board: &Board) -> Result<(), String> {
        if self.is_retired() {
            return Ok(());
        }
        let mut writes = self.writes();
        let mut result = Err("no master leads".to_owned());
        for _ in 0..TRIES {
            if let Some(leader) = board.leader() {
                result = writes.settle(&board.urls[leader.master]);
            }
            match &result {
                // The check gave no result.
                Err(why) if why.starts_with("GET") || why.starts_with("no ") => {}
                _ => return result,
            }
            std::thread::sleep(INTERVAL);
        }
        result
    }

    /// Returns the number of acknowledged writes.
    pub(crate) fn acknowledged(&self) -> usize {
        let writes = self.writes();
        let counts = writes.counts().iter();
        let acknowledged = counts.filter(|((_, how), _)| *how == "acknowledged");
        acknowledged.map(|(_, count)| count).sum()
    }
}
