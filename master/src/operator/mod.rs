//! The operator API, apart from how it is spoken: which call asks what, and its answer.
//!
//! Entered through [`check`] and then [`execute`], by HTTP and gRPC alike. Questions are answered from a
//! snapshot, requests by the core. Invariant: nothing is decided here.

mod answers;
pub(crate) mod lists;
pub(crate) mod stream;

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1::WeightInfo;
use meseta_proto::mesos::v1::master::call::{DrainAgent, Type as CallType};
use meseta_proto::mesos::v1::master::response::{self, Type as ResponseType};
use meseta_proto::mesos::v1::master::{Call, Response};
use meseta_proto::transport::door::Caller;
use meseta_proto::transport::files::Crowded;

use crate::core::{Answer, Request};
use crate::files::{Files, FilesError};
use crate::http::whole::Turn;
use crate::http::{Site, reservations};
use crate::permission;
use crate::shell::Closed;

/// What came of a call.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Of one that asks nothing back.
    Done(Answer),
    /// With the turn that it was made in, if that is to be kept until it is sent.
    Response(Box<Response>, Option<Turn>),
}

/// Whether an answer grows with the cluster.
const fn is_large(kind: CallType) -> bool {
    matches!(
        kind,
        CallType::GetState
            | CallType::GetAgents
            | CallType::GetFrameworks
            | CallType::GetExecutors
            | CallType::GetOperations
            | CallType::GetTasks
            | CallType::GetMetrics
    )
}

/// Says what a call is, if it has the parts that it needs.
pub(crate) fn check(call: Call) -> Result<(CallType, Call), String> {
    const FAILED: &str = "Failed to validate master::Call: Expecting";
    let kind = call.r#type.and_then(|kind| CallType::try_from(kind).ok());
    let Some(kind) = kind.filter(|kind| *kind != CallType::Unknown) else {
        return Err(format!("{FAILED} 'type' to be present"));
    };
    match missing(kind, &call) {
        Some(part) => Err(format!("{FAILED} '{part}' to be present")),
        None => Ok((kind, call)),
    }
}

/// Names the body that a call lacks.
fn missing(kind: CallType, call: &Call) -> Option<&'static str> {
    let (present, part) = match kind {
        CallType::Unknown
        | CallType::GetHealth
        | CallType::GetFlags
        | CallType::GetVersion
        | CallType::GetLoggingLevel
        | CallType::GetState
        | CallType::GetAgents
        | CallType::GetFrameworks
        | CallType::GetExecutors
        | CallType::GetOperations
        | CallType::GetTasks
        | CallType::GetRoles
        | CallType::GetWeights
        | CallType::GetMaster
        | CallType::Subscribe
        | CallType::GetMaintenanceStatus
        | CallType::GetMaintenanceSchedule
        | CallType::GetQuota => return None,
        CallType::GetMetrics => (call.get_metrics.is_some(), "get_metrics"),
        CallType::SetLoggingLevel => (call.set_logging_level.is_some(), "set_logging_level"),
        CallType::ListFiles => (call.list_files.is_some(), "list_files"),
        CallType::ReadFile => (call.read_file.is_some(), "read_file"),
        CallType::UpdateWeights => (call.update_weights.is_some(), "update_weights"),
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
        CallType::UpdateMaintenanceSchedule => (
            call.update_maintenance_schedule.is_some(),
            "update_maintenance_schedule",
        ),
        CallType::StartMaintenance => (call.start_maintenance.is_some(), "start_maintenance"),
        CallType::StopMaintenance => (call.stop_maintenance.is_some(), "stop_maintenance"),
        CallType::DrainAgent => (call.drain_agent.is_some(), "drain_agent"),
        CallType::DeactivateAgent => (call.deactivate_agent.is_some(), "deactivate_agent"),
        CallType::ReactivateAgent => (call.reactivate_agent.is_some(), "reactivate_agent"),
        CallType::UpdateQuota => (call.update_quota.is_some(), "update_quota"),
        CallType::SetQuota => (call.set_quota.is_some(), "set_quota"),
        CallType::RemoveQuota => (call.remove_quota.is_some(), "remove_quota"),
        CallType::Teardown => (call.teardown.is_some(), "teardown"),
        CallType::MarkAgentGone => (call.mark_agent_gone.is_some(), "mark_agent_gone"),
    };
    (!present).then_some(part)
}

