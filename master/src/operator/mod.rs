//! The operator API independent of its transport: the meaning of each call, and its answer.
//!
//! Entered through [`check`] and then [`execute`], by HTTP and gRPC alike. A snapshot answers queries, and the core
//! answers requests. Invariant: no decision is made here.

mod answers;
pub(crate) mod lists;
pub(crate) mod reservations;

use std::sync::Arc;
use std::time::Duration;

use meseta_daemon::authentication::Caller;
use meseta_daemon::background;
use meseta_daemon::fair_semaphore::QueueFull;
use meseta_proto::mesos::v1::WeightInfo;
use meseta_proto::mesos::v1::master::call::{self, DrainAgent, Type as CallType};
use meseta_proto::mesos::v1::master::response::{self, Type as ResponseType};
use meseta_proto::mesos::v1::master::{Call, Response};
use meseta_proto::mesos::v1::offer::Operation;
use meseta_proto::{Invalid, invalid};

use crate::buffered_response::ResponsePermit;
use crate::closed::Closed;
use crate::context::Context;
use crate::core::{Administration, Answer};
use crate::files::{Files, FilesError};
use crate::permission;
use crate::view_cache::ViewScope;

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// The answer to a request.
    Done(Answer),
    /// The response to a query, with the permit to hold until it is sent.
    Response(Box<Response>, Option<ResponsePermit>),
}

/// Whether the size of the answer grows with the cluster.
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
            | CallType::GetRoles
            | CallType::GetQuota
            | CallType::GetMaintenanceSchedule
            | CallType::GetMaintenanceStatus
    )
}

/// The part of the cluster that a query reads.
const fn view_scope(kind: CallType) -> ViewScope {
    match kind {
        CallType::GetHealth
        | CallType::GetVersion
        | CallType::GetFlags
        | CallType::GetLoggingLevel
        | CallType::GetMaster
        | CallType::GetWeights
        | CallType::GetQuota
        | CallType::GetMaintenanceSchedule => ViewScope::Policies,
        _ => ViewScope::Cluster,
    }
}

/// A parsed call: its type, with the body of that type and no other.
#[derive(Debug)]
pub(crate) enum Checked {
    Subscribe,
    /// A query answered from a snapshot, or from the master's own data.
    Question,
    Metrics,
    SetLoggingLevel(call::SetLoggingLevel),
    ListFiles(call::ListFiles),
    ReadFile(call::ReadFile),
    Teardown {
        framework_id: String,
    },
    Operate {
        agent_id: String,
        operation: Box<Operation>,
    },
    /// A request, or the reason why it is invalid.
    Request(Result<Administration, Invalid>),
}

/// Parses a call and checks that it has the necessary parts.
pub(crate) fn check(call: Call) -> Result<(CallType, Checked), Invalid> {
    const FAILED: &str = "Failed to validate master::Call: Expecting";
    let kind = call.r#type.and_then(|kind| CallType::try_from(kind).ok());
    let Some(kind) = kind.filter(|kind| *kind != CallType::Unknown) else {
        return Err(invalid!("{FAILED} 'type' to be present"));
    };
    match checked(kind, call) {
        Ok(checked) => Ok((kind, checked)),
        Err(part) => Err(invalid!("{FAILED} '{part}' to be present")),
    }
}

/// Takes the body of a type, or returns its name if it is missing.
fn checked(kind: CallType, call: Call) -> Result<Checked, &'static str> {
    Ok(match kind {
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
        | CallType::GetMaintenanceStatus
        | CallType::GetMaintenanceSchedule
        | CallType::GetQuota => Checked::Question,
        CallType::Subscribe => Checked::Subscribe,
        CallType::GetMetrics => {
            call.get_metrics.ok_or("get_metrics")?;
            Checked::Metrics
        }
        CallType::SetLoggingLevel => {
            Checked::SetLoggingLevel(call.set_logging_level.ok_or("set_logging_level")?)
        }
        CallType::ListFiles => Checked::ListFiles(call.list_files.ok_or("list_files")?),
        CallType::ReadFile => Checked::ReadFile(call.read_file.ok_or("read_file")?),
        CallType::Teardown => Checked::Teardown {
            framework_id: call.teardown.ok_or("teardown")?.framework_id.value,
        },
        CallType::ReserveResources
        | CallType::UnreserveResources
        | CallType::CreateVolumes
        | CallType::DestroyVolumes
        | CallType::GrowVolume
        | CallType::ShrinkVolume => {
            let (agent_id, operation) = reservations::of_call(kind, call)?;
            Checked::Operate {
                agent_id,
                operation: Box::new(operation),
            }
        }
        CallType::DrainAgent => {
            Checked::Request(drain_request(call.drain_agent.ok_or("drain_agent")?))
        }
        CallType::UpdateWeights
        | CallType::UpdateMaintenanceSchedule
        | CallType::StartMaintenance
        | CallType::StopMaintenance
        | CallType::DeactivateAgent
        | CallType::ReactivateAgent
        | CallType::UpdateQuota
        | CallType::SetQuota
        | CallType::RemoveQuota
        | CallType::MarkAgentGone => Checked::Request(Ok(administration(kind, call)?)),
    })
}

