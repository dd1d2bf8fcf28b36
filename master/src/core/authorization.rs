//! Rights in the cluster: those of frameworks on roles, users and reservations, and those of agents.
//!
//! The core enters after it has understood a call and before it changes anything. The HTTP and gRPC edge checks most
//! rights of operators before the core gets the call. Invariant: a framework acts under the principal of its
//! subscription, an agent under the host of its certificate.

use std::collections::BTreeSet;

use meseta_access::{Action, Approver, Forbidden};
use meseta_daemon::authentication::Caller;
use meseta_proto::Invalid;
use meseta_proto::mesos::v1::{ExecutorInfo, FrameworkInfo, TaskInfo};
use meseta_resources::{Operation, Reservation, Resource, Role, common_reservations};

use crate::core::answer::Answer;
use crate::core::state::framework::Framework;

/// The beginning of every refusal for missing rights.
pub(crate) const NOT_AUTHORIZED: &str = "Not authorized";

/// The reason for refusing a framework: a missing right.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAuthorized {
    #[error("Not authorized to use the roles {{ {0} }}")]
    Roles(String),
    #[error("Not authorized to launch as user '{}'", .0.escape_debug())]
    User(String),
}

impl From<NotAuthorized> for Answer {
    fn from(error: NotAuthorized) -> Self {
        Self::Forbidden(error.to_string())
    }
}

/// Sets a framework's principal to the proven one, unless the framework names another.
pub(crate) fn take_name(info: &mut FrameworkInfo, caller: &Caller) -> Result<(), Invalid> {
    let Some(principal) = caller.principal() else {
        return Ok(());
    };
    match &info.principal {
        None => info.principal = Some(principal.to_owned()),
        Some(own) if own == principal => {}
        Some(own) => return Err(mismatch(principal, own).into()),
    }
    Ok(())
}

fn mismatch(authenticated: &str, own: &str) -> String {
    format!(
        "Authenticated principal '{}' does not match principal '{}' set in `FrameworkInfo`",
        authenticated.escape_debug(),
        own.escape_debug()
    )
}

/// The error if a framework's call comes from another principal.
pub(super) fn is_not_its_own(info: &FrameworkInfo, caller: &Caller) -> Option<String> {
    let principal = caller.principal()?;
    let own = info.principal.as_deref().unwrap_or_default();
    (principal != own).then(|| mismatch(principal, own))
}

/// The rights of a framework: those of the principal that it names, proven or not, as in Mesos.
pub(super) fn of_framework(info: &FrameworkInfo, caller: &Caller) -> Approver {
    caller.approver.on_behalf_of(info.principal.clone())
}

/// Checks that the framework may use all of these roles.
pub(super) fn roles(approver: &Approver, roles: &BTreeSet<Role>) -> Result<(), NotAuthorized> {
    let is_refused = |role: &&Role| {
        let role = Some(role.as_str());
        !approver.allows(Action::RegisterFramework, role)
    };
    let refused: Vec<&str> = roles.iter().filter(is_refused).map(Role::as_str).collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(NotAuthorized::Roles(refused.join(", ")))
}

/// Checks that a task, and the executor in it, may run as their users.
pub(super) fn launch(
    framework: &Framework,
    task: &TaskInfo,
    executor: Option<&ExecutorInfo>,
) -> Result<(), NotAuthorized> {
    let approver = &framework.approver;
    if approver.allows_everything() {
        return Ok(());
    }
    let of_framework = framework.terms.info.user.as_str();
    let own = task.command.as_ref();
    let executor = task.executor.as_deref().or(executor);
    let brought = executor.and_then(|executor| executor.command.as_ref());
    let named = |command: &meseta_proto::mesos::v1::CommandInfo| command.user.clone();
    // A task in an executor runs as the executor's user, unless the task names a user.
    let outer = brought
        .and_then(named)
        .unwrap_or_else(|| of_framework.to_owned());
    let inner = own.and_then(named).unwrap_or_else(|| outer.clone());
    let mut users = vec![inner];
    if executor.is_some() {
        users.push(outer);
    }
    for user in users {
        if !approver.allows(Action::RunTask, Some(&user)) {
            return Err(NotAuthorized::User(user));
        }
    }
    Ok(())
}

/// Checks the rights for all parts of an operation.
pub(crate) fn operation(approver: &Approver, operation: &Operation) -> Result<(), Forbidden> {
    if approver.allows_everything() {
        return Ok(());
    }
    let each = |action: Action, resources: &[Resource], object: fn(&Resource) -> String| {
        let mut resources = resources.iter();
        resources.try_for_each(|resource| approver.check(action, Some(&object(resource))))
    };
    match operation {
        Operation::Reserve { source, resources } if source.is_empty() => {
            each(Action::ReserveResources, resources, role_of)
        }
        Operation::Reserve { source, resources } => reservation_moved(approver, source, resources),
        Operation::Unreserve(resources) => each(Action::UnreserveResources, resources, reserver_of),
        Operation::Create(volumes) => each(Action::CreateVolume, volumes, role_of),
        Operation::Destroy(volumes) => each(Action::DestroyVolume, volumes, creator_of),
        Operation::Grow { volume, .. } | Operation::Shrink { volume, .. } => {
            approver.check(Action::ResizeVolume, Some(&role_of(volume)))
        }
    }
}

/// Authorizes the replacement of a reservation: unreserves down to the common reservations of both sides, and
/// reserves up from there. Checks the right for each step; without any step, checks the right for the unchanged
/// reservation.
fn reservation_moved(
    approver: &Approver,
    source: &[Resource],
    target: &[Resource],
) -> Result<(), Forbidden> {
    let common = common_reservations(source.iter().chain(target));
    let of = |resources: &[Resource]| -> BTreeSet<Reservation> {
        let steps = resources
            .iter()
            .flat_map(|one| one.reservations().iter().skip(common));
        steps.cloned().collect()
    };
    let (popped, pushed) = (of(source), of(target));
    for reservation in &popped {
        let reserver = reservation.principal.as_deref().unwrap_or_default();
        approver.check(Action::UnreserveResources, Some(reserver))?;
    }
    for reservation in &pushed {
        approver.check(Action::ReserveResources, Some(reservation.role.as_str()))?;
    }
    if popped.is_empty() && pushed.is_empty() {
        let role = target.first().map_or_else(|| "*".to_owned(), role_of);
        approver.check(Action::ReserveResources, Some(&role))?;
    }
    Ok(())
}

fn role_of(resource: &Resource) -> String {
    resource
        .reservation_role()
        .map_or_else(|| "*".to_owned(), ToString::to_string)
}

fn reserver_of(resource: &Resource) -> String {
    let reservation = resource.reservation();
    let principal = reservation.and_then(|reservation| reservation.principal.clone());
    principal.map_or_else(String::new, |principal| principal.to_string())
}

fn creator_of(resource: &Resource) -> String {
    let persistence = resource.disk().and_then(|disk| disk.persistence.as_ref());
    let principal = persistence.and_then(|persistence| persistence.principal.clone());
    principal.map_or_else(String::new, |principal| principal.to_string())
}
