//! The answers to the operator API's queries, from a snapshot.

use meseta_proto::mesos::v1::master::Response;
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::master::response::{self, Type};
use meseta_proto::mesos::v1::{self, Flag};

use crate::context::Context;
use crate::core::Snapshot;
use crate::metrics::Measured;
use crate::operator_messages::{agents, executors, frameworks, roles, state, tasks};
use crate::views;

/// The answer to a call; `None` for a call without an answer or an unsupported one.
pub(super) fn answer(context: &Context, snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    let mut to = Response {
        r#type: Type::from_str_name(kind.as_str_name()).map(i32::from),
        ..Response::default()
    };
    match kind {
        CallType::GetHealth => to.get_health = Some(response::GetHealth { healthy: true }),
        CallType::GetVersion => to.get_version = Some(version(context)),
        CallType::GetFlags => to.get_flags = Some(flags(context)),
        CallType::GetLoggingLevel => {
            let level = context.verbosity.level();
            to.get_logging_level = Some(response::GetLoggingLevel { level });
        }
        CallType::GetMaster => {
            let started = snapshot.started.as_secs_f64();
            to.get_master = Some(response::GetMaster {
                master_info: Some(snapshot.identity.to_wire()),
                start_time: Some(started),
                elected_time: Some(started),
            });
        }
        CallType::GetOperations => {
            let operations = snapshot.agents.iter();
            let operations = operations.flat_map(|agent| agent.operations.values());
            to.get_operations = Some(response::GetOperations {
                operations: operations.map(|operation| operation.to_wire()).collect(),
            });
        }
        CallType::GetMaintenanceStatus => {
            let status = views::maintenance_status(snapshot);
            to.get_maintenance_status = Some(response::GetMaintenanceStatus { status });
        }
        CallType::GetMaintenanceSchedule => {
            let schedule = views::maintenance_schedule(snapshot);
            to.get_maintenance_schedule = Some(response::GetMaintenanceSchedule { schedule });
        }
        CallType::GetRoles => to.get_roles = Some(roles(snapshot)),
        CallType::GetWeights => {
            let weight_infos = views::weights(snapshot);
            to.get_weights = Some(response::GetWeights { weight_infos });
        }
        CallType::GetQuota => {
            let status = views::quota_status(snapshot);
            to.get_quota = Some(response::GetQuota { status });
        }
        CallType::GetAgents => to.get_agents = Some(agents(snapshot)),
        CallType::GetFrameworks => to.get_frameworks = Some(frameworks(snapshot)),
        CallType::GetExecutors => to.get_executors = Some(executors(snapshot)),
        CallType::GetTasks => to.get_tasks = Some(tasks(snapshot)),
        CallType::GetState => to.get_state = Some(state(snapshot)),
        _ => return None,
    }
    Some(to)
}

fn version(context: &Context) -> response::GetVersion {
    let identity = &context.identity;
    let version_info = identity.build.version_info(&identity.version);
    response::GetVersion { version_info }
}

fn flags(context: &Context) -> response::GetFlags {
    let flag = |(name, value): (&String, &String)| Flag {
        name: name.clone(),
        value: Some(value.clone()),
    };
    let flags = context.flags.iter().map(flag).collect();
    response::GetFlags { flags }
}

/// The answer to the call GET_METRICS.
pub(super) fn metrics(context: &Context, measured: &Measured) -> Response {
    let mut metrics = Vec::new();
    context.metrics.mesos(measured, &mut |name, value| {
        metrics.push(v1::Metric {
            name: name.to_owned(),
            value: Some(value),
        });
    });
    Response {
        r#type: Some(Type::GetMetrics.into()),
        get_metrics: Some(response::GetMetrics { metrics }),
        ..Response::default()
    }
}
