//! The answers to the operator API's questions, from a snapshot.

use std::sync::Arc;

use meseta_proto::mesos::v1::master::Response;
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::master::response::{
    self, Type, get_agents, get_executors, get_frameworks,
};
use meseta_proto::mesos::v1::{self, ExecutorInfo, Flag, TimeInfo, VersionInfo, value};
use meseta_resources::{Resources, Role};
use prost::Message;

use crate::core::{AgentView, Drain, Format, FrameworkView, Offer, Snapshot, TaskRecord, to_wire};
use crate::http::Site;
use crate::http::views::{self, Index};

/// What is asked for; `None` for a call that asks nothing or is not served.
pub(super) fn answer(site: &Site, snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    about_the_master(site, snapshot, kind)
        .or_else(|| about_policies(snapshot, kind))
        .or_else(|| about_the_cluster(snapshot, kind))
}

fn response(kind: Type, body: Response) -> Option<Response> {
    Some(Response {
        r#type: Some(kind.into()),
        ..body
    })
}

fn about_the_master(site: &Site, snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    let empty = Response::default();
    match kind {
        CallType::GetHealth => {
            let get_health = Some(response::GetHealth { healthy: true });
            response(
                Type::GetHealth,
                Response {
                    get_health,
                    ..empty
                },
            )
        }
        CallType::GetVersion => {
            let version_info = VersionInfo {
                version: site.identity.version.clone(),
                build_date: Some("unknown".to_owned()),
                build_time: Some(0.0),
                build_user: Some("meseta".to_owned()),
                ..VersionInfo::default()
            };
            let get_version = Some(response::GetVersion { version_info });
            response(
                Type::GetVersion,
                Response {
                    get_version,
                    ..empty
                },
            )
        }
        CallType::GetFlags => {
            let flag = |(name, value): (&String, &String)| Flag {
                name: name.clone(),
                value: Some(value.clone()),
            };
            let flags = site.flags.iter().map(flag).collect();
            let get_flags = Some(response::GetFlags { flags });
            response(Type::GetFlags, Response { get_flags, ..empty })
        }
        CallType::GetMetrics => {
            let metric = |(name, value)| v1::Metric {
                name,
                value: Some(value),
            };
            let metrics = site
                .metrics
                .mesos(snapshot)
                .into_iter()
                .map(metric)
                .collect();
            let get_metrics = Some(response::GetMetrics { metrics });
            response(
                Type::GetMetrics,
                Response {
                    get_metrics,
                    ..empty
                },
            )
        }
        CallType::GetMaster => {
            let started = snapshot.started.as_secs_f64();
            let get_master = Some(response::GetMaster {
                master_info: Some(snapshot.identity.to_wire()),
                start_time: Some(started),
                elected_time: Some(started),
            });
            response(
                Type::GetMaster,
                Response {
                    get_master,
                    ..empty
                },
            )
        }
        _ => None,
    }
}

/// What operators have laid down: operations, maintenance, roles, weights, quota.
fn about_policies(snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    let empty = Response::default();
    match kind {
        CallType::GetOperations => {
            let operations = snapshot.agents.iter();
            let get_operations = Some(response::GetOperations {
                operations: operations
                    .flat_map(|agent| agent.operations.values())
                    .map(|operation| operation.to_wire())
                    .collect(),
            });
            response(
                Type::GetOperations,
                Response {
                    get_operations,
                    ..empty
                },
            )
        }
        CallType::GetMaintenanceStatus => {
            let get_maintenance_status = Some(response::GetMaintenanceStatus {
                status: views::maintenance_status(snapshot),
            });
            response(
                Type::GetMaintenanceStatus,
                Response {
                    get_maintenance_status,
                    ..empty
                },
            )
        }
        CallType::GetMaintenanceSchedule => {
            let get_maintenance_schedule = Some(response::GetMaintenanceSchedule {
                schedule: views::maintenance_schedule(snapshot),
            });
            response(
                Type::GetMaintenanceSchedule,
                Response {
                    get_maintenance_schedule,
                    ..empty
                },
            )
        }
        CallType::GetRoles => {
            let get_roles = Some(roles(snapshot));
            response(Type::GetRoles, Response { get_roles, ..empty })
        }
        CallType::GetWeights => {
            let get_weights = Some(response::GetWeights {
                weight_infos: views::weights(snapshot),
            });
            response(
                Type::GetWeights,
                Response {
                    get_weights,
                    ..empty
                },
            )
        }
        CallType::GetQuota => {
            let get_quota = Some(response::GetQuota {
                status: views::quota_status(snapshot),
            });
            response(Type::GetQuota, Response { get_quota, ..empty })
        }
        _ => None,
    }
}

