//! The model of reconciliation: each requested task is answered, and at rest the answer is the truth.

use std::collections::BTreeMap;

use meseta_master::core::is_terminal;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_proto::mesos::v1::{TaskState, TaskStatus};

/// A framework's questions on its stream, and the answers.
#[derive(Debug, Default)]
pub(crate) struct Questions {
    /// Tasks without a response yet.
    pub(crate) open: BTreeMap<String, ()>,
    /// The last response for each task since the responses were last forgotten.
    pub(crate) answers: BTreeMap<String, TaskState>,
}

impl Questions {
    /// Records a question about these tasks that the master has accepted.
    pub(crate) fn asked(&mut self, tasks: impl Iterator<Item = String>) {
        self.open.extend(tasks.map(|task| (task, ())));
    }

    /// Notes a status, and returns whether it is the response to a question.
    pub(crate) fn answered(&mut self, status: &TaskStatus) -> bool {
        let is_answer = status.reason == Some(Reason::Reconciliation.into());
        if is_answer {
            let task = status.task_id.value.clone();
            self.open.remove(&task);
            self.answers.insert(task, status.state());
        } else if is_terminal(status.state()) {
            // The end came later than the answer to an earlier question, which was true at its time.
            self.answers.remove(&status.task_id.value);
        }
        is_answer
    }

    /// Forgets all questions, because the stream has ended.
    pub(crate) fn lost(&mut self) {
        self.open.clear();
    }
}

/// Whether an answer is true about a task whose process runs, or does not.
pub(crate) fn is_true(answer: TaskState, runs: bool) -> bool {
    use TaskState::{TaskKilling, TaskRunning, TaskStaging, TaskStarting};
    match runs {
        true => matches!(
            answer,
            TaskStaging | TaskStarting | TaskRunning | TaskKilling
        ),
        false => !matches!(answer, TaskRunning),
    }
}
