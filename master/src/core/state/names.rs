//! The names of states and kinds in metrics.

use meseta_proto::mesos::v1::offer::operation;
use meseta_proto::mesos::v1::{OperationState, TaskState};

/// The state in metric names.
#[must_use]
pub(crate) fn state_name(state: TaskState) -> Option<&'static str> {
    Some(match state {
        TaskState::TaskStaging => "task_staging",
        TaskState::TaskStarting => "task_starting",
        TaskState::TaskRunning => "task_running",
        TaskState::TaskKilling => "task_killing",
        TaskState::TaskFinished => "task_finished",
        TaskState::TaskFailed => "task_failed",
        TaskState::TaskKilled => "task_killed",
        TaskState::TaskError => "task_error",
        TaskState::TaskLost => "task_lost",
        TaskState::TaskDropped => "task_dropped",
        TaskState::TaskUnreachable => "task_unreachable",
        TaskState::TaskGone => "task_gone",
        TaskState::TaskGoneByOperator => "task_gone_by_operator",
        TaskState::TaskUnknown => return None,
    })
}

/// The state of an operation in metric names.
#[must_use]
pub(crate) fn operation_state_name(state: OperationState) -> Option<&'static str> {
    Some(match state {
        OperationState::OperationPending => "pending",
        OperationState::OperationRecovering => "recovering",
        OperationState::OperationUnreachable => "unreachable",
        OperationState::OperationFinished => "finished",
        OperationState::OperationFailed => "failed",
        OperationState::OperationError => "error",
        OperationState::OperationDropped => "dropped",
        OperationState::OperationGoneByOperator => "gone_by_operator",
        OperationState::OperationUnsupported | OperationState::OperationUnknown => return None,
    })
}

/// The operation in metric names.
#[must_use]
pub(crate) fn operation_name(kind: operation::Type) -> Option<&'static str> {
    Some(match kind {
        operation::Type::Unknown => return None,
        operation::Type::Launch => "launch",
        operation::Type::LaunchGroup => "launch_group",
        operation::Type::Reserve => "reserve",
        operation::Type::Unreserve => "unreserve",
        operation::Type::Create => "create",
        operation::Type::Destroy => "destroy",
        operation::Type::GrowVolume => "grow_volume",
        operation::Type::ShrinkVolume => "shrink_volume",
        operation::Type::CreateDisk => "create_disk",
        operation::Type::DestroyDisk => "destroy_disk",
    })
}