/// What is there: agents, frameworks, executors, tasks.
fn about_the_cluster(snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    let empty = Response::default();
    match kind {
        CallType::GetAgents => {
            let get_agents = Some(agents(snapshot));
            response(
                Type::GetAgents,
                Response {
                    get_agents,
                    ..empty
                },
            )
        }
        CallType::GetFrameworks => {
            let get_frameworks = Some(frameworks(snapshot));
            response(
                Type::GetFrameworks,
                Response {
                    get_frameworks,
                    ..empty
                },
            )
        }
        CallType::GetExecutors => {
            let get_executors = Some(executors(snapshot));
            response(
                Type::GetExecutors,
                Response {
                    get_executors,
                    ..empty
                },
            )
        }
        CallType::GetTasks => {
            let get_tasks = Some(tasks(snapshot));
            response(Type::GetTasks, Response { get_tasks, ..empty })
        }
        CallType::GetState => {
            let get_state = Some(state(snapshot));
            response(Type::GetState, Response { get_state, ..empty })
        }
        _ => None,
    }
}

/// The roles in use, with what they hold of the resources that every agent has.
fn roles(snapshot: &Snapshot) -> response::GetRoles {
    const NAMES: [&str; 4] = ["cpus", "disk", "gpus", "mem"];
    let role = |(role, tally): (Role, views::Tally<'_>)| {
        let held = &tally.allocated + &tally.offered;
        let resource = |name: &str| {
            let amount = held.get(name);
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
            .filter(|(role, _)| snapshot.shows_role(role))
            .map(role)
            .collect(),
    }
}

fn time(since: std::time::Duration) -> TimeInfo {
    TimeInfo {
        nanoseconds: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
    }
}

/// GET_STATE.
pub(super) fn state(snapshot: &Snapshot) -> response::GetState {
    response::GetState {
        get_tasks: Some(tasks(snapshot)),
        get_executors: Some(executors(snapshot)),
        get_frameworks: Some(frameworks(snapshot)),
        get_agents: Some(agents(snapshot)),
    }
}

fn agents(snapshot: &Snapshot) -> response::GetAgents {
    response::GetAgents {
        agents: snapshot.agents.iter().map(agent).collect(),
        recovered_agents: snapshot
            .recovered_agents
            .iter()
            .map(|(_, info)| (**info).clone())
            .collect(),
    }
}

pub(super) fn agent(agent: &AgentView) -> get_agents::Agent {
    let profile = &agent.profile;
    let draining = agent.deactivation.as_ref().filter(|d| d.drain.is_some());
    get_agents::Agent {
        agent_info: profile.info.clone(),
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
        total_resources: to_wire(&profile.total, Format::Endpoint),
        allocated_resources: to_wire(&agent.used_total(), Format::Endpoint),
        offered_resources: to_wire(&agent.offered, Format::Endpoint),
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
    let index = Index::of(snapshot);
    let all = |list: &[Arc<FrameworkView>]| {
        list.iter()
            .map(|view| framework(snapshot, &index, view))
            .collect()
    };
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

fn framework(
    snapshot: &Snapshot,
    index: &Index<'_>,
    framework: &FrameworkView,
) -> get_frameworks::Framework {
    let entry = index.get(&framework.id);
    let nothing = Resources::new();
    let constraints = framework.offer_constraints.as_deref();
    get_frameworks::Framework {
        framework_info: (*framework.info).clone(),
        active: framework.active,
        connected: framework.connected,
        recovered: framework.recovered,
        registered_time: Some(time(framework.registered)),
        reregistered_time: Some(time(framework.reregistered.unwrap_or(framework.registered))),
        unregistered_time: framework.unregistered.map(time),
        offers: entry
            .map_or(&[][..], |entry| &entry.offers)
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
    let place = snapshot
        .agents
        .binary_search_by(|agent| agent.id().cmp(&offer.agent_id));
    let info = place
        .ok()
        .and_then(|place| snapshot.agents.get(place))
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
