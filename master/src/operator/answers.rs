//! The answers to the operator API's questions, from a snapshot.

use std::sync::Arc;

use meseta_access::Approver;
use meseta_proto::convert;
use meseta_proto::mesos::v1::master::Response;
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::master::response::{
    self, Type, get_agents, get_executors, get_frameworks,
};
use meseta_proto::mesos::v1::{self, ExecutorInfo, Flag, TimeInfo, VersionInfo, value};
use meseta_resources::{Resources, Role};
use prost::Message;

use crate::core::{AgentView, Drain, Format, FrameworkView, Offer, Snapshot, TaskRecord, to_wire};
use crate::http::Context;
use crate::http::views;
use crate::measures::Measures;
use crate::view_filter;

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

/// The roles in use, with what they hold of the resources that every agent has.
fn roles(snapshot: &Snapshot) -> response::GetRoles {
    const NAMES: [&str; 4] = ["cpus", "disk", "gpus", "mem"];
    let role = |(role, tally): (Role, views::Tally<'_>)| {
        let allocated_and_offered = &tally.allocated + &tally.offered;
        let resource = |name: &str| {
            let amount = allocated_and_offered.get(name);
            amount.is_positive().then(|| v1::Resource {
                name: name.to_owned(),
                r#type: value::Type::Scalar.into(),
                scalar: Some(value::Scalar {
                    value: amount.to_f64(),
                }),
                ..v1::Resource::default()
            })
        };
        v1::Role {
            weight: snapshot.weights.get(&role).copied().unwrap_or(1.0),
            frameworks: tally.frameworks.iter().map(|id| (*id).into()).collect(),
            resources: NAMES.into_iter().filter_map(resource).collect(),
            name: role.to_string(),
        }
    };
    response::GetRoles {
        roles: views::tallies(snapshot)
            .into_iter()
            .filter(|(role, _)| snapshot.viewer_may_view_role(role))
            .map(role)
            .collect(),
    }
}

fn time(since: std::time::Duration) -> TimeInfo {
    TimeInfo {
        nanoseconds: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
    }
}

pub(super) fn state(snapshot: &Snapshot) -> response::GetState {
    response::GetState {
        get_tasks: Some(tasks(snapshot)),
        get_executors: Some(executors(snapshot)),
        get_frameworks: Some(frameworks(snapshot)),
        get_agents: Some(agents(snapshot)),
    }
}

fn agents(snapshot: &Snapshot) -> response::GetAgents {
    let (agents, recovered) = (snapshot.agents.iter(), snapshot.recovered_agents.iter());
    let viewer = &snapshot.viewer;
    response::GetAgents {
        agents: agents.map(|view| agent(view, viewer)).collect(),
        recovered_agents: recovered
            .map(|(_, info)| filtered_info(info, viewer))
            .collect(),
    }
}

/// What an agent said of itself, without the resources of roles that somebody may not see.
fn filtered_info(info: &v1::AgentInfo, viewer: &Approver) -> v1::AgentInfo {
    let mut info = info.clone();
    if !viewer.allows_everything() {
        let all = convert::resources(&info.resources).unwrap_or_default();
        let seen = view_filter::resources(&all, viewer);
        info.resources = to_wire(&seen, Format::PostRefinement);
    }
    info
}

/// An agent as somebody may see it.
pub(super) fn agent(agent: &AgentView, viewer: &Approver) -> get_agents::Agent {
    let filtered = |resources: &Resources| {
        to_wire(&view_filter::resources(resources, viewer), Format::Endpoint)
    };
    let profile = &agent.profile;
    let draining = agent.deactivation.as_ref().filter(|d| d.drain.is_some());
    get_agents::Agent {
        agent_info: filtered_info(&profile.info, viewer),
        active: agent.is_active(),
        deactivated: Some(agent.deactivation.is_some()),
        drain_info: draining.and_then(|d| d.drain.as_ref()).map(Drain::to_wire),
        // Whole seconds, as Mesos has it.
        estimated_drain_start_time: draining
            .map(|d| time(std::time::Duration::from_secs(d.since.as_secs()))),
        version: profile.version.clone(),
        pid: Some(profile.pid()),
        registered_time: Some(time(agent.registered)),
        reregistered_time: agent.reregistered.map(time),
        total_resources: filtered(&profile.total),
        allocated_resources: filtered(&agent.used_total()),
        offered_resources: filtered(&agent.offered),
        capabilities: profile
            .capabilities
            .iter()
            .map(|kind| v1::agent_info::Capability {
                r#type: Some((*kind).into()),
            })
            .collect(),
        ..get_agents::Agent::default()
    }
}

