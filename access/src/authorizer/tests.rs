//! The rules of Mesos, scenario by scenario, for every action that follows them.

use proptest::prelude::*;

use super::*;
use crate::action::Action as A;

fn authorizer(acls: &str) -> Authorizer {
    Authorizer::new(Acls::parse(acls).unwrap(), true)
}

const ANY: Option<&str> = None;

#[track_caller]
fn expect(authorizer: &Authorizer, action: Action, rows: &[(Option<&str>, Option<&str>, bool)]) {
    for (principal, object, allowed) in rows {
        assert_eq!(
            authorizer.allows(*principal, action, *object),
            *allowed,
            "{action:?}: {principal:?} on {object:?}"
        );
    }
}

#[test]
fn without_acls_everything_is_allowed() {
    for action in Action::ALL {
        assert!(Authorizer::everything().allows(None, *action, Some("x")));
    }
}

#[test]
fn principals_run_as_users() {
    let (foo, bar, baz) = (Some("foo"), Some("bar"), Some("baz"));
    let (root, guest, www) = (Some("root"), Some("guest"), Some("www"));
    type Row = (Option<&'static str>, Option<&'static str>, bool);
    let table: [(&str, &[Row]); 6] = [
        // Any principal as a user: nobody may run as root; everybody may run as guest.
        (
            r#"{"principals":{"type":"ANY"},"users":{"values":["guest"]}},
               {"principals":{"type":"ANY"},"users":{"type":"NONE"}}"#,
            &[
                (foo, guest, true),
                (foo, root, false),
                (foo, ANY, false),
                (None, guest, true),
            ],
        ),
        // No principal as a user.
        (
            r#"{"principals":{"type":"NONE"},"users":{"values":["root"]}}"#,
            &[(foo, root, false), (None, root, false), (foo, guest, true)],
        ),
        // A principal as any user.
        (
            r#"{"principals":{"values":["foo"]},"users":{"type":"ANY"}}"#,
            &[(foo, root, true), (foo, ANY, true)],
        ),
        // Any principal as any user.
        (
            r#"{"principals":{"type":"ANY"},"users":{"type":"ANY"}}"#,
            &[(None, ANY, true), (foo, root, true)],
        ),
        // Only some principals as some users.
        (
            r#"{"principals":{"values":["foo","bar"]},"users":{"values":["root","guest"]}},
               {"principals":{"type":"NONE"},"users":{"values":["root","guest"]}}"#,
            &[
                (foo, root, true),
                (bar, guest, true),
                (baz, root, false),
                (baz, guest, false),
                (baz, www, true),
                (foo, www, true),
            ],
        ),
        // Some principal as some user only.
        (
            r#"{"principals":{"values":["foo"]},"users":{"values":["guest"]}},
               {"principals":{"values":["foo"]},"users":{"type":"NONE"}}"#,
            &[(foo, guest, true), (foo, root, false), (bar, root, true)],
        ),
    ];
    for (acls, rows) in table {
        let rules = authorizer(&format!(r#"{{"run_tasks":[{acls}]}}"#));
        expect(&rules, A::RunTask, rows);
    }
}

#[test]
fn restrictive_acls_deny_unlisted_objects() {
    let rules = authorizer(
        r#"{"permissive":false,
            "run_tasks":[{"principals":{"values":["foo"]},"users":{"values":["user1"]}}],
            "register_frameworks":[
                {"principals":{"values":["foo"]},"roles":{"values":["analytics"]}}]}"#,
    );
    expect(
        &rules,
        A::RunTask,
        &[
            (Some("foo"), Some("user1"), true),
            (Some("foo"), Some("user2"), false),
            (Some("bar"), Some("user1"), false),
        ],
    );
    expect(
        &rules,
        A::RegisterFramework,
        &[
            (Some("foo"), Some("analytics"), true),
            (Some("bar"), Some("analytics"), false),
            (Some("bar"), Some("ads"), false),
        ],
    );
    for action in Action::ALL {
        if !matches!(action, A::RunTask | A::RegisterFramework) {
            assert!(!rules.allows(Some("foo"), *action, Some("x")), "{action:?}");
        }
    }
}

#[test]
fn acl_file_overrides_daemon_default() {
    let strict = Authorizer::new(Acls::default(), false);
    assert!(!strict.allows(Some("foo"), A::ViewFlags, None));
    let told = Authorizer::new(Acls::parse(r#"{"permissive":true}"#).unwrap(), false);
    assert!(told.allows(Some("foo"), A::ViewFlags, None));
}

#[test]
fn roles_are_offered_to_some_principals() {
    let rules = authorizer(
        r#"{"register_frameworks":[
            {"principals":{"values":["foo","bar"]},"roles":{"values":["ads"]}},
            {"principals":{"type":"NONE"},"roles":{"values":["ads"]}}]}"#,
    );
    expect(
        &rules,
        A::RegisterFramework,
        &[
            (Some("foo"), Some("ads"), true),
            (Some("bar"), Some("ads"), true),
            (Some("baz"), Some("ads"), false),
            (Some("baz"), Some("*"), true),
        ],
    );
}

/// The three principals of the royal household, for every action whose objects are roles.
#[test]
fn percent_sign_matches_nested_roles() {
    for action in Action::ALL {
        if action.objects() != crate::action::Objects::Roles {
            continue;
        }
        let key = action.key();
        let rules = authorizer(&format!(
            r#"{{"{key}":[
                {{"principals":{{"values":["elizabeth-ii"]}},"roles":{{"values":["king/%","king"]}}}},
                {{"principals":{{"values":["charles"]}},"roles":{{"values":["king/%"]}}}},
                {{"principals":{{"values":["j-welby"]}},"roles":{{"values":["king"]}}}},
                {{"principals":{{"type":"ANY"}},"roles":{{"type":"NONE"}}}}]}}"#
        ));
        expect(
            &rules,
            *action,
            &[
                (Some("elizabeth-ii"), Some("king"), true),
                (Some("elizabeth-ii"), Some("king/prince"), true),
                (Some("elizabeth-ii"), Some("king/prince/duke"), true),
                (Some("charles"), Some("king"), false),
                (Some("charles"), Some("king/prince"), true),
                (Some("charles"), Some("king/prince/duke"), true),
                (Some("charles"), Some("kingdom/prince"), false),
                (Some("j-welby"), Some("king"), true),
                (Some("j-welby"), Some("king/prince"), false),
                (Some("j-welby"), ANY, false),
            ],
        );
    }
}

