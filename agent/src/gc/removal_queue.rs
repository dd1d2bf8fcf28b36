//! The queue of frameworks for the removal of sandboxes: one thread for a framework, a few at a time, in order.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Frameworks with a removal in progress at the same time.
const FRAMEWORKS_AT_ONCE: usize = 4;

/// Frameworks, by their folders.
#[derive(Debug, Default)]
pub(super) struct RemovalQueue {
    /// The waiting frameworks, longest first, each with the time at which its sandboxes were due.
    waiting: VecDeque<(PathBuf, Duration)>,
    /// The waiting frameworks and those with a removal in progress.
    all: BTreeSet<PathBuf>,
}

impl RemovalQueue {
    /// Adds a framework to the end of the queue, unless it is waiting or its sandboxes are being removed.
    pub(super) fn add(&mut self, framework: &Path, now: Duration) {
        if self.all.insert(framework.to_owned()) {
            self.waiting.push_back((framework.to_owned(), now));
        }
    }

    /// Takes the first framework, if another thread may start; it counts until [`RemovalQueue::end`].
    pub(super) fn begin(&mut self) -> Option<(PathBuf, Duration)> {
        let under_way = self.all.len() - self.waiting.len();
        if under_way >= FRAMEWORKS_AT_ONCE {
            return None;
        }
        self.waiting.pop_front()
    }

    pub(super) fn end(&mut self, framework: &Path) {
        self.all.remove(framework);
    }

    /// Whether a folder lies in that of a waiting or active framework.
    pub(super) fn includes(&self, folder: &Path) -> bool {
        folder.ancestors().any(|above| self.all.contains(above))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frameworks_take_bounded_turns_once() {
        let mut queue = RemovalQueue::default();
        for framework in 0..FRAMEWORKS_AT_ONCE + 2 {
            let framework = PathBuf::from(format!("/{framework}"));
            queue.add(&framework, Duration::ZERO);
            queue.add(&framework, Duration::from_secs(1));
        }
        let begun: Vec<_> = std::iter::from_fn(|| queue.begin()).collect();
        let expected = (0..FRAMEWORKS_AT_ONCE).map(|number| PathBuf::from(format!("/{number}")));
        assert!(begun.iter().map(|(path, _)| path.clone()).eq(expected));
        queue.add(Path::new("/0"), Duration::ZERO);
        assert!(queue.includes(Path::new("/0/executors")));
        queue.end(Path::new("/0"));
        assert!(!queue.includes(Path::new("/0/executors")));
        queue.add(Path::new("/0"), Duration::ZERO);
        assert_eq!(queue.begin(), Some(("/4".into(), Duration::ZERO)));
        assert_eq!(queue.begin(), None);
        for number in 1..5 {
            queue.end(Path::new(&format!("/{number}")));
        }
        assert_eq!(queue.begin(), Some(("/5".into(), Duration::ZERO)));
        assert_eq!(queue.begin(), Some(("/0".into(), Duration::ZERO)));
        assert_eq!(queue.begin(), None);
    }
}
