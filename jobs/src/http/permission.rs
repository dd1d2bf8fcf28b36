//! The permissions of a caller to change a job: its role, and the user of its tasks.

use meseta_access::{Action, Approver, Forbidden};
use meseta_daemon::authentication::Approvers;

use crate::core::{Authorities, Authority, MayRun};

/// Checks that the caller may change jobs of this role.
pub(super) fn change(approver: &Approver, authority: &Authority) -> Result<(), Forbidden> {
    approver.check(Action::RegisterFramework, Some(&authority.role))
}

/// Checks that the caller may start tasks with this authority. `user` is the user of tasks whose job names none.
pub(super) fn run(approver: &Approver, authority: &Authority, user: &str) -> Result<(), Forbidden> {
    change(approver, authority)?;
    let user = authority.user.as_deref().unwrap_or(user);
    approver.check(Action::RunTask, Some(user))
}

/// Checks that the caller may start tasks as a version of a job does that exists. The refusal names the user to a caller alone that
/// sees the jobs of the role.
pub(super) fn run_existing(
    approver: &Approver,
    authority: &Authority,
    user: &str,
) -> Result<(), Forbidden> {
    run(approver, authority, user).map_err(|forbidden| {
        match approver.allows(Action::ViewRole, Some(&authority.role)) {
            true => forbidden,
            false => forbidden.without_object(),
        }
    })
}

/// Returns the permission check for the core; `user` is the user of tasks whose job names none.
pub(crate) fn may_run(approvers: Approvers, user: String) -> MayRun {
    MayRun::new(move |principal, authority| {
        let approver = approvers.of_principal(Some(principal.to_owned()));
        run(&approver, authority, &user).is_ok()
    })
}

/// Returns the user for tasks whose job names none, if the caller may not use that of the scheduler: the caller's only
/// user, if it has just one. Roles without a common user cannot reach each other's processes and files.
pub(super) fn own_user(approver: &Approver, user: &str) -> Option<String> {
    if approver.allows(Action::RunTask, Some(user)) {
        return None;
    }
    let users = approver.extent(Action::RunTask, 2);
    let mut named = users.named;
    (named.len() == 1 && !users.unnamed).then(|| named.remove(0))
}

/// Checks that the caller may replace the version that it has seen with a version that runs as `new`.
///
/// The new version reaches the files of the volumes, and an update that fails goes back by itself to the last healthy
/// version. A caller who may not run as the user of an earlier version could therefore plant a program for that user.
pub(super) fn replace(
    approver: &Approver,
    new: &Authority,
    seen: &Authorities,
    user: &str,
) -> Result<(), Forbidden> {
    change(approver, &seen.present)?;
    let earlier = [Some(&seen.present), seen.rollback.as_ref()];
    let others = earlier.into_iter().flatten().filter(|one| *one != new);
    for authority in others {
        run_existing(approver, authority, user)?;
    }
    Ok(())
}

/// Returns the actions that the caller may take on a job with these authorities. A revert may need more permissions.
pub(super) fn actions(approver: &Approver, seen: &Authorities, user: &str) -> Vec<&'static str> {
    let mut actions = Vec::new();
    if change(approver, &seen.present).is_ok() {
        actions.push("stop");
    }
    let may_run = run(approver, &seen.present, user)
        .and_then(|()| replace(approver, &seen.present, seen, user));
    if may_run.is_ok() {
        actions.extend([
            "scale",
            "restart",
            "revert",
            "promote",
            "rebalance",
            "release",
        ]);
    }
    actions
}

#[cfg(test)]
mod tests {
    use meseta_access::{Acls, Authorizer};

    use super::*;

    #[test]
    fn tasks_need_permitted_roles_and_users() {
        let acls = r#"{
            "permissive": false,
            "register_frameworks": [{ "principals": { "values": ["ann"] }, "roles": { "values": ["dev"] } }],
            "run_tasks": [{ "principals": { "values": ["ann"] }, "users": { "values": ["www"] } }]
        }"#;
        let acls = Acls::parse(acls).expect("ACLs");
        let ann = Authorizer::new(acls, false).approver(Some("ann".to_owned()));
        for (role, user, may_change, may_run) in [
            ("dev", Some("www"), true, true),
            ("dev", Some("root"), true, false),
            ("dev", None, true, false),
            ("prod", Some("www"), false, false),
        ] {
            let authority = Authority {
                role: role.to_owned(),
                user: user.map(str::to_owned),
            };
            assert_eq!(
                change(&ann, &authority).is_ok(),
                may_change,
                "{authority:?}"
            );
            assert_eq!(
                run(&ann, &authority, "root").is_ok(),
                may_run,
                "{authority:?}"
            );
            let seen = Authorities {
                present: authority,
                rollback: None,
            };
            let told = actions(&ann, &seen, "root");
            assert_eq!(told.contains(&"stop"), may_change, "{told:?}");
            assert_eq!(told.contains(&"scale"), may_run, "{told:?}");
        }
        let version_of = |user: &str| Authority {
            role: "dev".to_owned(),
            user: Some(user.to_owned()),
        };
        for (present, rollback, may_replace) in [
            ("www", None, true),
            ("www", Some("www"), true),
            // Another user's job, and a job that would revert to another user's version.
            ("root", None, false),
            ("www", Some("root"), false),
        ] {
            let seen = Authorities {
                present: version_of(present),
                rollback: rollback.map(version_of),
            };
            let replaced = replace(&ann, &version_of("www"), &seen, "root");
            assert_eq!(replaced.is_ok(), may_replace, "{seen:?}");
        }
        // The user of a job that the caller does not see stays unknown.
        let refused = run_existing(&ann, &version_of("canary"), "root").expect_err("refused");
        assert!(!refused.to_string().contains("canary"), "{refused}");
        assert_eq!(own_user(&ann, "root").as_deref(), Some("www"));
        assert_eq!(own_user(&ann, "www"), None);
        let unnamed = Authority {
            role: "dev".to_owned(),
            user: None,
        };
        assert_eq!(run(&ann, &unnamed, "www"), Ok(()));
    }
}
