//! The failures of a job's tasks, each in one line.
//!
//! Entered through [`text_of`]. The last [`Failure`] of a job is stored with the job.

use std::time::Duration;

use meseta_proto::mesos::v1::task_status::Reason;
use serde::{Deserialize, Serialize};

/// The longest line, in characters.
const LINE_CHARS_MAX: usize = 300;

/// The last failure of the target version, and the number of its failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Failure {
    pub(super) task_id: String,
    pub(super) agent_id: String,
    /// The time of the failure, since the Unix epoch.
    pub(super) time: Duration,
    pub(super) text: String,
    /// The number of failures of the version, including this one.
    pub(super) count: u64,
}

/// Returns the reason and the message of a task's end in one line.
pub(super) fn text_of(reason: &str, message: &str) -> String {
    let message = first_line(message);
    let details = [words_of(reason), message];
    let details: Vec<String> = details
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    details.join(": ")
}

/// Returns the first line with text, shortened, without control characters.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty());
    let line = line.unwrap_or_default();
    let is_shown = |c: &char| !c.is_control();
    let mut shown: String = line.chars().filter(is_shown).take(LINE_CHARS_MAX).collect();
    if line.chars().nth(LINE_CHARS_MAX).is_some() {
        shown.push_str("...");
    }
    shown
}

/// Returns a reason of Mesos in words; empty if the message says the same.
fn words_of(reason: &str) -> String {
    let name = format!("REASON_{}", reason.to_uppercase());
    let known = Reason::from_str_name(&name);
    let words = match known {
        Some(Reason::ContainerLimitationMemory) => "out of memory",
        Some(Reason::ContainerLimitationDisk) => "over its disk limit",
        Some(Reason::ContainerLimitation) => "over a limit",
        Some(Reason::ContainerPreempted) => "preempted",
        Some(Reason::ContainerLaunchFailed) => "",
        Some(Reason::MaxCompletionTimeReached) => "",
        Some(Reason::CommandExecutorFailed) => "",
        Some(Reason::Reconciliation) => "",
        Some(Reason::AgentDraining) => "its agent is drained",
        Some(Reason::AgentRestarted) => "its agent was restarted",
        Some(Reason::AgentRemoved | Reason::AgentRemovedByOperator) => "its agent was removed",
        Some(Reason::AgentDisconnected) => "its agent is away",
        Some(Reason::ExecutorTerminated) => "its executor has ended",
        Some(_) => return reason.replace('_', " "),
        None => reason,
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_lines_become_one() {
        let message = "Memory limit exceeded: Requested: 32MB Maximum Used: 32MB\n\nMEMORY STATISTICS: \ncache 0\n";
        assert_eq!(
            text_of("container_limitation_memory", message),
            "out of memory: Memory limit exceeded: Requested: 32MB Maximum Used: 32MB"
        );
        assert_eq!(
            text_of("command_executor_failed", "\n Command exited with status 3"),
            "Command exited with status 3"
        );
        assert_eq!(
            text_of("its health checks failed", ""),
            "its health checks failed"
        );
        assert_eq!(text_of("invalid_offers", ""), "invalid offers");
        assert_eq!(text_of("", ""), "");
        let long = text_of("", &"x\u{1b}".repeat(10_000));
        assert_eq!(long.chars().count(), LINE_CHARS_MAX + 3);
        assert!(!long.contains('\u{1b}'), "{long}");
    }
}
