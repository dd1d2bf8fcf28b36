//! Validation of executors: the rules of Mesos for executors of single tasks and of task groups.
//!
//! Entered through [`of_task`] and [`of_group`]. Invariant: a valid executor names this framework, and equals the
//! running executor with the same id.

use std::collections::BTreeMap;

use bytes::Bytes;
use meseta_proto::mesos::v1::executor_info::Type;
use meseta_proto::mesos::v1::{self, ExecutorInfo, container_info};
use meseta_proto::task_parts::check_environment;
use meseta_proto::{Invalid, invalid};
use meseta_resources::work_counter::count_entries;
use meseta_resources::{ExecutorId, Resources, Role};
use prost::Message;

use super::part::{check_container, id_text, shares_groups};
use super::resource::check_resources;
use crate::core::state::agent::Agent;
use crate::core::state::framework::Framework;
use crate::core::state::task::bytes_without_resources;
use crate::core::wire::{allocated, for_agent};

/// The smallest amount of cpus for the executor of a task group.
const CPUS_MIN: f64 = 0.01;
/// The smallest amount of memory for the executor of a task group, in MB.
const MEM_MIN_MB: f64 = 32.0;

/// The parsed parts of an executor.
#[derive(Debug)]
pub(in crate::core) struct ValidExecutor {
    pub(in crate::core) id: ExecutorId,
    pub(in crate::core) resources: Resources,
    /// The info sent to the agent.
    pub(in crate::core) info: ExecutorInfo,
    /// Whether the executor does not run on the agent yet.
    pub(in crate::core) is_new: bool,
}

/// Checks the framework's own executor of a single task.
pub(in crate::core) fn of_task(
    framework: &Framework,
    agent: &Agent,
    executor: &ExecutorInfo,
    role: &Role,
) -> Result<ValidExecutor, Invalid> {
    let mut info = executor.clone();
    info.framework_id
        .get_or_insert_with(|| (&framework.id).into());
    let valid = check(framework, agent, info, role)?;
    if executor
        .r#type
        .is_some_and(|kind| kind != i32::from(Type::Custom))
    {
        return Err(invalid!("'ExecutorInfo.type' must be 'CUSTOM'"));
    }
    if executor.command.is_none() {
        return Err(invalid!("'ExecutorInfo.command' must be set"));
    }
    if says_groups_are_shared(executor) {
        return Err(SHARED_GROUPS.into());
    }
    Ok(valid)
}

/// Checks the executor of a task group: that of Mesos, or the framework's own.
pub(super) fn of_group(
    framework: &Framework,
    agent: &Agent,
    executor: &ExecutorInfo,
    role: &Role,
) -> Result<ValidExecutor, Invalid> {
    let valid = check(framework, agent, executor.clone(), role)?;
    match executor.r#type.map(Type::try_from) {
        None => return Err(invalid!("'ExecutorInfo.type' must be set")),
        Some(Ok(Type::Default | Type::Custom)) => {}
        Some(_) => return Err(invalid!("Unknown executor type")),
    }
    if is_docker(executor.container.as_deref()) {
        return Err(invalid!(
            "Docker ContainerInfo is not supported on the executor"
        ));
    }
    if says_groups_are_shared(executor) {
        return Err(SHARED_GROUPS.into());
    }
    let amount = |amount: Option<meseta_resources::Scalar>| amount.map(|amount| amount.to_f64());
    let (cpus, mem) = (
        amount(valid.resources.cpus()),
        amount(valid.resources.mem()),
    );
    if cpus.is_none_or(|cpus| cpus < CPUS_MIN) {
        let cpus = cpus.map_or_else(|| "None".to_owned(), |cpus| cpus.to_string());
        return Err(invalid!(
            "Executor '{}' uses less CPUs ({cpus}) than the minimum required ({CPUS_MIN})",
            valid.id
        ));
    }
    if mem.is_none_or(|mem| mem < MEM_MIN_MB) {
        let mem = mem.map_or_else(|| "None".to_owned(), |mem| format!("{mem}MB"));
        return Err(invalid!(
            "Executor '{}' uses less memory ({mem}) than the minimum required ({MEM_MIN_MB}MB)",
            valid.id
        ));
    }
    if valid.resources.disk().is_none() {
        return Err(invalid!("Executor '{}' uses no disk", valid.id));
    }
    Ok(valid)
}

const SHARED_GROUPS: &str =
    "The 'share_cgroups' field cannot be set to 'true' on executor containers";

fn says_groups_are_shared(executor: &ExecutorInfo) -> bool {
    let says_shared = executor
        .container
        .as_ref()
        .and_then(|container| container.linux_info.as_ref())
        .and_then(|linux| linux.share_cgroups);
    says_shared == Some(true) && shares_groups(executor.container.as_deref())
}

