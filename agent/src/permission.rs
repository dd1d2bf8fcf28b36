//! The permissions for calls on a node, and the filters for readers.
//!
//! The needs of routes are in their table. The compiler ensures that the lists are complete. Lists are not refused but
//! filtered ([`filtered`]). Invariant: a hidden framework hides its executors and tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use meseta_access::{Action, Approver, Forbidden};
use meseta_daemon::authentication::Caller;
use meseta_daemon::routes::Need;
use meseta_proto::mesos::v1::agent::call::Type;

use crate::core::{Executor, Framework, Snapshot, Task};

/// The permission for a call of the operator API.
pub(crate) fn call(kind: Type) -> Need {
    match kind {
        Type::Unknown
        | Type::GetHealth
        | Type::GetVersion
        | Type::GetLoggingLevel
        | Type::GetAgent => Need::Nothing,
        Type::GetFlags => Need::Permission(Action::ViewFlags, None),
        Type::GetMetrics => Need::Permission(Action::GetEndpoint, Some("/metrics/snapshot")),
        Type::SetLoggingLevel => Need::Permission(Action::SetLogLevel, None),
        Type::GetState
        | Type::GetTasks
        | Type::GetExecutors
        | Type::GetFrameworks
        | Type::GetContainers
        | Type::GetOperations => Need::Filtered,
        Type::GetResourceProviders => Need::Permission(Action::ViewResourceProvider, None),
        Type::AddResourceProviderConfig
        | Type::UpdateResourceProviderConfig
        | Type::RemoveResourceProviderConfig => {
            Need::Permission(Action::ModifyResourceProviderConfig, None)
        }
        Type::MarkResourceProviderGone => Need::Permission(Action::MarkResourceProviderGone, None),
        Type::PruneImages => Need::Permission(Action::PruneImages, None),
        Type::ListFiles
        | Type::ReadFile
        | Type::LaunchContainer
        | Type::LaunchNestedContainer
        | Type::LaunchNestedContainerSession
        | Type::WaitContainer
        | Type::WaitNestedContainer
        | Type::KillContainer
        | Type::KillNestedContainer
        | Type::RemoveContainer
        | Type::RemoveNestedContainer
        | Type::AttachContainerInput
        | Type::AttachContainerOutput => Need::ByObject,
    }
}

/// The actions of the calls on containers, for a nested and for a standalone container.
pub(crate) fn container(kind: Type) -> (Action, Action) {
    match kind {
        Type::KillContainer | Type::KillNestedContainer => {
            (Action::KillNestedContainer, Action::KillStandaloneContainer)
        }
        Type::RemoveContainer | Type::RemoveNestedContainer => (
            Action::RemoveNestedContainer,
            Action::RemoveStandaloneContainer,
        ),
        Type::AttachContainerInput => (Action::AttachContainerInput, Action::AttachContainerInput),
        Type::AttachContainerOutput => {
            (Action::AttachContainerOutput, Action::AttachContainerOutput)
        }
        _ => (Action::WaitNestedContainer, Action::WaitStandaloneContainer),
    }
}

/// Rejects a caller without the permission for the whole endpoint.
pub(crate) fn check(caller: &Caller, need: Need) -> Result<(), Forbidden> {
    match need {
        Need::Permission(action, object) => caller.check(action, object),
        Need::Nothing | Need::Filtered | Need::ByObject => Ok(()),
    }
}

/// The answer to a refused caller. It names the user of the executor, container or sandbox only to a caller that may see executors of
/// this user: to others the answer is the same as for an id that does not exist.
pub(crate) fn conceal(forbidden: Forbidden, approver: &Approver, user: Option<&str>) -> Forbidden {
    match sees_executors(approver, user) {
        true => forbidden,
        false => forbidden.without_object(),
    }
}

/// Whether a caller may see executors of this user, if the user is known.
pub(crate) fn sees_executors(approver: &Approver, user: Option<&str>) -> bool {
    user.is_some_and(|user| approver.allows(Action::ViewExecutor, Some(user)))
}

