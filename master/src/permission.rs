//! The permissions for each call and each request of an operator. The table of endpoints has the permissions of
//! endpoints.
//!
//! One list is for queries ([`question`]), one for changes ([`request`], [`operation`]). The compiler checks that
//! both are complete. Lists are filtered, not refused: see [`crate::view_filter`].

use meseta_access::{Action, Forbidden};
use meseta_daemon::authentication::Caller;
use meseta_daemon::routes::Need;
use meseta_proto::convert;
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::offer::{Operation, operation};

use crate::core::{Administration, authorization};

/// The permission that a call of the operator API needs.
pub(crate) fn question(kind: CallType) -> Need {
    match kind {
        CallType::Unknown
        | CallType::GetHealth
        | CallType::GetVersion
        | CallType::GetMaster
        | CallType::GetLoggingLevel => Need::Nothing,
        CallType::GetFlags => Need::Permission(Action::ViewFlags, None),
        CallType::GetMetrics => Need::Permission(Action::GetEndpoint, Some("/metrics/snapshot")),
        CallType::SetLoggingLevel => Need::Permission(Action::SetLogLevel, None),
        CallType::ListFiles | CallType::ReadFile => Need::Permission(Action::AccessMesosLog, None),
        CallType::GetState
        | CallType::GetAgents
        | CallType::GetFrameworks
        | CallType::GetExecutors
        | CallType::GetOperations
        | CallType::GetTasks
        | CallType::GetRoles
        | CallType::GetWeights
        | CallType::GetQuota
        | CallType::GetMaintenanceStatus
        | CallType::GetMaintenanceSchedule
        | CallType::Subscribe => Need::Filtered,
        CallType::UpdateWeights
        | CallType::ReserveResources
        | CallType::UnreserveResources
        | CallType::CreateVolumes
        | CallType::DestroyVolumes
        | CallType::GrowVolume
        | CallType::ShrinkVolume
        | CallType::UpdateMaintenanceSchedule
        | CallType::StartMaintenance
        | CallType::StopMaintenance
        | CallType::DrainAgent
        | CallType::DeactivateAgent
        | CallType::ReactivateAgent
        | CallType::UpdateQuota
        | CallType::SetQuota
        | CallType::RemoveQuota
        | CallType::Teardown
        | CallType::MarkAgentGone => Need::ByObject,
    }
}

/// Rejects a caller without the permission for the whole endpoint.
pub(crate) fn check(caller: &Caller, need: Need) -> Result<(), Forbidden> {
    match need {
        Need::Permission(action, object) => caller.check(action, object),
        Need::Nothing | Need::Filtered | Need::ByObject => Ok(()),
    }
}

/// Whether the caller may make this request.
pub(crate) fn administration(caller: &Caller, request: &Administration) -> Result<(), Forbidden> {
    if caller.approver.allows_everything() {
        return Ok(());
    }
    let whole = |action| caller.check(action, None);
    match request {
        // The core validates these first, and checks the right afterwards.
        Administration::SetQuota(_) | Administration::RemoveQuota { .. } => Ok(()),
        Administration::UpdateQuota { configs, .. } => configs
            .iter()
            .try_for_each(|config| caller.check(Action::UpdateQuota, Some(&config.role))),
        Administration::UpdateWeights(weights) => weights
            .iter()
            .try_for_each(|(role, _)| caller.check(Action::UpdateWeight, Some(role))),
        Administration::UpdateSchedule(_) | Administration::AddWindow(_) => {
            whole(Action::UpdateMaintenanceSchedule)
        }
        Administration::StartMaintenance(_) => whole(Action::StartMaintenance),
        Administration::StopMaintenance(_) => whole(Action::StopMaintenance),
        Administration::DrainAgent { .. } => whole(Action::DrainAgent),
        Administration::DeactivateAgent { .. } => whole(Action::DeactivateAgent),
        Administration::ReactivateAgent { .. } => whole(Action::ReactivateAgent),
        Administration::MarkAgentGone { .. } => whole(Action::MarkAgentGone),
    }
}

/// A request's name and object in the audit log.
pub(crate) fn name(request: &Administration) -> (&'static str, String) {
    let roles = |roles: Vec<&str>| roles.join(",");
    let machines = |machines: &[meseta_proto::mesos::v1::MachineId]| {
        let name = |id: &meseta_proto::mesos::v1::MachineId| {
            let hostname = id.hostname.as_deref().unwrap_or_default();
            format!("{hostname}/{}", id.ip.as_deref().unwrap_or_default())
        };
        machines
            .iter()
            .take(8)
            .map(name)
            .collect::<Vec<_>>()
            .join(",")
    };
    match request {
        Administration::SetQuota(request) => {
            ("SET_QUOTA", request.role.clone().unwrap_or_default())
        }
        Administration::UpdateQuota { configs, .. } => {
            let configs = configs.iter().take(8);
            let names = configs.map(|config| config.role.as_str()).collect();
            ("UPDATE_QUOTA", roles(names))
        }
        Administration::RemoveQuota { role } => ("REMOVE_QUOTA", role.clone()),
        Administration::UpdateWeights(weights) => {
            let names = weights
                .iter()
                .take(8)
                .map(|(role, _)| role.as_str())
                .collect();
            ("UPDATE_WEIGHTS", roles(names))
        }
        Administration::UpdateSchedule(_) => ("UPDATE_MAINTENANCE_SCHEDULE", String::new()),
        Administration::AddWindow(window) => {
            ("ADD_MAINTENANCE_WINDOW", machines(&window.machine_ids))
        }
        Administration::StartMaintenance(list) => ("START_MAINTENANCE", machines(list)),
        Administration::StopMaintenance(list) => ("STOP_MAINTENANCE", machines(list)),
        Administration::DrainAgent { agent_id, .. } => ("DRAIN_AGENT", agent_id.clone()),
        Administration::DeactivateAgent { agent_id } => ("DEACTIVATE_AGENT", agent_id.clone()),
        Administration::ReactivateAgent { agent_id } => ("REACTIVATE_AGENT", agent_id.clone()),
        Administration::MarkAgentGone { agent_id } => ("MARK_AGENT_GONE", agent_id.clone()),
    }
}

/// Checks the right to an operation. The core refuses invalid operations.
pub(crate) fn operation(caller: &Caller, message: &Operation) -> Result<(), Forbidden> {
    if caller.approver.allows_everything() {
        return Ok(());
    }
    match convert::operation(message) {
        Ok(operation) => authorization::operation(&caller.approver, &operation),
        Err(_) => Ok(()),
    }
}

/// An operation's name in the audit log.
pub(crate) fn operation_name(message: &Operation) -> &'static str {
    let kind = message.r#type;
    let kind = kind.and_then(|kind| operation::Type::try_from(kind).ok());
    kind.map_or("UNKNOWN", |kind| kind.as_str_name())
}