/// The request to the core; the error names a missing body.
fn administration(kind: CallType, call: Call) -> Result<Administration, &'static str> {
    Ok(match kind {
        CallType::SetQuota => {
            Administration::SetQuota(Box::new(call.set_quota.ok_or("set_quota")?.quota_request))
        }
        CallType::RemoveQuota => Administration::RemoveQuota {
            role: call.remove_quota.ok_or("remove_quota")?.role,
        },
        CallType::UpdateQuota => {
            let update = call.update_quota.ok_or("update_quota")?;
            Administration::UpdateQuota {
                force: update.force.unwrap_or_default(),
                configs: update.quota_configs,
            }
        }
        CallType::UpdateWeights => {
            weights(call.update_weights.ok_or("update_weights")?.weight_infos)
        }
        CallType::UpdateMaintenanceSchedule => {
            let update = call.update_maintenance_schedule;
            let update = update.ok_or("update_maintenance_schedule")?;
            Administration::UpdateSchedule(Box::new(update.schedule))
        }
        CallType::StartMaintenance => Administration::StartMaintenance(
            call.start_maintenance.ok_or("start_maintenance")?.machines,
        ),
        CallType::StopMaintenance => Administration::StopMaintenance(
            call.stop_maintenance.ok_or("stop_maintenance")?.machines,
        ),
        CallType::DeactivateAgent => Administration::DeactivateAgent {
            agent_id: call
                .deactivate_agent
                .ok_or("deactivate_agent")?
                .agent_id
                .value,
        },
        CallType::ReactivateAgent => Administration::ReactivateAgent {
            agent_id: call
                .reactivate_agent
                .ok_or("reactivate_agent")?
                .agent_id
                .value,
        },
        CallType::MarkAgentGone => Administration::MarkAgentGone {
            agent_id: call
                .mark_agent_gone
                .ok_or("mark_agent_gone")?
                .agent_id
                .value,
        },
        _ => return Err("type"),
    })
}

/// Carries out a checked call.
pub(crate) async fn execute(
    context: &Arc<Context>,
    caller: &Caller,
    kind: CallType,
    call: Checked,
) -> Result<CallOutcome, Closed> {
    if let Err(forbidden) = permission::check(caller, permission::question(kind)) {
        return Ok(CallOutcome::Done(Answer::Forbidden(forbidden.to_string())));
    }
    match call {
        Checked::Teardown { framework_id } => {
            let answer = context.handle.teardown(caller, framework_id).await?;
            Ok(CallOutcome::Done(answer))
        }
        Checked::Operate {
            agent_id,
            operation,
        } => {
            let answer = context.handle.operate(caller, agent_id, *operation).await?;
            Ok(CallOutcome::Done(answer))
        }
        Checked::ListFiles(list) => {
            Ok(answer_of_files(context, move |files| list_files(files, &list)).await)
        }
        Checked::ReadFile(read) => {
            Ok(answer_of_files(context, move |files| read_file(files, &read)).await)
        }
        Checked::SetLoggingLevel(set) => {
            Ok(CallOutcome::Done(set_logging_level(context, caller, &set)))
        }
        Checked::Request(Err(invalid)) => Ok(CallOutcome::Done(invalid.into())),
        Checked::Request(Ok(request)) => {
            let answer = context.handle.administer(caller, request).await?;
            Ok(CallOutcome::Done(explained(kind, answer)))
        }
        Checked::Metrics => metrics(context, caller).await,
        // Only the transports that can send a stream open one.
        Checked::Subscribe | Checked::Question => question(context, caller, kind).await,
    }
}

fn set_logging_level(context: &Context, caller: &Caller, set: &call::SetLoggingLevel) -> Answer {
    match u64::try_from(set.duration.nanoseconds).map(Duration::from_nanos) {
        Ok(duration) => {
            context.raise_logging(caller, set.level, duration);
            Answer::Done
        }
        Err(_) => Answer::BadRequest(
            "Failed to set the logging level: 'duration' must not be negative".to_owned(),
        ),
    }
}

