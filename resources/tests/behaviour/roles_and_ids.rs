//! Roles and identifiers: valid forms, and the meaning of the hierarchy.

use meseta_resources::{
    AgentId, CONTAINER_ID_BYTES_MAX, ContainerId, FrameworkId, ID_BYTES_MAX, IdError, Role, TaskId,
};

use crate::given::role;

#[test]
fn role_validate() {
    for valid in [
        "foo",
        "123",
        "foo_123",
        "*",
        "foo-bar",
        "foo.bar",
        "foo..bar",
        "...",
        "foo/bar",
        "foo/.bar",
        "foo/bar/baz",
        "a/b/c/d/e/f/g/h",
        "é/ü",
    ] {
        assert!(Role::new(valid).is_ok(), "{valid}");
    }
    for (invalid, why) in [
        ("", "empty string"),
        (".", "cannot include '.' as a component"),
        ("..", "cannot include '..' as a component"),
        ("-foo", "starts with a dash"),
        ("/", "cannot start with a slash"),
        ("/foo", "cannot start with a slash"),
        ("foo/", "cannot end with a slash"),
        ("foo//bar", "two adjacent slashes"),
        ("foo/bar/", "cannot end with a slash"),
        ("foo bar", "backspace or whitespace (at byte 3)"),
        ("foo\tbar", "backspace or whitespace"),
        ("foo\nbar", "backspace or whitespace"),
        ("foo\u{b}bar", "backspace or whitespace"),
        ("foo\u{c}bar", "backspace or whitespace"),
        ("foo\rbar", "backspace or whitespace"),
        ("foo\u{7f}bar", "backspace or whitespace"),
        ("foo\0bar", "control character (at byte 3)"),
        ("a/foo\u{1b}[2Jbar", "control character"),
        ("foo\u{1}", "control character"),
        ("foo\u{1f}", "control character"),
        ("foo\u{9b}2J", "control character"),
        ("./foo", "'.' as a component"),
        ("../foo", "'..' as a component"),
        ("foo/.", "'.' as a component"),
        ("foo/./bar", "'.' as a component"),
        ("foo/../bar", "'..' as a component"),
        (
            "foo/-bar",
            "'-bar' is invalid because it starts with a dash",
        ),
        ("foo/*", "'*' as a component"),
        ("foo/*/bar", "'*' as a component"),
        ("*/foo", "'*' as a component"),
    ] {
        let error = Role::new(invalid).expect_err(invalid).to_string();
        assert!(error.contains(why), "{invalid}: {error}");
        assert!(!error.contains(char::is_control), "{error:?}");
    }
    for echoed in ["/\0", "\u{1b}/", "\0//a", "../\0", "-\u{1b}"] {
        let error = Role::new(echoed).expect_err(echoed).to_string();
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

#[test]
fn role_component_length_is_limited() {
    let longest = "x".repeat(255);
    let long = "x".repeat(256);
    for valid in [longest.clone(), format!("{longest}/{longest}")] {
        assert!(Role::new(&valid).is_ok());
    }
    for invalid in [long.clone(), format!("a/{long}/b"), "\u{e9}".repeat(128)] {
        let error = Role::new(&invalid).unwrap_err().to_string();
        assert!(error.contains("256 bytes"), "{error}");
        assert!(error.len() < 200, "{error}");
    }
}

#[test]
fn role_ancestors() {
    assert_eq!(role("role").ancestors().count(), 0);
    assert!(
        role("a/b/c/d")
            .ancestors()
            .eq([role("a/b/c"), role("a/b"), role("a")])
    );
    assert_eq!(role("a/b").parent(), Some(role("a")));
    assert!(role("a/b/c").components().eq(["a", "b", "c"]));
    assert!(Role::default().is_star() && !role("a").is_star());
}

#[test]
fn role_is_strict_subrole_of() {
    assert!(role("foo/bar").is_strict_subrole_of(&role("foo")));
    assert!(role("foo/bar/baz").is_strict_subrole_of(&role("foo")));
    assert!(!role("foo").is_strict_subrole_of(&role("foo")));
    assert!(!role("bar").is_strict_subrole_of(&role("foo")));
    assert!(!role("foobar").is_strict_subrole_of(&role("foo")));
    assert!(role("foo").is_in_subtree_of(&role("foo")));
    assert!(!role("foo").is_in_subtree_of(&role("foo/bar")));
}

#[test]
fn ids_become_file_names() {
    for valid in [
        "a",
        "task-1",
        "a.b",
        "...",
        "with space",
        "é",
        &"x".repeat(ID_BYTES_MAX),
    ] {
        assert!(TaskId::new(valid).is_ok(), "{valid}");
    }
    for invalid in [
        "", ".", "..", "a/b", "a\\b", "a\nb", "a\0b", "\u{7f}", "a\u{85}b",
    ] {
        assert!(TaskId::new(invalid).is_err(), "{invalid:?}");
        assert!(AgentId::new(invalid).is_err(), "{invalid:?}");
        assert!(FrameworkId::new(invalid).is_err(), "{invalid:?}");
    }
    let error = TaskId::new(&"x".repeat(300)).unwrap_err();
    assert_eq!(
        error,
        IdError::TooLong {
            what: "Task ID",
            length: 300,
            max: 255
        }
    );
    assert_eq!(
        TaskId::new("ab/c").unwrap_err().to_string(),
        "Task ID \"ab/c\" contains invalid characters: '/' at byte 2"
    );
}

#[test]
fn container_ids_nest() {
    let outer = ContainerId::new("outer").unwrap();
    let inner = outer.child("middle").unwrap().child("inner").unwrap();
    assert_eq!(inner.as_str(), "outer+middle+inner");
    assert_eq!(inner.value(), "inner");
    assert_eq!(inner.parent().unwrap().parent(), Some(outer.clone()));
    assert_eq!(inner.root(), outer);
    assert_eq!(outer.parent(), None);
    assert!(inner.components().eq(["outer", "middle", "inner"]));
    for invalid in [
        "",
        ".",
        "a.b",
        "a b",
        "a/b",
        &"x".repeat(CONTAINER_ID_BYTES_MAX + 1),
    ] {
        assert!(ContainerId::new(invalid).is_err(), "{invalid}");
        assert!(outer.child(invalid).is_err(), "{invalid}");
    }
    assert!(ContainerId::named(None, "a+b").is_err());
    assert!(outer.child("a+b").is_err());
    assert!(ContainerId::new(&"x".repeat(CONTAINER_ID_BYTES_MAX)).is_ok());
}
