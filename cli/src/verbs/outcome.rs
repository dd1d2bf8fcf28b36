//! The end of a task, for people and for shells: a line, and an exit code.

use meseta_proto::mesos::v1 as mesos;

use crate::terminal;

/// Returns a state in one line, with the reason and the first line of the agent's message.
pub(super) fn describe(status: &mesos::TaskStatus) -> String {
    let state = status.state().as_str_name();
    // An answer to our own query contains no more than the state.
    if status.reason() == mesos::task_status::Reason::Reconciliation {
        return state.to_owned();
    }
    let reason = status
        .reason
        .map(|_| format!(" {}", status.reason().as_str_name()));
    let message = status.message.as_deref().map(|message| {
        let mut lines = message.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        match lines.count() {
            0 => format!(": {first}"),
            more => format!(
                ": {first} ({more} lines more: `meseta task {} --json`)",
                status.task_id.value
            ),
        }
    });
    let told = format!(
        "{state}{}{}",
        reason.unwrap_or_default(),
        message.unwrap_or_default()
    );
    terminal::one_line(&told).into_owned()
}

/// Returns the exit code for a final state; `None` while the task lives.
pub(super) fn exit_code(status: &mesos::TaskStatus) -> Option<u8> {
    use mesos::TaskState as S;
    match status.state() {
        S::TaskFinished => Some(0),
        S::TaskFailed => Some(failure_code(status)),
        S::TaskKilled => Some(128 + 15),
        S::TaskLost | S::TaskError | S::TaskDropped | S::TaskGone | S::TaskGoneByOperator => {
            Some(1)
        }
        S::TaskStaging
        | S::TaskStarting
        | S::TaskRunning
        | S::TaskKilling
        | S::TaskUnreachable
        | S::TaskUnknown => None,
    }
}

/// The exit code that shells and Docker use for a command killed for its memory.
const EXIT_OUT_OF_MEMORY: u8 = 128 + 9;

fn failure_code(status: &mesos::TaskStatus) -> u8 {
    if status.reason() == mesos::task_status::Reason::ContainerLimitationMemory {
        return EXIT_OUT_OF_MEMORY;
    }
    status
        .message
        .as_deref()
        .and_then(exit_code_in)
        .unwrap_or(1)
}

/// Returns the code in the agent's message for the end of a command, whose text is Mesos's.
pub(super) fn exit_code_in(message: &str) -> Option<u8> {
    if let Some(rest) = message.split("exited with status ").nth(1) {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        return digits.parse().ok();
    }
    let signal = message.split("terminated with signal ").nth(1)?;
    let number = [
        ("Hangup", 1),
        ("Interrupt", 2),
        ("Quit", 3),
        ("Illegal instruction", 4),
        ("Aborted", 6),
        ("Bus error", 7),
        ("Floating point exception", 8),
        ("Killed", 9),
        ("Segmentation fault", 11),
        ("Broken pipe", 13),
        ("Alarm clock", 14),
        ("Terminated", 15),
    ]
    .into_iter()
    .find(|(name, _)| signal.starts_with(name))
    .map(|(_, number)| number)?;
    Some(128 + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_exit_code_comes_from_message() {
        assert_eq!(exit_code_in("Command exited with status 3"), Some(3));
        assert_eq!(exit_code_in("Command exited with status 255"), Some(255));
        assert_eq!(
            exit_code_in("Command terminated with signal Segmentation fault"),
            Some(139)
        );
        assert_eq!(exit_code_in("Memory limit exceeded: Requested: 64MB"), None);
    }

    #[test]
    fn failure_has_line_and_shell_code() {
        let mut status = mesos::TaskStatus {
            state: mesos::TaskState::TaskFailed.into(),
            reason: Some(mesos::task_status::Reason::ContainerLimitationMemory.into()),
            message: Some(
                "Memory limit exceeded: 64MB\n\nMEMORY STATISTICS:\ncache 0\nrss 1\n".into(),
            ),
            ..mesos::TaskStatus::default()
        };
        assert_eq!(exit_code(&status), Some(137));
        let line = describe(&status);
        assert!(
            line.starts_with(
                "TASK_FAILED REASON_CONTAINER_LIMITATION_MEMORY: Memory limit exceeded: 64MB (3 lines more"
            ),
            "{line}"
        );
        assert!(!line.contains('\n'), "{line}");
        status.reason = None;
        status.message = Some("Command exited with status 3".into());
        assert_eq!(exit_code(&status), Some(3));
        assert_eq!(
            describe(&status),
            "TASK_FAILED: Command exited with status 3"
        );
    }
}