async fn metrics(context: &Arc<Context>, caller: &Caller) -> Result<CallOutcome, Closed> {
    // Before the snapshot: a waiting caller holds no memory.
    let permit = match context.buffered_responses.acquire(caller).await {
        Ok(permit) => permit,
        Err(crowded) => return Ok(unavailable(crowded)),
    };
    let measured = context.handle.measured(caller).await?;
    let context = context.clone();
    // The permit moves with the work, which continues when the caller leaves.
    let rendering = background::spawn(move || {
        let response = answers::metrics(&context, &measured);
        (response, permit)
    });
    let (response, permit) = rendering.await.map_err(|_| Closed)?;
    Ok(CallOutcome::Response(Box::new(response), Some(permit)))
}

async fn question(
    context: &Arc<Context>,
    caller: &Caller,
    kind: CallType,
) -> Result<CallOutcome, Closed> {
    // For the same reason as above.
    let permit = match is_large(kind) {
        true => match context.buffered_responses.acquire(caller).await {
            Ok(permit) => Some(permit),
            Err(crowded) => return Ok(unavailable(crowded)),
        },
        false => None,
    };
    let snapshot = context.handle.view(caller, view_scope(kind)).await?;
    let context = context.clone();
    let rendering = background::spawn(move || {
        let response = answers::answer(&context, &snapshot, kind);
        (response, permit)
    });
    let (response, permit) = rendering.await.map_err(|_| Closed)?;
    Ok(match response {
        Some(response) => CallOutcome::Response(Box::new(response), permit),
        None => CallOutcome::Done(Answer::NotImplemented(format!(
            "{} is not supported by this version of the master",
            kind.as_str_name()
        ))),
    })
}

/// The outcome that asks the caller to retry.
fn unavailable(crowded: QueueFull) -> CallOutcome {
    CallOutcome::Done(Answer::Unavailable(crowded.to_string()))
}

fn drain_request(drain: DrainAgent) -> Result<Administration, Invalid> {
    let max_grace = drain.max_grace_period.map(|grace| {
        let seconds = u64::try_from(grace.seconds);
        let nanos = u32::try_from(grace.nanos);
        match (seconds, nanos) {
            (Ok(seconds), Ok(nanos)) if nanos < 1_000_000_000 => Ok(Duration::new(seconds, nanos)),
            _ => Err(invalid!(
                "Failed to drain agent: 'max_grace_period' must not be negative"
            )),
        }
    });
    Ok(Administration::DrainAgent {
        agent_id: drain.agent_id.value,
        max_grace: max_grace.transpose()?,
        mark_gone: drain.mark_gone.unwrap_or_default(),
    })
}

/// Reads files on a thread that may block.
async fn answer_of_files(
    context: &Context,
    read: impl FnOnce(&Files) -> Result<Response, FilesError> + Send + 'static,
) -> CallOutcome {
    let files = context.files.clone();
    match context.file_reads.run(move || read(&files)).await {
        Ok(Ok(response)) => CallOutcome::Response(Box::new(response), None),
        Ok(Err(FilesError::NotFound)) => CallOutcome::Done(Answer::NotFound(String::new())),
        Ok(Err(error)) => CallOutcome::Done(Answer::Unavailable(error.to_string())),
        Err(crowded) => CallOutcome::Done(Answer::Unavailable(crowded.to_string())),
    }
}

fn list_files(files: &Files, list: &call::ListFiles) -> Result<Response, FilesError> {
    let file_infos = files.list(&list.path)?;
    Ok(Response {
        r#type: Some(ResponseType::ListFiles.into()),
        list_files: Some(response::ListFiles { file_infos }),
        ..Response::default()
    })
}

fn read_file(files: &Files, read: &call::ReadFile) -> Result<Response, FilesError> {
    let part = files.read(&read.path, read.offset, read.length)?;
    Ok(Response {
        r#type: Some(ResponseType::ReadFile.into()),
        read_file: Some(response::ReadFile {
            size: part.size,
            data: part.data,
        }),
        ..Response::default()
    })
}

/// The request to set these weights.
pub(crate) fn weights(infos: Vec<WeightInfo>) -> Administration {
    let weights = infos.into_iter().map(|info| {
        // As in Mesos. The authorized role equals the applied role.
        let role = info.role.as_deref().unwrap_or_default().trim().to_owned();
        (role, info.weight)
    });
    Administration::UpdateWeights(weights.collect())
}

/// Adds the call's description to a bare reason.
fn explained(kind: CallType, answer: Answer) -> Answer {
    match (kind, answer) {
        (CallType::RemoveQuota, Answer::BadRequest(reason)) => {
            Answer::BadRequest(format!("Failed to remove quota: {reason}"))
        }
        // Clients of the v1 API expect no body.
        (_, Answer::Warned(_)) => Answer::Done,
        (_, answer) => answer,
    }
}
