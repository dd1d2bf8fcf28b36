//! The reasons why a task is not run, as reported to its framework.

use std::collections::BTreeSet;

use meseta_proto::meseta::v1 as wire;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::{Resource, Resources, VolumeMode};
use prost::Message as _;

/// The reason why a task will not be run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rejection {
    pub(super) state: pb::TaskState,
    pub(super) reason: Reason,
    pub(super) message: String,
    /// The report of an executor that the master considers alive, and that is gone.
    pub(super) gone_executor: Option<wire::ExecutorExited>,
}

/// Characters of a rejection message: it may quote the framework's own texts, and the agent keeps it until it is
/// acknowledged.
const MESSAGE_CHARS_MAX: usize = 1024;

/// The most volumes of one container. Each costs steps of the launch, which holds one of few permits, and a mount.
pub(crate) const VOLUMES_MAX: usize = 1024;

/// The most bytes of framing for a message within an event, and for an event.
const MESSAGE_FRAME_BYTES: usize = 16;
const EVENT_FRAME_BYTES: usize = 64;

impl Rejection {
    /// The message for the framework, truncated.
    pub(super) fn message(&self) -> String {
        self.message.chars().take(MESSAGE_CHARS_MAX).collect()
    }

    /// The rejection of a task that can never be run.
    pub(super) fn invalid(message: impl ToString) -> Self {
        Self {
            state: pb::TaskState::TaskError,
            reason: Reason::TaskInvalid,
            message: message.to_string(),
            gone_executor: None,
        }
    }

    /// The rejection of the group of a rejected task.
    pub(super) fn invalid_group(self) -> Self {
        let reason = match self.reason {
            Reason::TaskInvalid => Reason::TaskGroupInvalid,
            other => other,
        };
        Self { reason, ..self }
    }
}

/// Checks that there is a command to run.
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

/// Checks that the container can be made as described.
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

/// Checks the number of volumes of a container: those that it requests, and the persistent volumes among its resources.
pub(super) fn check_volumes<'a>(
    whose: &str,
    container: Option<&pb::ContainerInfo>,
    resources: impl IntoIterator<Item = &'a Resources>,
) -> Result<(), Rejection> {
    let asked = container.map_or(0, |container| container.volumes.len());
    let all = resources.into_iter().flat_map(Resources::iter);
    // A volume shared by several tasks at one path is mounted once.
    let persistent: BTreeSet<_> = all.filter_map(mounted_as).collect();
    let count = asked + persistent.len();
    if count > VOLUMES_MAX {
        return Err(Rejection::invalid(format!(
            "the {whose} has {count} volumes, and a container may have {VOLUMES_MAX} at most"
        )));
    }
    Ok(())
}

/// The key that distinguishes the persistent volumes of a container.
fn mounted_as(resource: &Resource) -> Option<impl Ord> {
    let disk = resource.disk()?;
    let persistence = disk.persistence.as_ref()?;
    let mount = disk.volume.as_ref();
    Some((
        resource.reservation_role(),
        &disk.source,
        &persistence.id,
        mount.map(|mount| (&mount.container_path, mount.mode == VolumeMode::ReadOnly)),
        resource.is_shared(),
    ))
}

/// Checks that new tasks fit into one event for their executor.
pub(super) fn check_launch_event(
    tasks: &[pb::TaskInfo],
    bytes_max: usize,
) -> Result<(), Rejection> {
    let sizes = tasks
        .iter()
        .map(|task| task.encoded_len() + MESSAGE_FRAME_BYTES);
    check_event("tasks that it is given at once", sizes.sum(), bytes_max)
}

/// Checks that the SUBSCRIBED event fits the limit of events.
pub(super) fn check_subscribed_event(
    executor: &pb::ExecutorInfo,
    framework: &pb::FrameworkInfo,
    agent: &pb::AgentInfo,
    bytes_max: usize,
) -> Result<(), Rejection> {
    let bytes = executor.encoded_len() + framework.encoded_len() + agent.encoded_len();
    let bytes = bytes + 4 * MESSAGE_FRAME_BYTES;
    check_event("description, with that of its framework,", bytes, bytes_max)
}

fn check_event(what: &str, bytes: usize, bytes_max: usize) -> Result<(), Rejection> {
    let bytes = bytes.saturating_add(EVENT_FRAME_BYTES);
    if bytes > bytes_max {
        return Err(Rejection::invalid(format!(
            "an executor's {what} would reach it in an event of {bytes} bytes, and this agent can keep {bytes_max} bytes of \
             events for executors: give less, or the agent a larger --memory_budget"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use meseta_proto::convert;

    use super::*;
    use crate::checkpoint::silent_disk;

    /// Regression: a group whose tasks share a volume was refused, since each task counted.
    #[test]
    fn shared_volume_counts_once_per_container() {
        let (_, [volume]) = silent_disk(std::path::Path::new("/disk"), ["a"]);
        let at = |number: usize| {
            let mut volume = volume.clone();
            volume.shared = Some(pb::resource::SharedInfo::default());
            if let Some(disk) = &mut volume.disk {
                disk.volume = Some(pb::Volume {
                    container_path: format!("v{number}"),
                    mode: pb::volume::Mode::Rw.into(),
                    ..pb::Volume::default()
                });
            }
            convert::resources(&[volume]).expect("sound")
        };
        let shared: Vec<_> = (0..=VOLUMES_MAX).map(|_| at(0)).collect();
        assert_eq!(check_volumes("executor", None, &shared), Ok(()));
        let others: Vec<_> = (0..=VOLUMES_MAX).map(at).collect();
        let refused = check_volumes("executor", None, &others).expect_err("too many");
        assert!(
            refused.message.contains("1025 volumes"),
            "{}",
            refused.message
        );
    }
}
