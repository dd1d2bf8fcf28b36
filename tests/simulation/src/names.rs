//! The names of events, for counts and for the hash.

use meseta_agent::checkpoint::Write;
use meseta_agent::core::ContainerAction;
use meseta_master::core::call::Action;
use meseta_master::core::{Administration, Answer, Mutation};
use meseta_proto::meseta::v1::{agent_frame, master_frame};

pub(crate) fn of_agent_frame(message: &agent_frame::Message) -> &'static str {
    use agent_frame::Message;
    match message {
        Message::Register(_) => "Register",
        Message::Reregister(_) => "Reregister",
        Message::Unregister(_) => "Unregister",
        Message::Pong(_) => "Pong",
        Message::StatusUpdate(_) => "StatusUpdate",
        Message::ExecutorExited(_) => "ExecutorExited",
        Message::ExecutorMessage(_) => "ExecutorMessage",
        Message::AgentUpdate(_) => "AgentUpdate",
        Message::OperationUpdate(_) => "OperationUpdate",
        Message::ReregisterPart(_) => "ReregisterPart",
    }
}

pub(crate) fn of_master_frame(message: Option<&master_frame::Message>) -> &'static str {
    use master_frame::Message;
    match message {
        None => "Empty",
        Some(Message::Registered(_)) => "Registered",
        Some(Message::Ping(_)) => "Ping",
        Some(Message::RunTask(_)) => "RunTask",
        Some(Message::RunTaskGroup(_)) => "RunTaskGroup",
        Some(Message::KillTask(_)) => "KillTask",
        Some(Message::Acknowledge(_)) => "Acknowledge",
        Some(Message::ShutdownExecutor(_)) => "ShutdownExecutor",
        Some(Message::ShutdownFramework(_)) => "ShutdownFramework",
        Some(Message::UpdateFramework(_)) => "UpdateFramework",
        Some(Message::ExecutorMessage(_)) => "ExecutorMessage",
        Some(Message::ApplyOperation(_)) => "ApplyOperation",
        Some(Message::AcknowledgeOperation(_)) => "AcknowledgeOperation",
        Some(Message::Drain(_)) => "Drain",
        Some(Message::Shutdown(_)) => "Shutdown",
        Some(Message::Refused(_)) => "Refused",
    }
}

pub(crate) fn of_action(action: &Action) -> &'static str {
    match action {
        Action::Teardown => "TEARDOWN",
        Action::Accept(_) => "ACCEPT",
        Action::Decline(_) => "DECLINE",
        Action::AnswerInverseOffers { .. } => "ANSWER_INVERSE_OFFERS",
        Action::Revive { .. } => "REVIVE",
        Action::Suppress { .. } => "SUPPRESS",
        Action::Kill(_) => "KILL",
        Action::Shutdown(_) => "SHUTDOWN",
        Action::Acknowledge { .. } => "ACKNOWLEDGE",
        Action::AcknowledgeOperationStatus { .. } => "ACKNOWLEDGE_OPERATION_STATUS",
        Action::Reconcile(_) => "RECONCILE",
        Action::ReconcileOperations(_) => "RECONCILE_OPERATIONS",
        Action::Message(_) => "MESSAGE",
        Action::Request => "REQUEST",
        Action::UpdateFramework(_) => "UPDATE_FRAMEWORK",
        Action::Unknown => "UNKNOWN",
    }
}

pub(crate) fn of_administration(request: &Administration) -> &'static str {
    match request {
        Administration::SetQuota(_) => "SetQuota",
        Administration::UpdateQuota { .. } => "UpdateQuota",
        Administration::RemoveQuota { .. } => "RemoveQuota",
        Administration::UpdateWeights(_) => "UpdateWeights",
        Administration::UpdateSchedule(_) => "UpdateSchedule",
        Administration::AddWindow(_) => "AddWindow",
        Administration::StartMaintenance(_) => "StartMaintenance",
        Administration::StopMaintenance(_) => "StopMaintenance",
        Administration::DrainAgent { .. } => "DrainAgent",
        Administration::DeactivateAgent { .. } => "DeactivateAgent",
        Administration::ReactivateAgent { .. } => "ReactivateAgent",
        Administration::MarkAgentGone { .. } => "MarkAgentGone",
    }
}

pub(crate) fn of_mutation(mutation: &Mutation) -> &'static str {
    match mutation {
        Mutation::PutAgent(_) => "PutAgent",
        Mutation::RaiseEpoch { .. } => "RaiseEpoch",
        Mutation::MarkUnreachable(_) => "MarkUnreachable",
        Mutation::RemoveAgent { .. } => "RemoveAgent",
        Mutation::RemoveAgents { .. } => "RemoveAgents",
        Mutation::PruneUnreachable { .. } => "PruneUnreachable",
        Mutation::PutWeights(_) => "PutWeights",
        Mutation::UpdateQuota(_) => "UpdateQuota",
        Mutation::PutFramework(_) => "PutFramework",
        Mutation::RemoveFrameworks { .. } => "RemoveFrameworks",
        Mutation::EndFrameworks { .. } => "EndFrameworks",
        Mutation::PutDeadline(_) => "PutDeadline",
        Mutation::RemoveDeadlines { .. } => "RemoveDeadlines",
        Mutation::PutMaintenance(_) => "PutMaintenance",
        Mutation::PutDeactivation { .. } => "PutDeactivation",
        Mutation::MarkGone { .. } => "MarkGone",
        Mutation::PruneGone { .. } => "PruneGone",
    }
}

pub(crate) fn of_answer(answer: &Answer) -> &'static str {
    match answer {
        Answer::Accepted => "Accepted",
        Answer::Applied(_) => "Applied",
        Answer::Done => "Done",
        Answer::Warned(_) => "Warned",
        Answer::BadRequest(_) => "BadRequest",
        Answer::Forbidden(_) => "Forbidden",
        Answer::NotFound(_) => "NotFound",
        Answer::Conflict(_) => "Conflict",
        Answer::Unavailable(_) => "Unavailable",
        Answer::NotImplemented(_) => "NotImplemented",
    }
}

pub(crate) fn of_write(write: &Write) -> &'static str {
    match write {
        Write::Agent { .. } => "Agent",
        Write::Remember { .. } => "Remember",
        Write::SyncRecovered { .. } => "SyncRecovered",
        Write::Repair { .. } => "Repair",
        Write::RestoreVolumes { .. } => "RestoreVolumes",
        Write::ForgetRemoved => "ForgetRemoved",
        Write::Drain { .. } => "Drain",
        Write::Framework { .. } => "Framework",
        Write::Task { .. } => "Task",
        Write::Executor { .. } => "Executor",
        Write::ExecutorLog { .. } => "ExecutorLog",
        Write::Log { .. } => "Log",
        Write::Resources { .. } => "Resources",
        Write::Retire { .. } => "Retire",
        Write::RetireTask { .. } => "RetireTask",
        Write::RetireFramework { .. } => "RetireFramework",
    }
}

pub(crate) fn of_container(action: &ContainerAction) -> &'static str {
    match action {
        ContainerAction::Launch(_) => "Launch",
        ContainerAction::Resize { .. } => "Resize",
        ContainerAction::Probe(_) => "Probe",
        ContainerAction::Kill { .. } => "Kill",
        ContainerAction::Destroy { .. } => "Destroy",
        ContainerAction::Freeze { .. } => "Freeze",
        ContainerAction::ThrottleRevocable { .. } => "ThrottleRevocable",
        ContainerAction::Forget { .. } => "Forget",
    }
}
