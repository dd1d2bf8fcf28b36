//! The calls of the v1 scheduler API that the core's effects become.

use std::collections::BTreeSet;
use std::time::Duration;

use meseta_proto::convert;
use meseta_proto::mesos::v1 as mesos;
use meseta_proto::mesos::v1::framework_info::capability::Type as Capability;
use meseta_proto::mesos::v1::scheduler::{Call, call};

use super::Registration;
use crate::core::{Accept, NamedOperation};
use crate::task_info::{Instance, task_info};

/// The failover timeout in seconds: a week, after which the master ends the tasks of an absent scheduler.
const FAILOVER_SECONDS: f64 = 7.0 * 24.0 * 3600.0;
/// The filter in seconds for the rest of an offer: it may come again soon.
const LEFT_SECONDS: f64 = 1.0;
const NAME: &str = "meseta scheduler";
/// The address of the scheduler in the environment of tasks, in the form that the job verbs accept.
const SCHEDULER_VARIABLE: &str = "MESETA_SCHEDULER";

/// Returns the name and capabilities of the framework.
pub(crate) fn framework_info(registration: &Registration) -> mesos::FrameworkInfo {
    let capabilities = [
        Capability::MultiRole,
        Capability::ReservationRefinement,
        Capability::PartitionAware,
        Capability::RevocableResources,
        // Without these capabilities, agents with GPUs and agents of other regions are not offered.
        Capability::GpuResources,
        Capability::RegionAware,
    ];
    let capability = |kind: Capability| mesos::framework_info::Capability {
        r#type: Some(kind.into()),
    };
    mesos::FrameworkInfo {
        id: registration
            .framework_id
            .clone()
            .map(|value| mesos::FrameworkId { value }),
        user: registration.user.clone(),
        name: NAME.to_owned(),
        principal: registration.principal.clone(),
        hostname: Some(registration.hostname.clone()),
        webui_url: Some(registration.webui_url.clone()),
        roles: registration.roles.roles.iter().cloned().collect(),
        capabilities: capabilities.map(capability).to_vec(),
        checkpoint: Some(true),
        failover_timeout: Some(FAILOVER_SECONDS),
        ..mesos::FrameworkInfo::default()
    }
}

pub(crate) fn subscribe(registration: &Registration) -> Call {
    let framework_info = framework_info(registration);
    Call {
        framework_id: framework_info.id.clone(),
        subscribe: Some(call::Subscribe {
            framework_info,
            suppressed_roles: suppressed(registration),
            ..call::Subscribe::default()
        }),
        ..empty_call(call::Type::Subscribe)
    }
}

pub(crate) fn update_framework(registration: &Registration) -> Call {
    Call {
        update_framework: Some(call::UpdateFramework {
            framework_info: framework_info(registration),
            suppressed_roles: suppressed(registration),
            offer_constraints: None,
        }),
        ..empty_call(call::Type::UpdateFramework)
    }
}

/// Returns the roles in which no offers are wanted. A master treats a call without suppressed roles as a request for offers
/// in all roles.
fn suppressed(registration: &Registration) -> Vec<String> {
    registration.roles.suppressed.iter().cloned().collect()
}

/// Returns an ACCEPT with the operations first, then one LAUNCH of all tasks.
pub(crate) fn accept(accept: &Accept, registration: &Registration) -> Call {
    let scheduler = registration.scheduler();
    let infos = accept.tasks.iter().map(|launch| {
        let instance = Instance {
            task_id: launch.task_id.clone(),
            version: launch.version,
            index: launch.index,
            attempt: launch.attempt,
        };
        let mut info = task_info(&launch.spec, &instance, &accept.offer, &launch.placement);
        let addresses = launch.addresses.iter();
        let mut variables: Vec<(&str, &str)> = addresses
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        variables.push((SCHEDULER_VARIABLE, scheduler));
        add_variables(&mut info, &variables);
        info
    });
    let of_tasks = accept.tasks.iter().flat_map(|launch| &launch.operations);
    let operations = accept.operations.iter().chain(of_tasks);
    let mut operations: Vec<_> = operations.map(operation).collect();
    if !accept.tasks.is_empty() {
        operations.push(mesos::offer::Operation {
            r#type: Some(mesos::offer::operation::Type::Launch.into()),
            launch: Some(mesos::offer::operation::Launch {
                task_infos: infos.collect(),
            }),
            ..mesos::offer::Operation::default()
        });
    }
    Call {
        accept: Some(call::Accept {
            offer_ids: vec![offer_id(accept.offer.id.clone())],
            operations,
            filters: Some(filters(LEFT_SECONDS)),
        }),
        ..empty_call(call::Type::Accept)
    }
}

