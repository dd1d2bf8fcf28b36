//! Properties of Mesos's task states.

use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::framework_info::capability::Type as FrameworkCapability;

/// Whether a task in this state has ended for good.
pub fn is_terminal(state: i32) -> bool {
    use pb::TaskState::{
        TaskDropped, TaskError, TaskFailed, TaskFinished, TaskGone, TaskGoneByOperator, TaskKilled,
        TaskLost,
    };
    let Ok(state) = pb::TaskState::try_from(state) else {
        return false;
    };
    matches!(
        state,
        TaskFinished
            | TaskFailed
            | TaskKilled
            | TaskError
            | TaskLost
            | TaskDropped
            | TaskGone
            | TaskGoneByOperator
    )
}

/// Whether a framework has a capability.
pub(super) fn has_capability(framework: &pb::FrameworkInfo, required: FrameworkCapability) -> bool {
    framework
        .capabilities
        .iter()
        .any(|capability| capability.r#type == Some(required.into()))
}

/// The lost state of a task that never ran: the precise state for partition-aware frameworks.
pub(super) fn dropped_or_lost(partition_aware: bool) -> pb::TaskState {
    if partition_aware {
        pb::TaskState::TaskDropped
    } else {
        pb::TaskState::TaskLost
    }
}

/// The lost state of a task that ran: the precise state for partition-aware frameworks.
pub(super) fn gone_or_lost(partition_aware: bool) -> pb::TaskState {
    if partition_aware {
        pb::TaskState::TaskGone
    } else {
        pb::TaskState::TaskLost
    }
}

/// The first real-time signal that the C library leaves to programs.
const REALTIME_MIN: i32 = 34;
const REALTIME_MAX: i32 = 64;

/// The name of a signal in Mesos's messages (as `strsignal` in the C locale).
pub(super) fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "Hangup",
        2 => "Interrupt",
        3 => "Quit",
        4 => "Illegal instruction",
        5 => "Trace/breakpoint trap",
        6 => "Aborted",
        7 => "Bus error",
        8 => "Floating point exception",
        9 => "Killed",
        10 => "User defined signal 1",
        11 => "Segmentation fault",
        12 => "User defined signal 2",
        13 => "Broken pipe",
        14 => "Alarm clock",
        15 => "Terminated",
        16 => "Stack fault",
        17 => "Child exited",
        18 => "Continued",
        19 => "Stopped (signal)",
        20 => "Stopped",
        21 => "Stopped (tty input)",
        22 => "Stopped (tty output)",
        23 => "Urgent I/O condition",
        24 => "CPU time limit exceeded",
        25 => "File size limit exceeded",
        26 => "Virtual timer expired",
        27 => "Profiling timer expired",
        28 => "Window changed",
        29 => "I/O possible",
        30 => "Power failure",
        31 => "Bad system call",
        REALTIME_MIN..=REALTIME_MAX => {
            return format!("Real-time signal {}", number - REALTIME_MIN);
        }
        _ => return format!("Unknown signal {number}"),
    };
    name.to_owned()
}
