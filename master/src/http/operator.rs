//! `/api/v1`: the operator API.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response as HttpResponse};
use http::{StatusCode, header};
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::master::response::{
    self, Type, get_agents, get_executors, get_frameworks,
};
use meseta_proto::mesos::v1::master::{Call, Response};
use meseta_proto::mesos::v1::{self, ExecutorInfo, Flag, TimeInfo, VersionInfo};
use meseta_resources::Resources;
use prost::Message;

use super::views::Index;
use super::{BODY_MAX, Site, body, reservations, text};
use crate::core::{AgentView, Format, FrameworkView, Offer, Snapshot, TaskRecord, to_wire};

pub(super) async fn handle(site: &Arc<Site>, request: Request) -> HttpResponse {
    let (parts, request_body) = request.into_parts();
    let media = match media::content_type(&parts.headers, &MediaType::MESSAGES) {
        Ok(media) => media,
        Err(error) => return text(error.status(), error.to_string()),
    };
    let bytes = match body::read(request_body, BODY_MAX).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(),
    };
    let call = match media::decode::<Call>(media, &bytes) {
        Ok(call) => call,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let kind = call.r#type.and_then(|kind| CallType::try_from(kind).ok());
    let Some(kind) = kind else {
        let message = "Failed to validate master::Call: Expecting 'type' to be present";
        return text(StatusCode::BAD_REQUEST, message);
    };
    if let Err(part) = check(kind, &call) {
        let message = format!("Failed to validate master::Call: Expecting '{part}' to be present");
        return text(StatusCode::BAD_REQUEST, message);
    }
    let accept = match media::accept(&parts.headers) {
        Ok(accept) => accept,
        Err(error) => return text(error.status(), error.to_string()),
    };
    if kind == CallType::Teardown {
        return teardown(site, call).await;
    }
    if reservations::CALLS.contains(&kind) {
        return match reservations::of_call(kind, call) {
            Some((agent, operation)) => reservations::call(site, agent, operation).await,
            None => text(StatusCode::BAD_REQUEST, "Failed to validate master::Call"),
        };
    }
    let snapshot = match site.handle.snapshot().await {
        Ok(snapshot) => snapshot,
        Err(closed) => return closed.into(),
    };
    let site = site.clone();
    let rendered = tokio::task::spawn_blocking(move || {
        let response = answer(&site, &snapshot, kind)?;
        Some(media::encode(accept, &response))
    });
    match rendered.await {
        Ok(Some(body)) => ([(header::CONTENT_TYPE, accept.header_value())], body).into_response(),
        Ok(None) => text(
            StatusCode::NOT_IMPLEMENTED,
            format!(
                "{} is not supported by this version of the master",
                kind.as_str_name()
            ),
        ),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Names the body that a call lacks.
fn check(kind: CallType, call: &Call) -> Result<(), &'static str> {
    let (present, part) = match kind {
        CallType::ReadFile => (call.read_file.is_some(), "read_file"),
        CallType::ListFiles => (call.list_files.is_some(), "list_files"),
        CallType::SetLoggingLevel => (call.set_logging_level.is_some(), "set_logging_level"),
        CallType::Teardown => (call.teardown.is_some(), "teardown"),
        CallType::UpdateWeights => (call.update_weights.is_some(), "update_weights"),
        CallType::MarkAgentGone => (call.mark_agent_gone.is_some(), "mark_agent_gone"),
        CallType::DrainAgent => (call.drain_agent.is_some(), "drain_agent"),
        CallType::ReserveResources => (call.reserve_resources.is_some(), "reserve_resources"),
        CallType::UnreserveResources => (call.unreserve_resources.is_some(), "unreserve_resources"),
        CallType::CreateVolumes => (call.create_volumes.is_some(), "create_volumes"),
        CallType::DestroyVolumes => (call.destroy_volumes.is_some(), "destroy_volumes"),
        CallType::GrowVolume => match &call.grow_volume {
            None => (false, "grow_volume"),
            Some(body) => (body.agent_id.is_some(), "agent_id"),
        },
        CallType::ShrinkVolume => match &call.shrink_volume {
            None => (false, "shrink_volume"),
            Some(body) => (body.agent_id.is_some(), "agent_id"),
        },
        CallType::UpdateQuota => (call.update_quota.is_some(), "update_quota"),
        _ => (true, ""),
    };
    if present { Ok(()) } else { Err(part) }
}

async fn teardown(site: &Arc<Site>, call: Call) -> HttpResponse {
    use crate::core::Answer;
    let id = call
        .teardown
        .map(|teardown| teardown.framework_id.value)
        .unwrap_or_default();
    match site.handle.teardown(id).await {
        Ok(Answer::Accepted | Answer::Done) => StatusCode::OK.into_response(),
        Ok(Answer::BadRequest(message)) => text(StatusCode::BAD_REQUEST, message),
        Ok(Answer::Forbidden(message)) => text(StatusCode::FORBIDDEN, message),
        Ok(Answer::Conflict(message)) => text(StatusCode::CONFLICT, message),
        Ok(Answer::NotImplemented(message)) => text(StatusCode::NOT_IMPLEMENTED, message),
        Err(closed) => closed.into(),
    }
}

fn answer(site: &Site, snapshot: &Snapshot, kind: CallType) -> Option<Response> {
    about_the_master(site, snapshot, kind).or_else(|| about_the_cluster(snapshot, kind))
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
        CallType::GetTasks => {
            let get_tasks = Some(tasks(snapshot));
            response(Type::GetTasks, Response { get_tasks, ..empty })
        }
        CallType::GetState => {
            let get_state = Some(response::GetState {
                get_tasks: Some(tasks(snapshot)),
                get_executors: Some(executors(snapshot)),
                get_frameworks: Some(frameworks(snapshot)),
                get_agents: Some(agents(snapshot)),
            });
            response(Type::GetState, Response { get_state, ..empty })
        }
        _ => None,
    }
}

fn time(since: std::time::Duration) -> TimeInfo {
    TimeInfo {
        nanoseconds: i64::try_from(since.as_nanos()).unwrap_or(i64::MAX),
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

fn agent(agent: &AgentView) -> get_agents::Agent {
    let profile = &agent.profile;
    get_agents::Agent {
        agent_info: profile.info.clone(),
        active: agent.connected,
        deactivated: Some(false),
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

fn task(record: &TaskRecord) -> v1::Task {
    let mut task = record.to_wire();
    task.resources = to_wire(&record.resources, Format::PostRefinement);
    task
}