/// Adds the variables that the job does not set itself.
fn add_variables(task: &mut mesos::TaskInfo, variables: &[(&str, &str)]) {
    let command = task.command.get_or_insert_default();
    let present = &mut command.environment.get_or_insert_default().variables;
    for (name, value) in variables {
        if present.iter().all(|one| one.name != *name) {
            present.push(mesos::environment::Variable {
                name: (*name).to_owned(),
                value: Some((*value).to_owned()),
                ..mesos::environment::Variable::default()
            });
        }
    }
}

pub(crate) fn decline(offers: Vec<String>, refuse: Duration) -> Call {
    Call {
        decline: Some(call::Decline {
            offer_ids: offers.into_iter().map(offer_id).collect(),
            filters: Some(filters(refuse.as_secs_f64())),
        }),
        ..empty_call(call::Type::Decline)
    }
}

pub(crate) fn kill(task_id: String, agent_id: Option<String>) -> Call {
    Call {
        kill: Some(call::Kill {
            task_id: mesos::TaskId { value: task_id },
            agent_id: agent_id.map(|value| mesos::AgentId { value }),
            kill_policy: None,
        }),
        ..empty_call(call::Type::Kill)
    }
}

/// Returns the acknowledgement, or `None` if the update needs none.
pub(crate) fn acknowledge(status: &mesos::TaskStatus) -> Option<Call> {
    let acknowledge = call::Acknowledge {
        agent_id: status.agent_id.clone()?,
        task_id: status.task_id.clone(),
        uuid: status.uuid.clone()?,
    };
    Some(Call {
        acknowledge: Some(acknowledge),
        ..empty_call(call::Type::Acknowledge)
    })
}

fn operation(operation: &NamedOperation) -> mesos::offer::Operation {
    mesos::offer::Operation {
        id: Some(operation_id(operation.id.clone())),
        ..convert::to_operation(&operation.operation)
    }
}

/// Returns the acknowledgement, or `None` if the status needs none.
pub(crate) fn acknowledge_operation(status: &mesos::OperationStatus) -> Option<Call> {
    let acknowledge = call::AcknowledgeOperationStatus {
        agent_id: status.agent_id.clone(),
        resource_provider_id: status.resource_provider_id.clone(),
        uuid: status.uuid.as_ref()?.value.clone(),
        operation_id: status.operation_id.clone()?,
    };
    Some(Call {
        acknowledge_operation_status: Some(acknowledge),
        ..empty_call(call::Type::AcknowledgeOperationStatus)
    })
}

/// Asks for the state of operations by their ids and agents.
pub(crate) fn reconcile_operations(operations: Vec<(String, String)>) -> Call {
    let operations = operations.into_iter();
    let operations = operations.map(|(id, agent)| call::reconcile_operations::Operation {
        operation_id: operation_id(id),
        agent_id: Some(mesos::AgentId { value: agent }),
        resource_provider_id: None,
    });
    Call {
        reconcile_operations: Some(call::ReconcileOperations {
            operations: operations.collect(),
        }),
        ..empty_call(call::Type::ReconcileOperations)
    }
}

pub(crate) fn suppress(roles: BTreeSet<String>) -> Call {
    let roles = roles.into_iter().collect();
    Call {
        suppress: Some(call::Suppress { roles }),
        ..empty_call(call::Type::Suppress)
    }
}

pub(crate) fn revive(roles: BTreeSet<String>) -> Call {
    let roles = roles.into_iter().collect();
    Call {
        revive: Some(call::Revive { roles }),
        ..empty_call(call::Type::Revive)
    }
}

