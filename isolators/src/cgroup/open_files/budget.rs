//! The budget of open control files, and the choice of files when it is too small.
//!
//! Files that are read in every sweep go before rarely read ones. Belongs to one thread, as its sampler does; atomic only so
//! that it may move.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Files;

/// The remaining number of descriptors that may stay open, shared by all containers of a sampler.
#[derive(Clone, Debug, Default)]
pub(crate) struct Budget(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    left: AtomicUsize,
    /// Files read in every sweep that found nothing left since [`Budget::shift`].
    short: AtomicUsize,
    /// The part of `left` that rarely read files may not take.
    promised: AtomicUsize,
}

/// The frequency of reads of a file.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub(super) enum Pace {
    /// The file is read in every sweep.
    Often,
    /// Read only in a complete sample.
    #[default]
    Seldom,
}

impl Budget {
    pub(crate) fn new(descriptors: usize) -> Self {
        let budget = Self::default();
        budget.0.left.store(descriptors, Ordering::Relaxed);
        budget
    }

    /// Moves budget between two sweeps: files that found nothing left in the last sweep get the descriptors of rarely read files.
    pub(crate) fn shift<'a>(&self, all: impl Iterator<Item = &'a Files>) {
        let short = self.0.short.swap(0, Ordering::Relaxed);
        let mut freed = 0;
        for files in all {
            if freed >= short {
                break;
            }
            freed += files.close_seldom_read(short - freed);
        }
        self.0.promised.store(freed, Ordering::Relaxed);
    }

    pub(super) fn take(&self, pace: Pace) -> bool {
        let kept_back = match pace {
            Pace::Often => 0,
            Pace::Seldom => self.0.promised.load(Ordering::Relaxed),
        };
        let less = |left: usize| (left > kept_back).then(|| left - 1);
        let (relaxed, left) = (Ordering::Relaxed, &self.0.left);
        let taken = left.fetch_update(relaxed, relaxed, less).is_ok();
        match (pace, taken) {
            (Pace::Often, true) => {
                let less = |promised: usize| promised.checked_sub(1);
                // Usually nothing was promised.
                let _ = self.0.promised.fetch_update(relaxed, relaxed, less);
            }
            (Pace::Often, false) => {
                self.0.short.fetch_add(1, relaxed);
            }
            (Pace::Seldom, _) => {}
        }
        taken
    }

    pub(super) fn give_back(&self) {
        self.0.left.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> usize {
        self.0.left.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    #[test]
    fn budget_prefers_files_of_every_sweep() {
        const CONTAINERS: usize = 6;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let dir: Arc<Path> = folder.path().into();
        for name in ["often", "a", "b", "c"] {
            fs::write(dir.join(name), "1\n").expect("written");
        }
        // Enough for the frequently read file of every container, and two more.
        let budget = Budget::new(CONTAINERS + 2);
        let new = |_| Files::keeping(budget.clone(), Arc::default());
        let containers: Vec<_> = (0..CONTAINERS).map(new).collect();
        let sweep = |turn: usize| {
            budget.shift(containers.iter());
            for (number, files) in containers.iter().enumerate() {
                // All files at first, then those of one container in turn.
                let all = turn == 0 || turn % CONTAINERS == number;
                files.begin(all, Vec::new());
                let names = ["often", "a", "b", "c"];
                for name in names.into_iter().take(if all { 4 } else { 1 }) {
                    assert_eq!(files.number(&dir, name), Some(1));
                }
                files.end();
            }
        };
        sweep(0);
        let of = |files: &[Files]| files.iter().map(Files::open).collect::<Vec<_>>();
        assert_eq!(
            of(&containers),
            [4, 4, 0, 0, 0, 0],
            "first come, first served"
        );
        // Detected in the second sweep, and open from the third on, in any order of containers.
        (1..3 * CONTAINERS).for_each(sweep);
        assert!(containers.iter().all(|files| files.open() >= 1));
        assert_eq!(budget.left(), 0, "the rest serves what is seldom read");
        drop(containers);
        assert_eq!(budget.left(), CONTAINERS + 2);
    }
}
