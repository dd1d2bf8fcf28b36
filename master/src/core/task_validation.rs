//! Whether a task may be launched on an offer: the rules of Mesos, in their order, in its words.
//!
//! Entered through [`validate`]. Invariant: what is valid has resources that the offer holds, in
//! the offer's role.

use meseta_proto::mesos::v1::agent_info::capability::Type as Capability;
use meseta_proto::mesos::v1::{self, ExecutorInfo, TaskInfo};
use meseta_resources::{ExecutorId, IdError, Resource, Resources, Role, TaskId};
use prost::Message;

use super::accept::{allocated, for_agent};
use super::agent::Agent;
use super::framework::Framework;

/// Tasks of one framework that are live, or ended and unacknowledged: the latter hold no resources
/// that would bound them.
const TASKS_PER_FRAMEWORK_MAX: usize = 1_000_000;

/// What of a task is understood.
#[derive(Debug)]
pub(super) struct Valid {
    pub(super) task_id: TaskId,
    pub(super) resources: Resources,
    pub(super) executor: Option<ValidExecutor>,
}

#[derive(Debug)]
pub(super) struct ValidExecutor {
    pub(super) id: ExecutorId,
    pub(super) resources: Resources,
    pub(super) info: ExecutorInfo,
    pub(super) is_new: bool,
}

impl Valid {
    /// All that the launch takes from the offer.
    pub(super) fn total(&self) -> Resources {
        match &self.executor {
            Some(executor) if executor.is_new => &self.resources + &executor.resources,
            _ => self.resources.clone(),
        }
    }
}

/// Checks a task and puts its resources into the form that the agent gets.
pub(super) fn validate(
    framework: &Framework,
    agent: &Agent,
    task: &mut TaskInfo,
    role: &Role,
    available: &Resources,
) -> Result<Valid, String> {
    let task_id = TaskId::new(&task.task_id.value).map_err(|error| id_text(&error))?;
    if framework.tasks.len() >= TASKS_PER_FRAMEWORK_MAX {
        return Err(format!(
            "Framework has {TASKS_PER_FRAMEWORK_MAX} tasks that are live or unacknowledged, and may \
             not have more"
        ));
    }
    if framework.tasks.contains_key(&task_id) {
        return Err(format!("Task has duplicate ID: {task_id}"));
    }
    if framework.has_unreachable(task_id.as_str()) {
        return Err(format!(
            "Task reuses the ID of an unreachable task: {task_id}"
        ));
    }
    if task.agent_id.value != agent.id().as_str() {
        return Err(format!(
            "Task uses invalid agent {} while agent {} is expected",
            task.agent_id.value.escape_debug(),
            agent.id()
        ));
    }
    check_durations(task)?;
    if let Some(check) = &task.health_check {
        check_health(check).map_err(|text| format!("Task uses invalid health check: {text}"))?;
    }
    if task.resources.is_empty() {
        return Err("Task uses no resources".to_owned());
    }
    let resources = allocated(&task.resources, role)
        .map_err(|text| format!("Task uses invalid resources: Invalid resources: {text}"))?;
    check_resources(&resources, "Task")?;
    check_environment(task.command.as_ref())
        .map_err(|text| format!("Task's `CommandInfo` is invalid: {text}"))?;
    check_limits(task, agent, &resources)?;
    let executor = match (task.command.is_some(), task.executor.is_some()) {
        (true, false) => None,
        (false, true) => Some(check_executor(framework, agent, task, role)?),
        (true, true) | (false, false) => {
            return Err(
                "Task should have at least one (but not both) of CommandInfo or \
                        ExecutorInfo present"
                    .to_owned(),
            );
        }
    };
    let valid = Valid {
        task_id,
        resources,
        executor,
    };
    let total = valid.total();
    if !available.contains(&total) {
        return Err(format!(
            "Total resources {total} required by task and its executor is more than available \
             {available}"
        ));
    }
    task.resources = for_agent(&valid.resources);
    if let (Some(info), Some(executor)) = (&mut task.executor, &valid.executor) {
        **info = executor.info.clone();
        info.resources = for_agent(&executor.resources);
    }
    Ok(valid)
}

/// Mesos's words for an id that cannot be one.
fn id_text(error: &IdError) -> String {
    match error {
        IdError::Empty { .. } => "ID must not be empty".to_owned(),
        IdError::TooLong { max, .. } => format!("ID must not be greater than {max} characters"),
        IdError::Disallowed { id, .. } => format!("'{id}' is disallowed"),
        IdError::InvalidCharacter { id, .. } => {
            format!("'{}' contains invalid characters", id.escape_debug())
        }
    }
}

fn check_durations(task: &TaskInfo) -> Result<(), String> {
    let negative = |duration: Option<v1::DurationInfo>| {
        duration.is_some_and(|duration| duration.nanoseconds < 0)
    };
    if negative(task.kill_policy.and_then(|policy| policy.grace_period)) {
        return Err("Task's 'kill_policy.grace_period' must be non-negative".to_owned());
    }
    if negative(task.max_completion_time) {
        return Err("Task's `max_completion_time` must be non-negative".to_owned());
    }
    let executor = task.executor.as_ref();
    if negative(executor.and_then(|executor| executor.shutdown_grace_period)) {
        return Err("ExecutorInfo's 'shutdown_grace_period' must be non-negative".to_owned());
    }
    Ok(())
}

