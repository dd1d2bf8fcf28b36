//! Questions of frameworks about their tasks and operations that are still to be answered.

use std::collections::{BTreeMap, VecDeque};

use meseta_proto::mesos::v1::scheduler::call::{self, reconcile_operations};
use meseta_resources::{FrameworkId, TaskId};

/// The number of unread answers of one framework, above which its further reconciliation requests wait.
const UNREAD_MAX: usize = 2_048;

/// Reconciliation requests of frameworks that read their answers too slowly.
#[derive(Debug, Default)]
pub(in crate::core) struct UnreadReconciliations {
    pub(in crate::core) waiting: BTreeMap<FrameworkId, VecDeque<PendingReconcile>>,
    /// Answers that are unread, of each framework that has any.
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

    /// Forgets a framework, and gives what it asked and was not answered.
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
    /// Tasks as the framework names them, and where it thinks that they are.
    Explicit(std::vec::IntoIter<call::reconcile::Task>),
    /// All tasks that the master has on its books after this one, up to the one that was the last when the
    /// framework asked; about so many.
    Implicit {
        after: Option<TaskId>,
        until: TaskId,
        left: usize,
    },
    /// Operations as the framework names them, and where it thinks that they are.
    Operations(std::vec::IntoIter<reconcile_operations::Operation>),
    /// All named operations of the framework after this one; about so many.
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
