//! Validation of tasks for a launch on an offer: the rules of Mesos, in its order and wording.
//!
//! Entered through [`validate`]. Invariant: the offer holds the resources of a valid task, in the offer's role.

use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::mesos::v1::{self, TaskInfo};
use meseta_proto::task_parts::{check_check, check_environment, check_health};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{Resources, Role, TaskId};

use super::executor::{self, ValidExecutor};
use super::part::{check_container, id_text, shares_groups};
use super::resource::{check_resources, check_together};
use crate::core::state::agent::Agent;
use crate::core::state::framework::Framework;
use crate::core::wire::{allocated, for_agent};

/// The number of tasks of one framework that are live, or ended and unacknowledged: no resources limit the latter.
const TASKS_PER_FRAMEWORK_MAX: usize = 1_000_000;

/// The parsed parts of a task.
#[derive(Debug)]
pub(in crate::core) struct Valid {
    pub(in crate::core) task_id: TaskId,
    pub(in crate::core) resources: Resources,
    pub(in crate::core) executor: Option<ValidExecutor>,
}

impl Valid {
    /// The resources that the launch takes from the offer.
    pub(in crate::core) fn total(&self) -> Resources {
        match &self.executor {
            Some(executor) if executor.is_new => &self.resources + &executor.resources,
            _ => self.resources.clone(),
        }
    }
}

/// Checks a task and converts its resources to the form for the agent.
pub(in crate::core) fn validate(
    framework: &Framework,
    agent: &Agent,
    task: &mut TaskInfo,
    role: &Role,
    available: &Resources,
) -> Result<Valid, Invalid> {
    infer_check_type(task);
    let (task_id, resources) = validate_itself(framework, agent, task, role)?;
    let executor = match (task.command.is_some(), &task.executor) {
        (true, None) => None,
        (false, Some(executor)) => Some(executor::of_task(framework, agent, executor, role)?),
        (true, Some(_)) | (false, None) => {
            return Err(invalid!(
                "Task should have at least one (but not both) of CommandInfo or \
                        ExecutorInfo present"
            ));
        }
    };
    if let Some(executor) = &executor {
        check_together(
            "Task and its executor",
            &[task.resources.as_slice(), &executor.info.resources],
            || {
                format!(
                    "There are overlapping resources in the task resources {resources} and \
                     executor resources {}",
                    executor.resources
                )
            },
        )?;
    }
    if !shares_groups(task.container.as_deref()) {
        return Err(invalid!(
            "Only tasks in a task group may have 'share_cgroups' set to 'false'"
        ));
    }
    let valid = Valid {
        task_id,
        resources,
        executor,
    };
    let total = valid.total();
    if !available.contains(&total) {
        return Err(invalid!(
            "Total resources {} required by task and its executor is more than available \
             {}",
            total.excerpt(),
            available.excerpt()
        ));
    }
    task.resources = for_agent(&valid.resources);
    if let (Some(info), Some(executor)) = (&mut task.executor, &valid.executor) {
        **info = executor.info.clone();
    }
    Ok(valid)
}

/// Infers the type of a health check: old frameworks give its details without the type.
fn infer_check_type(task: &mut TaskInfo) {
    use v1::health_check::Type;
    let Some(check) = &mut task.health_check else {
        return;
    };
    if check.r#type.is_none() {
        let kind = match (&check.command, &check.http) {
            (Some(_), None) => Some(Type::Command),
            (None, Some(_)) => Some(Type::Http),
            (Some(_), Some(_)) | (None, None) => None,
        };
        check.r#type = kind.map(i32::from);
    }
}

/// Checks a task without its executor; returns its id and its resources in the offer's role.
pub(super) fn validate_itself(
    framework: &Framework,
    agent: &Agent,
    task: &TaskInfo,
    role: &Role,
) -> Result<(TaskId, Resources), Invalid> {
    let task_id = TaskId::new(&task.task_id.value).map_err(|error| id_text(&error))?;
    if framework.tasks.len() >= TASKS_PER_FRAMEWORK_MAX {
        return Err(invalid!(
            "Framework has {TASKS_PER_FRAMEWORK_MAX} tasks that are live or unacknowledged, and may \
             not have more"
        ));
    }
    if !framework.may_launch(&task_id, agent.id()) {
        return Err(invalid!("Task has duplicate ID: {task_id}"));
    }
    if framework.has_unreachable(task_id.as_str()) {
        return Err(invalid!(
            "Task reuses the ID of an unreachable task: {task_id}"
        ));
    }
    if task.agent_id.value != agent.id().as_str() {
        return Err(invalid!(
            "Task uses invalid agent {} while agent {} is expected",
            task.agent_id.value.escape_debug(),
            agent.id()
        ));
    }
    check_durations(task)?;
    if let Some(check) = &task.check {
        check_check(check, check_environment)
            .map_err(Invalid::within("Task uses invalid check"))?;
    }
    if let Some(check) = &task.health_check {
        check_health(check, check_environment)
            .map_err(Invalid::within("Task uses invalid health check"))?;
    }
    if task.resources.is_empty() {
        return Err(invalid!("Task uses no resources"));
    }
    let resources = allocated(&task.resources, role).map_err(Invalid::within(
        "Task uses invalid resources: Invalid resources",
    ))?;
    check_resources(&task.resources, &resources, "Task")?;
    check_environment(task.command.as_ref())
        .map_err(Invalid::within("Task's `CommandInfo` is invalid"))?;
    if let Some(container) = &task.container {
        check_container(container).map_err(Invalid::within("Task's `ContainerInfo` is invalid"))?;
    }
    check_limits(task, agent, &resources)?;
    Ok((task_id, resources))
}

fn check_durations(task: &TaskInfo) -> Result<(), Invalid> {
    let negative = |duration: Option<v1::DurationInfo>| {
        duration.is_some_and(|duration| duration.nanoseconds < 0)
    };
    if negative(task.kill_policy.and_then(|policy| policy.grace_period)) {
        return Err(invalid!(
            "Task's 'kill_policy.grace_period' must be non-negative"
        ));
    }
    if negative(task.max_completion_time) {
        return Err(invalid!(
            "Task's `max_completion_time` must be non-negative"
        ));
    }
    Ok(())
}

fn check_limits(task: &TaskInfo, agent: &Agent, resources: &Resources) -> Result<(), Invalid> {
    if task.limits.is_empty() {
        return Ok(());
    }
    if !agent.profile.has(Capability::TaskResourceLimits) {
        return Err(invalid!(
            "Agent is not capable of handling task resource limits"
        ));
    }
    if task
        .limits
        .keys()
        .any(|name| name != "cpus" && name != "mem")
    {
        return Err(invalid!(
            "Only cpus and mem may be included in a task's resource limits"
        ));
    }
    for (name, short, long, request) in [
        ("cpus", "cpu", "CPU", resources.cpus()),
        ("mem", "memory", "memory", resources.mem()),
    ] {
        let Some(limit) = task.limits.get(name) else {
            continue;
        };
        let Some(request) = request else {
            return Err(invalid!(
                "When a {long} limit is specified, a {long} request must also be specified"
            ));
        };
        if limit.value.is_nan() || limit.value < request.to_f64() {
            return Err(invalid!(
                "The {short} limit must be greater than or equal to the {short} request"
            ));
        }
    }
    Ok(())
}