/// Whether a container requires Docker's engine.
pub(super) fn is_docker(container: Option<&v1::ContainerInfo>) -> bool {
    container.is_some_and(|container| container.r#type == i32::from(container_info::Type::Docker))
}

/// Checks the rules for every executor.
fn check(
    framework: &Framework,
    agent: &Agent,
    mut info: ExecutorInfo,
    role: &Role,
) -> Result<ValidExecutor, Invalid> {
    check_type(&info)?;
    let id = ExecutorId::new(&info.executor_id.value).map_err(|error| id_text(&error))?;
    if info
        .shutdown_grace_period
        .is_some_and(|period| period.nanoseconds < 0)
    {
        return Err(invalid!(
            "ExecutorInfo's 'shutdown_grace_period' must be non-negative"
        ));
    }
    check_environment(info.command.as_ref())
        .map_err(Invalid::within("Executor's `CommandInfo` is invalid"))?;
    if let Some(container) = &info.container {
        check_container(container)
            .map_err(Invalid::within("Executor's `ContainerInfo` is invalid"))?;
    }
    let owner = info.framework_id.as_ref();
    let owner = owner.ok_or("'ExecutorInfo.framework_id' must be set")?;
    if owner.value != framework.id.as_str() {
        return Err(invalid!(
            "ExecutorInfo has an invalid FrameworkID (Actual: {} vs Expected: {})",
            owner.value.escape_debug(),
            framework.id
        ));
    }
    let resources = allocated(&info.resources, role).map_err(Invalid::within(
        "Executor uses invalid resources: Invalid resources",
    ))?;
    check_resources(&info.resources, &resources, "Executor")?;
    if resources.iter().any(meseta_resources::Resource::is_shared) {
        return Err(invalid!(
            "Executor resources {resources} should not contain any shared resources"
        ));
    }
    info.resources = for_agent(&resources);
    let known = agent.executors.get(&(framework.id.clone(), id.clone()));
    if let Some(known) = known {
        // A very long executor is decoded only for a comparison with one of the same length.
        let is_like = known.resources == resources
            && known.compared_bytes == bytes_without_resources(&info)
            && same(decoded(&known.info), info.clone());
        if !is_like {
            return Err(invalid!(
                "ExecutorInfo is not compatible with existing ExecutorInfo with same ExecutorID"
            ));
        }
    }
    Ok(ValidExecutor {
        id,
        resources,
        info,
        is_new: known.is_none(),
    })
}

fn decoded(info: &Bytes) -> ExecutorInfo {
    count_entries(u64::try_from(info.len() / 1024).unwrap_or(u64::MAX));
    ExecutorInfo::decode(info.clone()).unwrap_or_default()
}

fn check_type(info: &ExecutorInfo) -> Result<(), Invalid> {
    match info.r#type.map(Type::try_from) {
        Some(Ok(Type::Default)) => {
            if info.command.is_some() {
                return Err(invalid!(
                    "'ExecutorInfo.command' must not be set for 'DEFAULT' executor"
                ));
            }
            let Some(container) = &info.container else {
                return Ok(());
            };
            if container.r#type != i32::from(container_info::Type::Mesos) {
                return Err(invalid!(
                    "'ExecutorInfo.container.type' must be 'MESOS' for 'DEFAULT' executor"
                ));
            }
            if container
                .mesos
                .as_ref()
                .is_some_and(|mesos| mesos.image.is_some())
            {
                return Err(invalid!(
                    "'ExecutorInfo.container.mesos.image' must not be set for 'DEFAULT' executor"
                ));
            }
        }
        Some(Ok(Type::Custom)) if info.command.is_none() => {
            return Err(invalid!(
                "'ExecutorInfo.command' must be set for 'CUSTOM' executor"
            ));
        }
        None | Some(_) => {}
    }
    Ok(())
}

/// Whether two descriptions mean the same executor: the order of variables, URIs and labels, and the form of its
/// resources, do not count.
pub(in crate::core) fn same(mut one: ExecutorInfo, mut other: ExecutorInfo) -> bool {
    for info in [&mut one, &mut other] {
        info.resources.clear();
        if let Some(labels) = &mut info.labels {
            sort(&mut labels.labels);
        }
        if let Some(command) = &mut info.command {
            sort(&mut command.uris);
            if let Some(environment) = &mut command.environment {
                sort(&mut environment.variables);
            }
        }
    }
    one == other
}

fn sort<M: Message + Clone>(messages: &mut Vec<M>) {
    let mut keyed: BTreeMap<Vec<u8>, Vec<M>> = BTreeMap::new();
    for message in std::mem::take(messages) {
        keyed
            .entry(message.encode_to_vec())
            .or_default()
            .push(message);
    }
    messages.extend(keyed.into_values().flatten());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_does_not_make_another_executor() {
        let variable = |name: &str| v1::environment::Variable {
            name: name.to_owned(),
            value: Some("1".to_owned()),
            ..v1::environment::Variable::default()
        };
        let executor = |names: &[&str]| ExecutorInfo {
            command: Some(v1::CommandInfo {
                environment: Some(v1::Environment {
                    variables: names.iter().map(|name| variable(name)).collect(),
                }),
                ..v1::CommandInfo::default()
            }),
            ..ExecutorInfo::default()
        };
        assert!(same(executor(&["A", "B"]), executor(&["B", "A"])));
        assert!(!same(executor(&["A"]), executor(&["A", "A"])));
        assert!(!same(executor(&["A"]), executor(&["B"])));
    }
}
