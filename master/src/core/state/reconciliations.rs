//! Unanswered reconciliation requests of frameworks for their tasks and operations.

use std::collections::{BTreeMap, VecDeque};

use meseta_proto::mesos::v1::scheduler::call::{self, reconcile_operations};
use meseta_resources::{FrameworkId, TaskId};

/// The number of unread answers of one framework, above which its further reconciliation requests wait.
const UNREAD_MAX: usize = 2_048;

/// The number of waiting requests of frameworks that read: those of some dozens with all their tasks.
const QUESTIONS_MAX: usize = 4_000_000;

/// The number of waiting requests of one framework, whether it reads or not: twice the tasks of a very large one.
const QUESTIONS_PER_FRAMEWORK_MAX: usize = 1_000_000;

/// The number of waiting calls of one framework.
const RECONCILES_PER_FRAMEWORK_MAX: usize = 1_024;

/// Reconciliation requests without a full answer yet.
#[derive(Debug, Default)]
pub(crate) struct Reconciliations {
    /// Requests that the next steps answer, in turn for all frameworks.
    due: VecDeque<PendingReconcile>,
    /// Requests of frameworks that have not read earlier answers.
    waiting: BTreeMap<FrameworkId, VecDeque<PendingReconcile>>,
    /// The number of unread answers of each framework that has any.
    unread: BTreeMap<FrameworkId, usize>,
}

impl Reconciliations {
    /// Queues a new request. Fails beyond the limits of waiting requests, of the framework or of all; `bytes_max`
    /// limits the memory of the framework's requests.
    pub(crate) fn add(
        &mut self,
        new: PendingReconcile,
        bytes_max: usize,
    ) -> Result<(), &'static str> {
        let waiting = self.waiting.get(&new.framework);
        let (mut all, mut own, mut own_calls, mut own_bytes) =
            (0, new.questions.len(), 1, new.bytes);
        for reconcile in self.due.iter().chain(waiting.into_iter().flatten()) {
            all += reconcile.questions.len();
            if reconcile.framework == new.framework {
                own += reconcile.questions.len();
                own_calls += 1;
                own_bytes += reconcile.bytes;
            }
        }
        if own > QUESTIONS_PER_FRAMEWORK_MAX
            || own_calls > RECONCILES_PER_FRAMEWORK_MAX
            || own_bytes > bytes_max
        {
            return Err(
                "Too many tasks and operations of the framework wait to be reconciled: read the answers, and ask again later",
            );
        }
        if all.saturating_add(new.questions.len()) > QUESTIONS_MAX {
            return Err("Too many tasks and operations wait to be reconciled: ask again later");
        }
        self.due.push_back(new);
        Ok(())
    }

    /// Takes the next request to answer.
    pub(crate) fn take_next(&mut self) -> Option<PendingReconcile> {
        self.due.pop_front()
    }

    /// Queues the rest of a request behind those of other frameworks.
    pub(crate) fn put_back(&mut self, rest: PendingReconcile) {
        self.due.push_back(rest);
    }

    /// Whether requests wait for the next step.
    pub(crate) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Sets a request aside if its framework has to read earlier answers first. Else returns the request.
    pub(crate) fn set_aside_unread(&mut self, next: PendingReconcile) -> Option<PendingReconcile> {
        if !self.is_full(&next.framework) {
            return Some(next);
        }
        let of_framework = self.waiting.entry(next.framework.clone()).or_default();
        of_framework.push_back(next);
        None
    }

    fn is_full(&self, framework: &FrameworkId) -> bool {
        self.unread
            .get(framework)
            .is_some_and(|unread| *unread >= UNREAD_MAX)
    }

    /// Counts answers that a framework has yet to read.
    pub(crate) fn count_answers(&mut self, framework: &FrameworkId, answers: usize) {
        if answers > 0 {
            *self.unread.entry(framework.clone()).or_default() += answers;
        }
    }

    /// Records that a framework has read some answers, so that it may get more.
    pub(crate) fn note_read(&mut self, framework: &FrameworkId, answers: usize) {
        if let Some(unread) = self.unread.get_mut(framework) {
            *unread = unread.saturating_sub(answers);
        }
        if !self.is_full(framework)
            && let Some(waiting) = self.waiting.remove(framework)
        {
            self.due.extend(waiting);
        }
    }

    /// Makes the requests of a framework with a new stream due: the new stream has no unread answers.
    pub(crate) fn restart(&mut self, framework: &FrameworkId) {
        let waiting = self.forget(framework);
        self.due.extend(waiting);
    }

    /// Drops the unread answers and the waiting requests of a framework.
    pub(crate) fn forget(&mut self, framework: &FrameworkId) -> VecDeque<PendingReconcile> {
        self.unread.remove(framework);
        self.waiting.remove(framework).unwrap_or_default()
    }
}

/// The unanswered part of a framework's reconciliation request.
#[derive(Debug)]
pub(in crate::core) struct PendingReconcile {
    pub(in crate::core) framework: FrameworkId,
    pub(in crate::core) questions: Questions,
    /// The memory taken by the request until its last answer.
    pub(in crate::core) bytes: usize,
}

#[derive(Debug)]
pub(in crate::core) enum Questions {
    /// Tasks named by the framework, with their assumed agents.
    Explicit(std::vec::IntoIter<call::reconcile::Task>),
    /// All tasks of the framework after this one, up to the last task at the time of the request; about `left` tasks.
    Implicit {
        after: Option<TaskId>,
        until: TaskId,
        left: usize,
    },
    /// Operations named by the framework, with their assumed agents.
    Operations(std::vec::IntoIter<reconcile_operations::Operation>),
    /// All operations of the framework with ids after this one; about `left` operations.
    AllOperations { after: Option<String>, left: usize },
}

impl Questions {
    pub(in crate::core) fn len(&self) -> usize {
        match self {
            Questions::Explicit(tasks) => tasks.len(),
            Questions::Operations(operations) => operations.len(),
            Questions::Implicit { left, .. } | Questions::AllOperations { left, .. } => *left,
        }
    }
}