/// Snapshot filtered by the caller's permissions; returned unchanged if everything is visible.
pub(crate) fn filtered(snapshot: Arc<Snapshot>, approver: &Approver) -> Arc<Snapshot> {
    if approver.allows_everything() {
        return snapshot;
    }
    let sees = |framework: &Arc<Framework>| {
        approver.allows(Action::ViewFramework, Some(&framework.info.user))
    };
    let live = snapshot.frameworks.iter();
    let live = live.filter(|(_, framework)| sees(framework));
    let over = snapshot.completed_frameworks.iter();
    let over = over.filter(|framework| sees(framework));
    let operations = if approver.allows(Action::ViewRole, None) {
        snapshot.operations.clone()
    } else {
        Vec::new()
    };
    Arc::new(Snapshot {
        frameworks: live
            .map(|(id, framework)| (id.clone(), filtered_framework(framework, approver)))
            .collect(),
        completed_frameworks: over
            .map(|framework| filtered_framework(framework, approver))
            .collect(),
        operations,
        ..(*snapshot).clone()
    })
}

/// A snapshot that contains only the containers that the caller may see.
pub(crate) fn containers_of(snapshot: Arc<Snapshot>, approver: &Approver) -> Arc<Snapshot> {
    if approver.allows_everything() {
        return snapshot;
    }
    let sees = |executor: &Executor| approver.allows(Action::ViewContainer, Some(&executor.user));
    let reduce = |framework: &Framework| {
        let live = framework.executors.iter();
        let live = live.filter(|(_, executor)| sees(executor));
        Arc::new(Framework {
            executors: live
                .map(|(id, executor)| (id.clone(), executor.clone()))
                .collect(),
            completed: std::collections::VecDeque::new(),
            ..framework.clone()
        })
    };
    let frameworks = snapshot.frameworks.iter();
    Arc::new(Snapshot {
        frameworks: frameworks
            .map(|(id, framework)| (id.clone(), reduce(framework)))
            .collect(),
        completed_frameworks: Vec::new(),
        ..(*snapshot).clone()
    })
}

fn filtered_framework(framework: &Framework, approver: &Approver) -> Arc<Framework> {
    let sees = |executor: &Executor| approver.allows(Action::ViewExecutor, Some(&executor.user));
    let sees_task = |task: &Task| approver.allows(Action::ViewTask, Some(&task.user));
    let reduce = |executor: &Executor| {
        let tasks: BTreeMap<_, _> = executor
            .tasks
            .iter()
            .filter(|(_, task)| sees_task(task))
            .map(|(id, task)| (id.clone(), task.clone()))
            .collect();
        let completed = executor.completed.iter().filter(|task| sees_task(task));
        Arc::new(Executor {
            tasks,
            completed: completed.cloned().collect(),
            ..executor.clone()
        })
    };
    let live = framework.executors.iter();
    let live = live.filter(|(_, executor)| sees(executor));
    let over = framework.completed.iter();
    let over = over.filter(|executor| sees(executor));
    Arc::new(Framework {
        executors: live
            .map(|(id, executor)| (id.clone(), reduce(executor)))
            .collect(),
        completed: over.map(|executor| reduce(executor)).collect(),
        ..framework.clone()
    })
}

#[cfg(test)]
mod tests {
    use meseta_access::{Acls, Authorizer};

    use super::*;

    /// A refusal told who runs what to callers that may not see any of that.
    #[test]
    fn refusals_name_visible_users_only() {
        let rules = r#"{
            "permissive": false,
            "view_executors": [{ "principals": { "values": ["ads"] }, "users": { "values": ["www"] } }]
        }"#;
        let rules = Acls::parse(rules).expect("rules");
        let ads = Authorizer::new(rules, false).approver(Some("ads".to_owned()));
        let told = |user: Option<&str>| {
            let refused = ads.check(Action::AccessSandbox, user).expect_err("refused");
            conceal(refused, &ads, user).to_string()
        };
        assert!(
            told(Some("www")).ends_with("with users 'www'"),
            "{}",
            told(Some("www"))
        );
        assert_eq!(told(Some("root")), told(None));
        assert!(
            told(None).ends_with("not authorized for 'access_sandboxes'"),
            "{}",
            told(None)
        );
    }
}
