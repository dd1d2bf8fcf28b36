//! A thread's turn at the old sandboxes of one framework: some seconds, after which others that wait have theirs.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::Gc;

/// A thread's turn at the sandboxes of one framework, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) gc: Gc,
    pub(super) framework: PathBuf,
    /// When they were found to be due.
    pub(super) now: Duration,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.gc.known().removals.end(&self.framework);
    }
}

impl Turn {
    /// Removes what is due of this framework, then of those that wait, until nothing is due of any.
    pub(super) fn and_those_after(self) {
        let gc = self.gc.clone();
        let mut turn = Some(self);
        while let Some(one) = turn {
            one.take();
            turn = gc.next_turn();
        }
        // For what has become due meanwhile, and the ages of what is left.
        gc.wake();
    }

    /// Removes what is due of this framework while the turn lasts. If that is not all, the framework waits behind the others.
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
