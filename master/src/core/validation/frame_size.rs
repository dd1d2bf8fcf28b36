//! Whether what is meant for an agent fits into one frame that it takes.
//!
//! An agent's connection ends with a frame that is too long for it, and so would everybody's tasks be held up. Invariant:
//! what is counted is counted before it is built.

use meseta_proto::mesos::v1::TaskInfo;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::offer::operation::LaunchGroup;
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::{Invalid, invalid};
use prost::Message;

use crate::core::state::agent::Agent;
use crate::core::state::framework::Framework;

/// What a frame has beside the messages that are counted: ids, times, and the keys and lengths of its fields.
const ENVELOPE_BYTES: usize = 4096;
/// What a message that is within another one takes for its key and length.
const FIELD_BYTES: usize = 8;

/// What a task is on its way to its agent, which is told of the framework with each; refused if it is too long for the agent.
pub(in crate::core) fn of_task(
    framework: &Framework,
    agent: &Agent,
    task: &TaskInfo,
) -> Result<usize, Invalid> {
    let bytes = framework.terms.info.encoded_len() + task.encoded_len();
    check(agent, "Task", bytes)
}

/// As [`of_task`] for a group: each of its tasks is sent with the executor.
pub(in crate::core) fn of_group(
    framework: &Framework,
    agent: &Agent,
    group: &LaunchGroup,
) -> Result<usize, Invalid> {
    let executor = group.executor.encoded_len() + FIELD_BYTES;
    let tasks = group.task_group.tasks.iter();
    let tasks = tasks.map(|task| task.encoded_len() + executor + FIELD_BYTES);
    let bytes = tasks.fold(executor, usize::saturating_add);
    check(
        agent,
        "Task group",
        bytes.saturating_add(framework.terms.info.encoded_len()),
    )
}

/// Refuses an operation that is too long for its agent, as it would be sent.
pub(in crate::core) fn check_operation(
    agent: &Agent,
    operation: &Operation,
) -> Result<(), Invalid> {
    check(agent, "Operation", operation.encoded_len()).map(|_| ())
}

/// Whether a message for an executor is short enough for its agent.
pub(in crate::core) fn takes_message(agent: &Agent, message: &call::Message) -> bool {
    check(agent, "Message", message.encoded_len()).is_ok()
}

fn check(agent: &Agent, what: &str, bytes: usize) -> Result<usize, Invalid> {
    let max = agent.profile.frame_bytes_max;
    if bytes.saturating_add(ENVELOPE_BYTES) <= max {
        return Ok(bytes);
    }
    Err(invalid!(
        "{what} takes {bytes} bytes on its way to the agent, which takes {max} bytes at most"
    ))
}
