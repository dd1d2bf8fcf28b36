//! Unanswered reconciliation requests of frameworks for their tasks and operations.

use std::collections::{BTreeMap, VecDeque};

use meseta_proto::mesos::v1::scheduler::call::{self, reconcile_operations};
use meseta_resources::{FrameworkId, TaskId};

/// The number of unread answers of one framework, above which its further reconciliation requests wait.
const UNREAD_MAX: usize = 2_048;

/// Reconciliation requests of frameworks that read their answers too slowly.
#[derive(Debug, Default)]
pub(in crate::core) struct UnreadReconciliations {
    pub(in crate::core) waiting: BTreeMap<FrameworkId, VecDeque<PendingReconcile>>,
    /// The number of unread answers of each framework that has any.
    pub(in crate::core) answers: BTreeMap<FrameworkId, usize>,
}

impl UnreadReconciliations {
    pub(in crate::core) fn is_full(&self, framework: &FrameworkId) -> bool {
        self.answers
            .get(framework)
            .is_some_and(|unread| *unread >= UNREAD_MAX)
    }

    pub(in crate::core) fn count(&mut self, framework: &FrameworkId, answers: usize) {
        *self.answers.entry(framework.clone()).or_default() += answers;
    }

    /// Removes a framework, and returns its unanswered requests.
    pub(in crate::core) fn take(&mut self, framework: &FrameworkId) -> VecDeque<PendingReconcile> {
        self.answers.remove(framework);
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
