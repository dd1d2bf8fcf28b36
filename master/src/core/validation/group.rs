//! Validation of task groups: an offer can launch the whole group or nothing.
//!
//! Entered through [`validate`], with the rules of Mesos, their order and their wording. Invariant: a valid group
//! names its executor in every task, and the offer holds its resources.

use std::collections::BTreeSet;

use meseta_proto::mesos::v1::offer::operation::LaunchGroup;
use meseta_proto::mesos::v1::{self, TaskInfo, health_check};
use meseta_proto::{Invalid, invalid};
use meseta_resources::{Resources, Role, TaskId};

use super::executor::{self, ValidExecutor, is_docker, same};
use super::part::shares_groups;
use super::resource::check_together;
use super::task::validate_itself;
use crate::core::state::agent::Agent;
use crate::core::state::framework::Framework;
use crate::core::wire::for_agent;

/// The parsed parts of a task group.
#[derive(Debug)]
pub(in crate::core) struct ValidGroup {
    /// The tasks in the group's order.
    pub(in crate::core) tasks: Vec<(TaskId, Resources)>,
    pub(in crate::core) executor: ValidExecutor,
}

impl ValidGroup {
    /// The resources that the launch takes from the offer.
    pub(in crate::core) fn total(&self) -> Resources {
        let mut total = Resources::new();
        for (_, resources) in &self.tasks {
            total += resources;
        }
        if self.executor.is_new {
            total += &self.executor.resources;
        }
        total
    }
}

/// Checks a group and converts its resources to the form for the agent.
pub(in crate::core) fn validate(
    framework: &Framework,
    agent: &Agent,
    group: &mut LaunchGroup,
    role: &Role,
    available: &Resources,
) -> Result<ValidGroup, Invalid> {
    let tasks = check_tasks(framework, agent, &group.task_group.tasks, role)?;
    let executor = executor::of_group(framework, agent, &group.executor, role)?;
    for task in &group.task_group.tasks {
        if let Some(own) = task.executor.as_deref()
            && !(own.resources == group.executor.resources
                && same(own.clone(), group.executor.clone()))
        {
            return Err(invalid!(
                "The `ExecutorInfo` of task '{}' is different from executor '{}'",
                task.task_id.value,
                executor.id
            ));
        }
    }
    let all = group.task_group.tasks.iter();
    let given: Vec<&[v1::Resource]> = all
        .map(|task| task.resources.as_slice())
        .chain([executor.info.resources.as_slice()])
        .collect();
    check_together("Task group and executor", &given, || {
        let of_tasks: Vec<String> = tasks.iter().map(|(_, task)| task.to_string()).collect();
        format!(
            "There are overlapping resources in the task group's task resources {{ {} }} and/or \
             executor resources {}",
            of_tasks.join(", "),
            executor.resources
        )
    })?;
    let valid = ValidGroup { tasks, executor };
    let total = valid.total();
    if !available.contains(&total) {
        return Err(invalid!(
            "Total resources {} required by task group and its executor are more than \
             available {}",
            total.excerpt(),
            available.excerpt()
        ));
    }
    check_shared_groups(framework, agent, &group.task_group.tasks, &valid.executor)?;
    for (task, (_, resources)) in group.task_group.tasks.iter_mut().zip(&valid.tasks) {
        task.resources = for_agent(resources);
        task.executor = Some(Box::new(valid.executor.info.clone()));
    }
    group.executor = valid.executor.info.clone();
    Ok(valid)
}

fn check_tasks(
    framework: &Framework,
    agent: &Agent,
    tasks: &[TaskInfo],
    role: &Role,
) -> Result<Vec<(TaskId, Resources)>, Invalid> {
    let mut seen = BTreeSet::new();
    let mut valid = Vec::with_capacity(tasks.len());
    for task in tasks {
        let place = format!("Task '{}' is invalid", task.task_id.value.escape_debug());
        let valid_task = validate_itself(framework, agent, task, role);
        let (id, resources) = valid_task.map_err(Invalid::within(&place))?;
        if !seen.insert(id.clone()) {
            return Err(invalid!("{place}: Task has duplicate ID: {id}"));
        }
        check_task(task).map_err(Invalid::within(&place))?;
        valid.push((id, resources));
    }
    Ok(valid)
}

/// The rules that hold only for tasks of a group.
fn check_task(task: &TaskInfo) -> Result<(), Invalid> {
    use health_check::Type;
    let container = task.container.as_deref();
    let has_own_network = container.is_some_and(|container| !container.network_infos.is_empty());
    let kind = task.health_check.as_ref().and_then(|check| check.r#type);
    let over_network = [Type::Http, Type::Tcp].map(|kind| Some(i32::from(kind)));
    if has_own_network && over_network.contains(&kind) {
        return Err(invalid!(
            "HTTP and TCP health checks are not supported for nested containers not joining \
             parent's network"
        ));
    }
    if is_docker(container) {
        return Err(invalid!(
            "Docker ContainerInfo is not supported on the task"
        ));
    }
    if !task.limits.is_empty() && shares_groups(container) {
        return Err(invalid!(
            "Resource limits may only be set for tasks within a task group when the \
             'share_cgroups' field is set to 'false'."
        ));
    }
    Ok(())
}

/// Checks that either all tasks under an executor share its cgroups, or none does.
fn check_shared_groups(
    framework: &Framework,
    agent: &Agent,
    tasks: &[TaskInfo],
    executor: &ValidExecutor,
) -> Result<(), Invalid> {
    let mut shared = tasks
        .iter()
        .map(|task| shares_groups(task.container.as_deref()));
    let Some(first) = shared.next() else {
        return Ok(());
    };
    let mut unreachable = framework.unreachable.tasks().iter().filter(|task| {
        task.executor_id.as_ref() == Some(&executor.id) && task.agent_id == *agent.id()
    });
    let agree = shared.all(|other| other == first)
        && (executor.is_new
            || (agent.agrees_on_groups(&framework.id, &executor.id, first)
                && unreachable.all(|task| task.shares_groups == first)));
    if agree {
        Ok(())
    } else {
        Err(invalid!(
            "If set, the value of 'share_cgroups' must be the same for all tasks in each task \
             group and under a single executor"
        ))
    }
}
