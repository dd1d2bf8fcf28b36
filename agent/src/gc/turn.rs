//! A thread's turn at the old sandboxes of one framework: some seconds, then the next framework has its turn.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Gc;

/// A thread's turn at the sandboxes of one framework, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) gc: Gc,
    pub(super) framework: PathBuf,
    /// The time at which the sandboxes were due.
    pub(super) now: Duration,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gc.known().removals.end(&self.framework);
    }
}

impl Turn {
    /// Takes this turn, then those of the waiting frameworks, until no sandbox is due.
    pub(super) fn and_those_after(self) {
        let gc = self.gc.clone();
        let mut turn = Some(self);
        while let Some(one) = turn {
            one.take();
            turn = gc.next_turn();
        }
        // Wakes the collection for sandboxes that became due meanwhile, and to record the ages of the rest.
        gc.wake();
    }

    /// Removes the due sandboxes of this framework during the turn. If some remain, the framework queues behind the
    /// others.
    pub(super) fn take(self) {
        let (gc, framework, now) = (self.gc.clone(), self.framework.clone(), self.now);
        let began = Instant::now();
        let goes_on = || began.elapsed() < gc.inner.turn;
        for sandbox in gc.due_in(&framework, now) {
            gc.prune_one(&sandbox, now, &goes_on);
            if !goes_on() {
                break;
            }
        }
        let is_over = goes_on() || gc.due_in(&framework, now).is_empty();
        drop(self);
        if !is_over {
            gc.known().removals.add(&framework, now);
        }
    }
}
