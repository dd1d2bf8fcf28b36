//! Completed frameworks, and the memory of the histories of all frameworks.
//!
//! Each framework limits its own history; [`Histories`] counts the bytes of all of them. Invariant: the bytes are
//! those of the completed frameworks, and of the histories of the others.

use std::collections::VecDeque;
use std::sync::Arc;

use meseta_resources::FrameworkId;
use prost::Message as _;

use super::snapshot::FrameworkView;

/// Completed frameworks, and the memory of all histories.
#[derive(Debug, Default)]
pub(crate) struct Histories {
    /// Completed frameworks, oldest first.
    completed: VecDeque<Arc<FrameworkView>>,
    /// The size of completed tasks and frameworks in bytes.
    bytes: usize,
}

impl Histories {
    /// Adds a completed framework, and removes the oldest ones beyond `max`.
    pub(crate) fn push(&mut self, framework: FrameworkView, max: usize) {
        self.bytes += bytes_of(&framework);
        self.completed.push_back(Arc::new(framework));
        while self.completed.len() > max {
            self.forget_oldest();
        }
    }

    /// Removes the oldest completed framework. Returns false if none is left.
    pub(crate) fn forget_oldest(&mut self) -> bool {
        let Some(oldest) = self.completed.pop_front() else {
            return false;
        };
        self.free(bytes_of(&oldest));
        true
    }

    /// Counts the history of a framework that had `before` bytes.
    pub(crate) fn resize(&mut self, before: usize, after: usize) {
        self.bytes = (self.bytes + after).saturating_sub(before);
    }

    /// Stops counting bytes of the history of a framework.
    pub(crate) fn free(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The completed frameworks, oldest first.
    pub(crate) fn completed(&self) -> impl Iterator<Item = &Arc<FrameworkView>> {
        self.completed.iter()
    }

    /// Whether a framework has completed and is still remembered.
    pub(crate) fn has_completed(&self, id: &FrameworkId) -> bool {
        self.completed.iter().any(|framework| framework.id == *id)
    }

    /// Compares the bytes with a recount, given those of the other frameworks' histories.
    #[cfg(test)]
    pub(crate) fn check(&self, live: usize) {
        let ended: usize = self.completed.iter().map(|one| bytes_of(one)).sum();
        assert_eq!(self.bytes, live + ended);
    }
}

/// The bytes that a completed framework takes.
fn bytes_of(framework: &FrameworkView) -> usize {
    let records = framework.completed.iter().chain(&*framework.unreachable);
    let records: usize = records.map(|task| task.bytes()).sum();
    let constraints = framework.offer_constraints.as_ref();
    let constraints = constraints.map_or(0, |constraints| constraints.bytes());
    records + framework.info.encoded_len() + constraints
}
