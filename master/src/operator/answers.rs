//! The answers to the operator API's questions, from a snapshot.

use meseta_proto::mesos::v1::master::Response;
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::master::response::{self, Type};
use meseta_proto::mesos::v1::{self, Flag, VersionInfo};

use crate::context::Context;
use crate::core::Snapshot;
use crate::measures::Measures;
use crate::operator_messages::{agents, executors, frameworks, roles, state, tasks};
use crate::views;

/// What is asked for; `None` for a call that asks nothing or is not served.
pub(super) fn answer(context: &Context, snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    about_the_master(context, snapshot, kind)
        .or_else(|| about_policies(snapshot, kind))
        .or_else(|| about_the_cluster(snapshot, kind))
}

/// A response of a type with its one part.
fn response(kind: Type, part: impl FnOnce(&mut Response)) -> Option<Response> {
    let mut response = Response {
        r#type: Some(kind.into()),
        ..Response::default()
    };
    part(&mut response);
    Some(response)
}

/// The answer to the call GET_METRICS.
pub(super) fn metrics(context: &Context, snapshot: &Snapshot, measures: &Measures) -> Response {
    let mut metrics = Vec::new();
    context
        .metrics
        .mesos(snapshot, measures, &mut |name, value| {
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

fn about_the_master(context: &Context, snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    match kind {
        CallType::GetHealth => response(Type::GetHealth, |to| {
            to.get_health = Some(response::GetHealth { healthy: true });
        }),
        CallType::GetVersion => response(Type::GetVersion, |to| {
            let version_info = VersionInfo {
                version: context.identity.version.clone(),
                build_date: Some("unknown".to_owned()),
                build_time: Some(0.0),
                build_user: Some("meseta".to_owned()),
                ..VersionInfo::default()
            };
            to.get_version = Some(response::GetVersion { version_info });
        }),
        CallType::GetFlags => response(Type::GetFlags, |to| {
            let flag = |(name, value): (&String, &String)| Flag {
                name: name.clone(),
                value: Some(value.clone()),
            };
            let flags = context.flags.iter().map(flag).collect();
            to.get_flags = Some(response::GetFlags { flags });
        }),
        CallType::GetLoggingLevel => response(Type::GetLoggingLevel, |to| {
            let level = context.verbosity.level();
            to.get_logging_level = Some(response::GetLoggingLevel { level });
        }),
        CallType::GetMaster => response(Type::GetMaster, |to| {
            let started = snapshot.started.as_secs_f64();
            to.get_master = Some(response::GetMaster {
                master_info: Some(snapshot.identity.to_wire()),
                start_time: Some(started),
                elected_time: Some(started),
            });
        }),
        _ => None,
    }
}

/// What operators have laid down: operations, maintenance, roles, weights, quota.
fn about_policies(snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    match kind {
        CallType::GetOperations => response(Type::GetOperations, |to| {
            let operations = snapshot.agents.iter();
            let operations = operations.flat_map(|agent| agent.operations.values());
            to.get_operations = Some(response::GetOperations {
                operations: operations.map(|operation| operation.to_wire()).collect(),
            });
        }),
        CallType::GetMaintenanceStatus => response(Type::GetMaintenanceStatus, |to| {
            let status = views::maintenance_status(snapshot);
            to.get_maintenance_status = Some(response::GetMaintenanceStatus { status });
        }),
        CallType::GetMaintenanceSchedule => response(Type::GetMaintenanceSchedule, |to| {
            let schedule = views::maintenance_schedule(snapshot);
            to.get_maintenance_schedule = Some(response::GetMaintenanceSchedule { schedule });
        }),
        CallType::GetRoles => response(Type::GetRoles, |to| {
            to.get_roles = Some(roles(snapshot));
        }),
        CallType::GetWeights => response(Type::GetWeights, |to| {
            let weight_infos = views::weights(snapshot);
            to.get_weights = Some(response::GetWeights { weight_infos });
        }),
        CallType::GetQuota => response(Type::GetQuota, |to| {
            let status = views::quota_status(snapshot);
            to.get_quota = Some(response::GetQuota { status });
        }),
        _ => None,
    }
}

/// What is there: agents, frameworks, executors, tasks.
fn about_the_cluster(snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    match kind {
        CallType::GetAgents => response(Type::GetAgents, |to| {
            to.get_agents = Some(agents(snapshot));
        }),
        CallType::GetFrameworks => response(Type::GetFrameworks, |to| {
            to.get_frameworks = Some(frameworks(snapshot));
        }),
        CallType::GetExecutors => response(Type::GetExecutors, |to| {
            to.get_executors = Some(executors(snapshot));
        }),
        CallType::GetTasks => response(Type::GetTasks, |to| {
            to.get_tasks = Some(tasks(snapshot));
        }),
        CallType::GetState => response(Type::GetState, |to| {
            to.get_state = Some(state(snapshot));
        }),
        _ => None,
    }
}
