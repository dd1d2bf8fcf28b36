//! Checks that a message for an agent fits into one frame that the agent accepts.
//!
//! A too long frame ends the agent's connection, which would delay the tasks of all frameworks. Invariant: the size
//! is computed before the frame is built.

use meseta_proto::mesos::v1::TaskInfo;
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::mesos::v1::offer::operation::LaunchGroup;
use meseta_proto::mesos::v1::scheduler::call;
use meseta_proto::{Invalid, invalid};
use prost::Message;

use crate::core::state::agent::Agent;
use crate::core::state::framework::Framework;

/// The size of a frame without the counted messages: ids, times, and the keys and lengths of its fields.
const ENVELOPE_BYTES: usize = 4096;
/// The size of the key and length of an embedded message.
const FIELD_BYTES: usize = 8;

/// The size of a task in the form sent to its agent, with the framework's info. Fails if it is too long for the
/// agent.
pub(in crate::core) fn of_task(
    framework: &Framework,
    agent: &Agent,
    task: &TaskInfo,
) -> Result<usize, Invalid> {
    let bytes = framework.terms.info.encoded_len() + task.encoded_len();
    check(agent, "Task", bytes)
}

/// Like [`of_task`] for a group: the master sends each of its tasks with the executor.
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

/// Refuses an operation whose message is too long for its agent.
pub(in crate::core) fn check_operation(
    agent: &Agent,
    operation: &Operation,
) -> Result<(), Invalid> {
    check(agent, "Operation", operation.encoded_len()).map(|_| ())
}

/// Whether the agent accepts an executor message of this length.
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