/// Carries a checked call out.
pub(crate) async fn execute(
    site: &Arc<Site>,
    caller: &Caller,
    kind: CallType,
    call: Call,
) -> Result<Outcome, Closed> {
    if let Err(forbidden) = permission::check(caller, permission::question(kind)) {
        return Ok(Outcome::Done(Answer::Forbidden(forbidden.to_string())));
    }
    if kind == CallType::Teardown {
        let id = call.teardown.map(|teardown| teardown.framework_id.value);
        let answer = site.handle.teardown(caller, id.unwrap_or_default()).await?;
        return Ok(Outcome::Done(answer));
    }
    if reservations::CALLS.contains(&kind) {
        let answer = match reservations::of_call(kind, call) {
            Some((agent, operation)) => site.handle.operate(caller, agent, operation).await?,
            None => Answer::BadRequest("Failed to validate master::Call".to_owned()),
        };
        return Ok(Outcome::Done(answer));
    }
    if matches!(kind, CallType::ListFiles | CallType::ReadFile) {
        let files = site.files.clone();
        let read = site.file_reads.run(move || file_answer(&files, call)).await;
        let crowded = |crowded: Crowded| Outcome::Done(Answer::Unavailable(crowded.to_string()));
        return Ok(read.unwrap_or_else(crowded));
    }
    if let Some(set) = call.set_logging_level {
        let duration = u64::try_from(set.duration.nanoseconds).map(Duration::from_nanos);
        return Ok(Outcome::Done(match duration {
            Ok(duration) => {
                site.raise_logging(caller, set.level, duration);
                Answer::Done
            }
            Err(_) => Answer::BadRequest(
                "Failed to set the logging level: 'duration' must not be negative".to_owned(),
            ),
        }));
    }
    // Before the snapshot: who waits holds nothing.
    let turn = match is_large(kind) {
        true => Some(site.wholes.turn().await),
        false => None,
    };
    if kind == CallType::GetMetrics {
        let (snapshot, measures) = site.handle.measures(caller).await?;
        let site = site.clone();
        let rendering =
            tokio::task::spawn_blocking(move || answers::metrics(&site, &snapshot, &measures));
        let response = rendering.await.map_err(|_| Closed)?;
        return Ok(Outcome::Response(Box::new(response), turn));
    }
    if let Some(request) = request(call) {
        let request = match request {
            Ok(request) => request,
            Err(message) => return Ok(Outcome::Done(Answer::BadRequest(message))),
        };
        let answer = site.handle.administer(caller, request).await?;
        return Ok(Outcome::Done(explained(kind, answer)));
    }
    let snapshot = site.handle.view(caller).await?;
    let site = site.clone();
    let rendering = tokio::task::spawn_blocking(move || answers::answer(&site, &snapshot, kind));
    let response = rendering.await.map_err(|_| Closed)?;
    Ok(match response {
        Some(response) => Outcome::Response(Box::new(response), turn),
        None => Outcome::Done(Answer::NotImplemented(format!(
            "{} is not supported by this version of the master",
            kind.as_str_name()
        ))),
    })
}

/// What a call asks of the core, or why not; `None` if it only asks how things are.
fn request(call: Call) -> Option<Result<Request, String>> {
    if let Some(set) = call.set_quota {
        return Some(Ok(Request::SetQuota(Box::new(set.quota_request))));
    }
    if let Some(remove) = call.remove_quota {
        return Some(Ok(Request::RemoveQuota { role: remove.role }));
    }
    if let Some(update) = call.update_quota {
        return Some(Ok(Request::UpdateQuota {
            force: update.force.unwrap_or_default(),
            configs: update.quota_configs,
        }));
    }
    if let Some(update) = call.update_weights {
        return Some(Ok(weights(update.weight_infos)));
    }
    if let Some(update) = call.update_maintenance_schedule {
        return Some(Ok(Request::UpdateSchedule(Box::new(update.schedule))));
    }
    if let Some(start) = call.start_maintenance {
        return Some(Ok(Request::StartMaintenance(start.machines)));
    }
    if let Some(stop) = call.stop_maintenance {
        return Some(Ok(Request::StopMaintenance(stop.machines)));
    }
    if let Some(drain) = call.drain_agent {
        return Some(drain_request(drain));
    }
    if let Some(body) = call.deactivate_agent {
        let agent_id = body.agent_id.value;
        return Some(Ok(Request::DeactivateAgent { agent_id }));
    }
    if let Some(body) = call.reactivate_agent {
        let agent_id = body.agent_id.value;
        return Some(Ok(Request::ReactivateAgent { agent_id }));
    }
    if let Some(body) = call.mark_agent_gone {
        let agent_id = body.agent_id.value;
        return Some(Ok(Request::MarkAgentGone { agent_id }));
    }
    None
}

fn drain_request(drain: DrainAgent) -> Result<Request, String> {
    let max_grace = drain.max_grace_period.map(|grace| {
        let seconds = u64::try_from(grace.seconds);
        let nanos = u32::try_from(grace.nanos);
        match (seconds, nanos) {
            (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
            _ => Err("Failed to drain agent: 'max_grace_period' must not be negative".to_owned()),
        }
    });
    Ok(Request::DrainAgent {
        agent_id: drain.agent_id.value,
        max_grace: max_grace.transpose()?,
        mark_gone: drain.mark_gone.unwrap_or_default(),
    })
}

/// LIST_FILES and READ_FILE.
fn file_answer(files: &Files, call: Call) -> Outcome {
    let result = if let Some(list) = call.list_files {
        files.list(&list.path).map(|file_infos| Response {
            r#type: Some(ResponseType::ListFiles.into()),
            list_files: Some(response::ListFiles { file_infos }),
            ..Response::default()
        })
    } else {
        let read = call.read_file.unwrap_or_default();
        let part = files.read(&read.path, read.offset, read.length);
        part.map(|part| Response {
            r#type: Some(ResponseType::ReadFile.into()),
            read_file: Some(response::ReadFile {
                size: part.size,
                data: part.data,
            }),
            ..Response::default()
        })
    };
    match result {
        Ok(response) => Outcome::Response(Box::new(response), None),
        Err(FilesError::NotFound) => Outcome::Done(Answer::NotFound(String::new())),
        Err(error) => Outcome::Done(Answer::Unavailable(error.to_string())),
    }
}

/// The request that sets these weights.
pub(crate) fn weights(infos: Vec<WeightInfo>) -> Request {
    let weights = infos
        .into_iter()
        .map(|info| (info.role.unwrap_or_default(), info.weight));
    Request::UpdateWeights(weights.collect())
}

/// Says of what a bare reason is the reason.
fn explained(kind: CallType, answer: Answer) -> Answer {
    match (kind, answer) {
        (CallType::RemoveQuota, Answer::BadRequest(reason)) => {
            Answer::BadRequest(format!("Failed to remove quota: {reason}"))
        }
        (_, answer) => answer,
    }
}