fn empty_call(kind: call::Type) -> Call {
    Call {
        r#type: Some(kind.into()),
        ..Call::default()
    }
}

fn operation_id(value: String) -> mesos::OperationId {
    mesos::OperationId { value }
}

fn offer_id(value: String) -> mesos::OfferId {
    mesos::OfferId { value }
}

fn filters(seconds: f64) -> mesos::Filters {
    mesos::Filters {
        refuse_seconds: Some(seconds),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use super::*;
    use crate::core::{Launch, RoleSet};
    use crate::file::from_toml;
    use crate::placement::{Offer, Placement};
    use meseta_resources::{Operation, Resources};

    #[test]
    fn gpu_and_remote_agents_are_offered() {
        let info = framework_info(&Registration::default());
        let declared: Vec<_> = info.capabilities.iter().map(|one| one.r#type()).collect();
        for needed in [Capability::GpuResources, Capability::RegionAware] {
            assert!(declared.contains(&needed), "{declared:?}");
        }
    }

    #[test]
    fn role_calls_carry_suppressed_roles() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let registration = Registration {
            roles: RoleSet {
                roles: set(&["a", "b", "c"]),
                suppressed: set(&["a", "c"]),
            },
            ..Registration::default()
        };
        let subscribe = subscribe(&registration).subscribe.expect("a SUBSCRIBE");
        assert_eq!(subscribe.suppressed_roles, ["a", "c"]);
        assert_eq!(subscribe.framework_info.roles, ["a", "b", "c"]);
        let update = update_framework(&registration).update_framework;
        let update = update.expect("an UPDATE_FRAMEWORK");
        assert_eq!(update.suppressed_roles, ["a", "c"]);
        assert_eq!(update.framework_info.roles, ["a", "b", "c"]);
    }

    #[test]
    fn operations_precede_launch_with_peer_addresses() {
        let text =
            "name = \"a\"\n[task]\ncommand = \"true\"\nenv = { ADDRESSES_DB_SQL = \"mine\" }\n";
        let address = |text: &str| text.to_owned();
        let launch = Launch {
            task_id: "a.1.0.0.1".to_owned(),
            spec: Arc::new(from_toml(text).expect("a job")),
            version: 1,
            run: 0,
            index: 0,
            attempt: 1,
            placement: Placement {
                offer: 0,
                resources: Resources::new(),
                ports: BTreeMap::new(),
                new_volume: Resources::new(),
                returned: None,
            },
            addresses: BTreeMap::from([
                (address("ADDRESSES_DB_SQL"), address("n1:1")),
                (address("ADDRESSES_WEB_HTTP"), address("n1:2,n2:2")),
            ]),
            operations: vec![NamedOperation {
                id: "v:create".to_owned(),
                operation: Operation::Create(Vec::new()),
            }],
        };
        let accepted = Accept {
            offer: Offer::default(),
            operations: Vec::new(),
            tasks: vec![launch],
        };
        let registration = Registration {
            webui_url: "http://h:5070/".to_owned(),
            ..Registration::default()
        };
        let call = accept(&accepted, &registration);
        let operations = call.accept.expect("an ACCEPT").operations;
        let ids: Vec<_> = operations
            .iter()
            .map(|one| one.id.as_ref().map(|id| &*id.value))
            .collect();
        assert_eq!(ids, [Some("v:create"), None]);
        let task = &operations[1].launch.as_ref().expect("a LAUNCH").task_infos[0];
        let environment = task
            .command
            .as_ref()
            .and_then(|command| command.environment.as_ref());
        let variables = &environment.expect("an environment").variables;
        let value = |name: &str| {
            let found: Vec<_> = variables.iter().filter(|one| one.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0].value.clone().unwrap_or_default()
        };
        assert_eq!(value("ADDRESSES_DB_SQL"), "mine");
        assert_eq!(value("ADDRESSES_WEB_HTTP"), "n1:2,n2:2");
        assert_eq!(value("MESETA_SCHEDULER"), "h:5070");
    }
}