/// Every action whose objects are compared one by one: a principal with some objects, one with only its own, and one without
/// any.
#[test]
fn objects_of_every_kind_are_compared() {
    use crate::action::Objects::{Exact, Paths, Roles, Whole};
    for action in Action::ALL {
        let (mine, other) = match action.objects() {
            Exact | Roles => ("one", "two"),
            Paths => ("/containers", "/monitor/statistics"),
            Whole => continue,
        };
        let (key, object) = (action.key(), action.object_key());
        let rules = authorizer(&format!(
            r#"{{"{key}":[
                {{"principals":{{"values":["foo"]}},"{object}":{{"type":"ANY"}}}},
                {{"principals":{{"values":["bar"]}},"{object}":{{"values":["{mine}"]}}}},
                {{"principals":{{"values":["baz"]}},"{object}":{{"type":"NONE"}}}},
                {{"principals":{{"type":"ANY"}},"{object}":{{"type":"NONE"}}}}]}}"#
        ));
        expect(
            &rules,
            *action,
            &[
                (Some("foo"), Some(mine), true),
                (Some("foo"), Some(other), true),
                (Some("foo"), ANY, true),
                (Some("bar"), Some(mine), true),
                (Some("bar"), Some(other), false),
                (Some("bar"), ANY, false),
                (Some("baz"), Some(mine), false),
                (Some("baz"), ANY, false),
                (None, Some(mine), false),
                (Some("else"), Some(mine), false),
            ],
        );
    }
}

#[test]
fn cluster_actions_are_all_or_nothing() {
    for action in Action::ALL {
        if action.objects() != crate::action::Objects::Whole {
            continue;
        }
        let (key, object) = (action.key(), action.object_key());
        let rules = authorizer(&format!(
            r#"{{"{key}":[
                {{"principals":{{"values":["foo"]}},"{object}":{{"type":"ANY"}}}},
                {{"principals":{{"values":["bar"]}},"{object}":{{"type":"NONE"}}}},
                {{"principals":{{"type":"ANY"}},"{object}":{{"type":"NONE"}}}}]}}"#
        ));
        expect(
            &rules,
            *action,
            &[
                (Some("foo"), ANY, true),
                (Some("foo"), Some("x"), true),
                (Some("bar"), ANY, false),
                (Some("baz"), ANY, false),
                (None, ANY, false),
            ],
        );
        let single = format!(
            r#"{{"{key}":[{{"principals":{{"type":"ANY"}},"{object}":{{"values":["x"]}}}}]}}"#
        );
        let error = Acls::parse(&single).unwrap_err().to_string();
        assert!(error.contains("ANY or NONE"), "{error}");
    }
}

#[test]
fn only_known_endpoints_can_be_named() {
    for (path, good) in [("/containers", true), ("/frameworks", false), ("", false)] {
        let text = format!(
            r#"{{"get_endpoints":[{{"principals":{{"values":["foo"]}},"paths":{{"values":["{path}"]}}}}]}}"#
        );
        assert_eq!(Acls::parse(&text).is_ok(), good, "{path:?}");
    }
}

