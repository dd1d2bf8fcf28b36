//! Validates a task, or an executor of a framework, without access to the machine.

use meseta_isolators::Demand;
use meseta_proto::convert;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::task_status::Reason;
use meseta_resources::Resources;

use super::super::demand::demand;
use super::super::operations::Operations;
use super::super::rejection::{
    Rejection, check_command, check_container, check_subscribed_event, check_volumes,
};
use super::super::states::dropped_or_lost;
use super::super::{Step, check_rules};
use super::{Checked, is_partition_aware};

/// Validates a task as far as possible without access to the machine.
pub(super) fn check(
    operations: &Operations,
    step: &Step<'_>,
    task: &pb::TaskInfo,
    has_command: bool,
    framework: &pb::FrameworkInfo,
) -> Result<(Resources, Demand), Rejection> {
    let ours = step.agent_id().map(|id| id.as_str());
    if ours != Some(task.agent_id.value.as_str()) {
        return Err(Rejection::invalid(format!(
            "the task is for agent '{}', and this is agent '{}'",
            task.agent_id.value,
            ours.unwrap_or_default()
        )));
    }
    if has_command {
        check_command(task.command.as_ref())?;
    }
    check_rules::validate(task).map_err(Rejection::invalid)?;
    if let Some(container) = &task.container {
        check_container(container)?;
    }
    let resources = read_resources(operations, &task.resources, "task", framework)?;
    if has_command {
        // Other tasks have their volumes in the container of their executor.
        check_volumes("task", task.container.as_deref(), [&resources])?;
    }
    let demand =
        demand(&resources, &task.limits, step.options.enforceable).map_err(Rejection::invalid)?;
    Ok((resources, demand))
}

/// Reads resources, and checks that the agent has them.
pub(super) fn read_resources(
    operations: &Operations,
    messages: &[pb::Resource],
    whose: &str,
    framework: &pb::FrameworkInfo,
) -> Result<Resources, Rejection> {
    let resources = convert::resources(messages).map_err(|error| {
        Rejection::invalid(format!("the {whose}'s resources are invalid: {error}"))
    })?;
    match operations.unknown_resource(&resources) {
        Some(unknown) => Err(Rejection {
            state: dropped_or_lost(is_partition_aware(framework)),
            reason: Reason::ResourcesUnknown,
            message: format!("the {whose}'s {unknown} is not on this agent"),
            gone_executor: None,
        }),
        None => Ok(resources),
    }
}

/// Validates a framework's own executor: its command, its volumes and the size of its first event.
pub(super) fn check_custom(
    step: &Step<'_>,
    framework: &pb::FrameworkInfo,
    info: &pb::ExecutorInfo,
    resources: &Resources,
    checked: &[Checked],
) -> Result<(), Rejection> {
    check_command(info.command.as_ref())?;
    let of_tasks = checked.iter().map(|task| &task.resources);
    let all = std::iter::once(resources).chain(of_tasks);
    check_volumes("executor", info.container.as_deref(), all)?;
    let bytes_max = step.options.executor_event_bytes_max;
    check_subscribed_event(info, framework, &step.options.info, bytes_max)
}
