//! Authorization of calls on containers: by the user that they run as, or for the caller's own containers.
//!
//! Invariant: an executor's right to containers nested in its own does not extend to those of other users.

use meseta_access::Action;
use meseta_daemon::authentication::Caller;
use meseta_proto::mesos::v1 as pb;
use meseta_proto::mesos::v1::agent::call::Type;
use meseta_resources::ContainerId;

use super::Reply;
use crate::context::Context;
use crate::core::Snapshot;
use crate::nested::{Found, NestedError};
use crate::permission;

/// Looks up a nested container of the API, once for a call: another container may have the id when the call is
/// authorized.
pub(super) fn look_up(context: &Context, id: &pb::ContainerId) -> Result<Found, NestedError> {
    let id = ContainerId::try_from(id).map_err(|_| NestedError::Unknown)?;
    context.nested.look_up(&id)
}

/// Authorizes an action on a container that was looked up: by the container's user, or else its executor's user.
/// Changes are written to the audit log.
pub(super) async fn authorize(
    context: &Context,
    caller: &Caller,
    kind: Type,
    id: Option<&pb::ContainerId>,
    found: Option<&Found>,
) -> Result<(), Reply> {
    let (nested, alone) = permission::container(kind);
    let mut user = None;
    let decision = if caller.approver.allows_everything() {
        Ok(())
    } else {
        let snapshot = context.snapshot().await?;
        let outer = id.and_then(|id| executor_user(&snapshot, id));
        user = found.map(|found| found.user().to_owned());
        user = user.or_else(|| outer.clone());
        let action = match id {
            Some(id) if id.parent.is_none() && user.is_none() => alone,
            _ => nested,
        };
        // A container of the executor's own user, as at its launch.
        let is_own = id.is_some_and(|id| is_inside(caller, id)) && user == outer;
        if is_own {
            Ok(())
        } else {
            caller.check(action, user.as_deref())
        }
    };
    let object = id.map_or("", |id| id.value.as_str());
    if kind != Type::WaitContainer {
        let outcome = decision.as_ref().err().map(ToString::to_string);
        caller.audit(
            kind.as_str_name(),
            object,
            outcome.as_deref().unwrap_or("allowed"),
        );
    }
    let user = user.as_deref();
    Ok(decision.map_err(|forbidden| {
        if permission::sees_executors(&caller.approver, user) {
            return forbidden;
        }
        // The action depends on the container, too: the answer is that for an unknown id.
        let action = match id {
            Some(id) if id.parent.is_none() => alone,
            _ => nested,
        };
        let unknown = caller.check(action, None).err();
        unknown.unwrap_or_else(|| forbidden.without_object())
    })?)
}

/// Whether a container is nested in that of the calling executor.
fn is_inside(caller: &Caller, id: &pb::ContainerId) -> bool {
    let Some(mut outer) = id.parent.as_deref() else {
        return false;
    };
    while let Some(parent) = outer.parent.as_deref() {
        outer = parent;
    }
    caller.container.as_deref() == Some(outer.value.as_str())
}

/// The user of the executor that contains a container.
fn executor_user(snapshot: &Snapshot, id: &pb::ContainerId) -> Option<String> {
    let mut id = id;
    loop {
        if let Some((executor, task)) = ContainerId::try_from(id)
            .ok()
            .and_then(|own| snapshot.container(&own))
        {
            return Some(task.map_or(&executor.user, |task| &task.user).clone());
        }
        id = id.parent.as_deref()?;
    }
}

/// Authorizes the launch of a command as its user, inside an executor of its user.
pub(super) fn authorize_launch(
    caller: &Caller,
    snapshot: &Snapshot,
    (as_user, under_parent): (Action, Action),
    id: &pb::ContainerId,
    command: Option<&pb::CommandInfo>,
) -> Result<(), Reply> {
    let parent = id.parent.as_deref();
    let outer = parent.and_then(|parent| executor_user(snapshot, parent));
    let own = command.and_then(|command| command.user.clone());
    // The command runs as the executor's own user: an executor has no rights of other users.
    let is_own = is_inside(caller, id) && (own.is_none() || own == outer);
    let decision = match parent {
        Some(_) if is_own => Ok(()),
        None => caller.check(Action::LaunchStandaloneContainer, None),
        Some(_) => caller
            .check(under_parent, outer.as_deref())
            .and_then(|()| caller.check(as_user, own.or(outer.clone()).as_deref())),
    };
    let outcome = decision.as_ref().err().map(ToString::to_string);
    let outcome = outcome.as_deref().unwrap_or("allowed");
    caller.audit(under_parent.key(), &id.value, outcome);
    let conceal = |forbidden| permission::conceal(forbidden, &caller.approver, outer.as_deref());
    Ok(decision.map_err(conceal)?)
}
