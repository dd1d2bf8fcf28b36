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

/// Characters of what a framework is told: its own texts may be quoted, and the agent keeps it until it is acknowledged.
const MESSAGE_CHARS_MAX: usize = 1024;

impl Rejection {
    /// What the framework is told.
    pub(super) fn message(&self) -> String {
        self.message.chars().take(MESSAGE_CHARS_MAX).collect()
    }

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

/// Whether there is something to run.
pub(super) fn check_command(command: Option<&pb::CommandInfo>) -> Result<(), Rejection> {
    let Some(command) = command else {
        return Err(Rejection::invalid(
            "the task has neither a command nor an executor",
        ));
    };
    if command.value.as_deref().unwrap_or_default().is_empty() {
        return Err(Rejection::invalid("the task's command has no value"));
    }
    Ok(())
}

/// Whether a container can be made as it is described.
pub(super) fn check_container(container: &pb::ContainerInfo) -> Result<(), Rejection> {
    let refuse = |what: &str| {
        Err(Rejection::invalid(format!(
            "{what} not supported by this agent yet"
        )))
    };
    if container.r#type == i32::from(pb::container_info::Type::Docker) {
        return refuse("containers of type DOCKER are");
    }
    if container
        .mesos
        .as_ref()
        .is_some_and(|mesos| mesos.image.is_some())
    {
        return refuse("container images are");
    }
    if !container.network_infos.is_empty() {
        return refuse("container networks are");
    }
    if container.tty_info.is_some() {
        return refuse("terminals are");
    }
    Ok(())
}