fn check_health(check: &v1::HealthCheck) -> Result<(), String> {
    use v1::health_check::Type;
    match check.r#type.and_then(|kind| Type::try_from(kind).ok()) {
        None => return Err("HealthCheck must specify 'type'".to_owned()),
        Some(Type::Command) if check.command.is_none() => {
            return Err("Expecting 'command' to be set for COMMAND health check".to_owned());
        }
        Some(Type::Http) if check.http.is_none() => {
            return Err("Expecting 'http' to be set for HTTP health check".to_owned());
        }
        Some(Type::Tcp) if check.tcp.is_none() => {
            return Err("Expecting 'tcp' to be set for TCP health check".to_owned());
        }
        Some(Type::Unknown) => return Err("'UNKNOWN' is not a valid health check type".to_owned()),
        Some(_) => {}
    }
    for (name, value) in [
        ("delay_seconds", check.delay_seconds),
        ("grace_period_seconds", check.grace_period_seconds),
        ("interval_seconds", check.interval_seconds),
        ("timeout_seconds", check.timeout_seconds),
    ] {
        if value.is_some_and(|value| value < 0.0 || value.is_nan()) {
            return Err(format!("Expecting '{name}' to be non-negative"));
        }
    }
    Ok(())
}

/// Whole gpus, and no name both revocable and not.
fn check_resources(resources: &Resources, what: &str) -> Result<(), String> {
    for resource in resources {
        resource.check_gpus().map_err(|error| {
            format!("{what} uses invalid resources: Invalid 'gpus' resource: {error}")
        })?;
    }
    check_revocable(resources).map_err(|name| {
        format!(
            "{what} mixes revocable and non-revocable resources: Cannot use both revocable and \
             non-revocable '{name}' at the same time"
        )
    })
}

fn check_revocable(resources: &Resources) -> Result<(), String> {
    let named = |wanted: &Resource, revocable: bool| {
        resources
            .iter()
            .any(|other| other.name() == wanted.name() && other.is_revocable() == revocable)
    };
    for resource in resources {
        if resource.is_revocable() && named(resource, false) {
            return Err(resource.name().to_string());
        }
    }
    Ok(())
}

/// A variable that is given by value has one.
fn check_environment(command: Option<&v1::CommandInfo>) -> Result<(), String> {
    use v1::environment::variable::Type;
    let variables = command
        .and_then(|command| command.environment.as_ref())
        .map_or(&[][..], |environment| environment.variables.as_slice());
    for variable in variables {
        let kind = variable
            .r#type
            .and_then(|kind| Type::try_from(kind).ok())
            .unwrap_or(Type::Value);
        let name = variable.name.escape_debug();
        if kind == Type::Value && variable.value.is_none() {
            return Err(format!(
                "Environment variable '{name}' of type 'VALUE' must have a value set"
            ));
        }
        if kind == Type::Secret && variable.secret.is_none() {
            return Err(format!(
                "Environment variable '{name}' of type 'SECRET' must have a secret set"
            ));
        }
    }
    Ok(())
}

fn check_limits(task: &TaskInfo, agent: &Agent, resources: &Resources) -> Result<(), String> {
    if task.limits.is_empty() {
        return Ok(());
    }
    if !agent.profile.has(Capability::TaskResourceLimits) {
        return Err("Agent is not capable of handling task resource limits".to_owned());
    }
    if task
        .limits
        .keys()
        .any(|name| name != "cpus" && name != "mem")
    {
        return Err("Only cpus and mem may be included in a task's resource limits".to_owned());
    }
    for (name, short, long, request) in [
        ("cpus", "cpu", "CPU", resources.cpus()),
        ("mem", "memory", "memory", resources.mem()),
    ] {
        let Some(limit) = task.limits.get(name) else {
            continue;
        };
        let Some(request) = request else {
            return Err(format!(
                "When a {long} limit is specified, a {long} request must also be specified"
            ));
        };
        if limit.value.is_nan() || limit.value < request.to_f64() {
            return Err(format!(
                "The {short} limit must be greater than or equal to the {short} request"
            ));
        }
    }
    Ok(())
}

fn check_executor(
    framework: &Framework,
    agent: &Agent,
    task: &TaskInfo,
    role: &Role,
) -> Result<ValidExecutor, String> {
    use v1::executor_info::Type;
    let Some(executor) = task.executor.as_deref() else {
        return Err("'TaskInfo.executor' must be set".to_owned());
    };
    let id = ExecutorId::new(&executor.executor_id.value).map_err(|error| id_text(&error))?;
    if executor
        .r#type
        .is_some_and(|kind| kind != i32::from(Type::Custom))
    {
        return Err("'ExecutorInfo.type' must be 'CUSTOM'".to_owned());
    }
    if executor.command.is_none() {
        return Err("'ExecutorInfo.command' must be set".to_owned());
    }
    let mut info = executor.clone();
    match &info.framework_id {
        Some(given) if given.value != framework.id.as_str() => {
            return Err(format!(
                "ExecutorInfo has an invalid FrameworkID (Actual: {} vs Expected: {})",
                given.value.escape_debug(),
                framework.id
            ));
        }
        Some(_) => {}
        None => {
            info.framework_id = Some(v1::FrameworkId {
                value: framework.id.to_string(),
            });
        }
    }
    let resources = allocated(&info.resources, role)
        .map_err(|text| format!("Executor uses invalid resources: Invalid resources: {text}"))?;
    check_resources(&resources, "Executor")?;
    check_environment(info.command.as_ref())
        .map_err(|text| format!("Executor's `CommandInfo` is invalid: {text}"))?;
    info.resources = for_agent(&resources);
    let known = agent.executors.get(&(framework.id.clone(), id.clone()));
    if let Some(known) = known
        && known.info != info.encode_to_vec()
    {
        return Err(
            "ExecutorInfo is not compatible with existing ExecutorInfo with same ExecutorID"
                .to_owned(),
        );
    }
    Ok(ValidExecutor {
        id,
        resources,
        info,
        is_new: known.is_none(),
    })
}
