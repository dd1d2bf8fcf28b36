//! Why a task that came is not run, as its framework is told.

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;

/// Why a task will not be run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Rejection {
    pub(super) state: pb::TaskState,
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Rejection {
    /// It never can be run as it is.
    pub(super) fn invalid(message: impl ToString) -> Self {
        Self {
            state: pb::TaskState::TaskError,
            reason: Reason::TaskInvalid,
            message: message.to_string(),
        }
    }

    /// The same of a group that the task is of.
    pub(super) fn invalid_group(self) -> Self {
        let reason = match self.reason {
            Reason::TaskInvalid => Reason::TaskGroupInvalid,
            other => other,
        };
        Self { reason, ..self }
    }
}
