//! What a caller must be allowed before a job is changed: its role, and the user that its tasks run as.

use meseta_access::{Action, Approver, Forbidden};

use crate::core::Authority;

/// Whether the caller may change what is of this role.
pub(super) fn change(approver: &Approver, authority: &Authority) -> Result<(), Forbidden> {
    approver.check(Action::RegisterFramework, Some(&authority.role))
}

/// Whether the caller may start tasks so. `user` is that of tasks whose job names none.
pub(super) fn run(approver: &Approver, authority: &Authority, user: &str) -> Result<(), Forbidden> {
    change(approver, authority)?;
    let user = authority.user.as_deref().unwrap_or(user);
    approver.check(Action::RunTask, Some(user))
}

/// What the caller may do to a job that runs so. A version that is gone back to may need more.
pub(super) fn actions(approver: &Approver, authority: &Authority, user: &str) -> Vec<&'static str> {
    let mut actions = Vec::new();
    if change(approver, authority).is_ok() {
        actions.push("stop");
    }
    if run(approver, authority, user).is_ok() {
        actions.extend(["scale", "restart", "revert", "promote", "release"]);
    }
    actions
}

#[cfg(test)]
mod tests {
    use meseta_access::{Acls, Authorizer};

    use super::*;

    #[test]
    fn tasks_start_in_roles_and_as_users_that_the_caller_may_use() {
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
            let told = actions(&ann, &authority, "root");
            assert_eq!(told.contains(&"stop"), may_change, "{told:?}");
            assert_eq!(told.contains(&"scale"), may_run, "{told:?}");
        }
        let unnamed = Authority {
            role: "dev".to_owned(),
            user: None,
        };
        assert_eq!(run(&ann, &unnamed, "www"), Ok(()));
    }
}