fn frameworks(snapshot: &Snapshot) -> response::GetFrameworks {
    let all =
        |list: &[Arc<FrameworkView>]| list.iter().map(|view| framework(snapshot, view)).collect();
    response::GetFrameworks {
        frameworks: all(&snapshot.frameworks),
        completed_frameworks: all(&snapshot.completed_frameworks),
        ..response::GetFrameworks::default()
    }
}

/// A framework without what only a whole snapshot knows of it.
pub(super) fn lone_framework(framework: &FrameworkView) -> get_frameworks::Framework {
    get_frameworks::Framework {
        framework_info: (*framework.info).clone(),
        active: framework.active,
        connected: framework.connected,
        recovered: framework.recovered,
        registered_time: Some(time(framework.registered)),
        reregistered_time: Some(time(framework.reregistered.unwrap_or(framework.registered))),
        unregistered_time: Some(time(framework.unregistered.unwrap_or_default())),
        ..get_frameworks::Framework::default()
    }
}

fn framework(snapshot: &Snapshot, framework: &FrameworkView) -> get_frameworks::Framework {
    let entry = snapshot.by_framework().get(&framework.id);
    let nothing = Resources::new();
    let constraints = framework.offer_constraints.as_ref();
    let constraints = constraints.map(|constraints| constraints.message());
    get_frameworks::Framework {
        framework_info: (*framework.info).clone(),
        active: framework.active,
        connected: framework.connected,
        recovered: framework.recovered,
        registered_time: Some(time(framework.registered)),
        reregistered_time: Some(time(framework.reregistered.unwrap_or(framework.registered))),
        unregistered_time: framework.unregistered.map(time),
        offers: entry
            .map_or(&[][..], |entry| entry.offers.as_slice())
            .iter()
            .map(|found| offer(snapshot, found))
            .collect(),
        allocated_resources: to_wire(
            entry.map_or(&nothing, |entry| &entry.used),
            Format::Endpoint,
        ),
        offered_resources: to_wire(
            entry.map_or(&nothing, |entry| &entry.offered),
            Format::Endpoint,
        ),
        offer_constraints: Some(constraints.cloned().unwrap_or_default()),
        ..get_frameworks::Framework::default()
    }
}

fn offer(snapshot: &Snapshot, offer: &Offer) -> v1::Offer {
    // Agents are in the order of their ids.
    let agent_index = snapshot
        .agents
        .binary_search_by(|agent| agent.id().cmp(&offer.agent_id));
    let info = agent_index
        .ok()
        .and_then(|agent_index| snapshot.agents.get(agent_index))
        .map(|agent| &agent.profile.info);
    v1::Offer {
        id: (&offer.id).into(),
        framework_id: (&offer.framework_id).into(),
        agent_id: (&offer.agent_id).into(),
        hostname: info.map(|info| info.hostname.clone()).unwrap_or_default(),
        resources: to_wire(&offer.resources, Format::PostRefinement),
        attributes: info.map(|info| info.attributes.clone()).unwrap_or_default(),
        allocation_info: Some(v1::resource::AllocationInfo {
            role: Some(offer.role.to_string()),
        }),
        ..v1::Offer::default()
    }
}

fn executors(snapshot: &Snapshot) -> response::GetExecutors {
    let executors = snapshot
        .agents
        .iter()
        .flat_map(|agent| agent.executors.values());
    response::GetExecutors {
        executors: executors
            .map(|executor| get_executors::Executor {
                executor_info: ExecutorInfo::decode(executor.info.clone()).unwrap_or_default(),
                agent_id: (&executor.agent_id).into(),
            })
            .collect(),
        ..response::GetExecutors::default()
    }
}

fn tasks(snapshot: &Snapshot) -> response::GetTasks {
    let live = snapshot
        .agents
        .iter()
        .flat_map(|agent| agent.tasks.values());
    let frameworks = || {
        snapshot
            .frameworks
            .iter()
            .chain(&snapshot.completed_frameworks)
    };
    response::GetTasks {
        tasks: live.map(|record| task(record)).collect(),
        unreachable_tasks: frameworks()
            .flat_map(|framework| framework.unreachable.iter())
            .map(|record| task(record))
            .collect(),
        completed_tasks: frameworks()
            .flat_map(|framework| framework.completed.iter())
            .map(|record| task(record))
            .collect(),
        ..response::GetTasks::default()
    }
}

pub(super) fn task(record: &TaskRecord) -> v1::Task {
    let mut task = record.to_wire();
    task.resources = to_wire(&record.resources, Format::PostRefinement);
    task
}