#[test]
fn denial_names_action_and_object() {
    let rules = Authorizer::new(Acls::default(), false);
    let refused = |principal, object| {
        let decision = rules.check(principal, A::UpdateQuota, object);
        decision.unwrap_err().to_string()
    };
    assert_eq!(
        refused(Some("ada"), Some("ads")),
        "403 Forbidden. Principal 'ada' is not authorized for 'update_quotas' with roles 'ads'"
    );
    assert_eq!(
        refused(None, None),
        "403 Forbidden. A caller without a principal is not authorized for 'update_quotas'"
    );
}

#[test]
fn allows_everything_needs_no_object_check() {
    let rules = authorizer(
        r#"{"permissive":false,
            "view_tasks":[{"principals":{"values":["admin"]},"users":{"type":"ANY"}},
                          {"principals":{"values":["ada"]},"users":{"values":["u1"]}}],
            "view_roles":[{"principals":{"values":["ada","admin"]},"roles":{"values":["a/%"]}},
                          {"principals":{"values":["admin"]},"roles":{"type":"ANY"}}],
            "view_flags":[{"principals":{"values":["ada"]},"flags":{"type":"ANY"}}]}"#,
    );
    let rows = [
        ("admin", A::ViewTask, true),
        ("ada", A::ViewTask, false),
        ("admin", A::ViewRole, true),
        ("ada", A::ViewRole, false),
        ("ada", A::ViewFlags, true),
        ("admin", A::ViewFlags, false),
        ("admin", A::ViewExecutor, false),
    ];
    for (principal, action, expected) in rows {
        let approver = rules.approver(Some(principal.to_owned()));
        assert_eq!(
            approver.allows_all(action),
            expected,
            "{principal}: {action:?}"
        );
    }
    assert!(Authorizer::everything().allows_all(None, A::ViewTask));
    assert!(
        authorizer("{}").allows_all(None, A::ViewTask),
        "permissive by default"
    );
}

/// An entity of an entry of a generated list, as JSON.
fn entity() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(r#"{"type":"ANY"}"#.to_owned()),
        Just(r#"{"type":"NONE"}"#.to_owned()),
        prop::collection::vec(prop::sample::select(vec!["a", "b", "a/%", "c"]), 1..3)
            .prop_map(|values| format!(r#"{{"values":{values:?}}}"#)),
    ]
}

proptest! {
    #[test]
    fn allowed_everywhere_implies_each_object(
        entries in prop::collection::vec((entity(), entity()), 0..4),
        permissive: bool,
    ) {
        let entries: Vec<String> = entries
            .iter()
            .map(|(principals, roles)| format!(r#"{{"principals":{principals},"roles":{roles}}}"#))
            .collect();
        let acls = format!(
            r#"{{"permissive":{permissive},"view_roles":[{}]}}"#,
            entries.join(",")
        );
        // Lists that the file's parser refuses are skipped.
        let Ok(acls) = Acls::parse(&acls) else { return Ok(()) };
        let rules = Authorizer::new(acls, false);
        for principal in [None, Some("a"), Some("z")] {
            if rules.allows_all(principal, A::ViewRole) {
                for object in [None, Some("a"), Some("a/b"), Some("b"), Some("c"), Some("z")] {
                    prop_assert!(rules.allows(principal, A::ViewRole, object), "{principal:?} {object:?}");
                }
            }
        }
    }
}

#[test]
fn extent_lists_objects_and_default() {
    let rules = authorizer(
        r#"{"permissive":false,
            "update_quotas":[
              {"principals":{"values":["ops"]},"roles":{"type":"ANY"}},
              {"principals":{"values":["eng"]},"roles":{"values":["eng","eng/%"]}},
              {"principals":{"type":"NONE"},"roles":{"values":["secret"]}},
              {"principals":{"values":["most"]},"roles":{"values":["secret","ads"]}},
              {"principals":{"values":["most"]},"roles":{"type":"ANY"}}],
            "drain_agents":[{"principals":{"values":["ops"]},"agents":{"type":"ANY"}}]}"#,
    );
    let extent = |who, action| {
        let extent = rules.extent(who, action, 2);
        (extent.unnamed, extent.named.join(" "))
    };
    for (who, unnamed, named) in [
        (Some("ops"), true, ""),
        (Some("eng"), false, "eng eng/%"),
        // The entry that denies `secret` to all comes first.
        (Some("most"), true, "ads"),
        (Some("nobody"), false, ""),
        (None, false, ""),
    ] {
        let expected = (unnamed, named.to_owned());
        assert_eq!(extent(who, A::UpdateQuota), expected, "{who:?}");
    }
    assert!(extent(Some("ops"), A::DrainAgent).0);
    assert!(!extent(Some("eng"), A::DrainAgent).0);
    let everything = Authorizer::everything().extent(None, A::UpdateQuota, 2);
    assert_eq!((everything.unnamed, everything.named.len()), (true, 0));
    let one = rules.extent(Some("eng"), A::UpdateQuota, 1);
    assert_eq!(one.named, ["eng"]);
}
