//! The text of `--resources`, and the rules of the command line.

use meseta_resources::{
    CommandLineError, ParseReason, Reservation, Resource, Resources, Role,
    validate_command_line_resources,
};

use crate::given::{all, dynamic, one, refused, reserved, revocable, role, sum, volume};

#[test]
fn resources_parsing() {
    let resources = all("cpus:45.55;ports:[10000-20000, 30000-50000];disks:{sda1}");
    let pieces = [
        one("cpus:45.55"),
        one("ports:[10000-20000,30000-50000]"),
        one("disks:{sda1}"),
    ];
    assert_eq!(resources, pieces.into_iter().collect::<Resources>());
    assert_eq!(all(""), Resources::new());
    assert_eq!(all(";cpus:1;;mem:2;"), all("cpus:1;mem:2"));
    assert_eq!(all(" cpus : 1 ;  mem(a) : 2"), all("cpus:1;mem(a):2"));
    assert_eq!(all("cpus:1;cpus:2.5"), all("cpus:3.5"));
    assert_eq!(all("ports:[1-5];ports:[4-9]"), all("ports:[1-9]"));
    assert_eq!(
        all("cpus:0x10;ports:[0x1-0xA]"),
        all("cpus:16;ports:[1-10]")
    );
    assert_eq!(
        all("cpus:1e3;mem:.5;disk:5."),
        all("cpus:1000;mem:0.5;disk:5")
    );
    assert_eq!(all("ports:[1-2\n,4-5]"), all("ports:[1-2,4-5]"));
    assert_eq!(all("foo(*):1"), all("foo:1"));
}

#[test]
fn resources_parsing_with_roles() {
    let parsed = all("cpus(role1):2.5;ports(role2):[0-100]");
    for resource in &parsed {
        let expected = if *resource.name() == "cpus" {
            "role1"
        } else {
            "role2"
        };
        assert_eq!(
            resource.reservations(),
            [Reservation::fixed(role(expected))]
        );
    }
    let by_default = Resources::parse("cpus:2.5;ports(role2):[0-100]", &role("role1")).unwrap();
    assert_eq!(by_default, parsed);
    let star = Resources::parse("cpus(*):2.5", &role("role1")).unwrap();
    assert_eq!(star, all("cpus:2.5"));
}

/// Each error gives the position, the mistake, and the correct form.
#[test]
fn resources_parse_error() {
    let cases = [
        ("cpus(role1)", 0, "missing or extra ':'"),
        ("cpus:1;mem", 7, "missing or extra ':'"),
        ("cpus:1:2", 0, "write name:value"),
        (
            "cpus(role1:1",
            0,
            "mismatched parentheses; write name(role):value",
        ),
        ("cpus)(role1:1", 0, "mismatched parentheses"),
        ("cpus(a)b:1", 0, "unexpected 'b' between the role and ':'"),
        (":1", 0, "Empty resource name"),
        ("cpus:1; (a):2", 7, "Empty resource name"),
        ("cpus():1", 0, "Role names cannot be the empty string"),
        ("cpus(/a):1", 0, "Role '/a' cannot start with a slash"),
        ("cpus:", 0, "bad value for cpus: Expecting non-empty string"),
        ("cpus:  ", 0, "Expecting non-empty string"),
        ("mem:64;cpus:{1", 7, "Mismatched brackets"),
        ("ports:[1-2]]", 0, "Mismatched brackets"),
        ("disks:{aa,b}}", 0, "Mismatched brackets"),
        ("disks:}a{", 0, "Mismatched brackets"),
        ("ports:[1-2,3]", 0, "Expecting one or more \"ranges\""),
        ("ports:[1-2b]", 0, "Expecting non-negative integers in '2b'"),
        (
            "ports:[1-18446744073709551616]",
            0,
            "Expecting non-negative integers",
        ),
        ("ports:[5-1]", 0, "begin > end: the range 5-1 is inverted"),
        ("ports:1[2-3]", 0, "Unexpected '[' found"),
        ("disks:a{b}", 0, "Unexpected '{' found"),
        (
            "disks:{a,b,a}",
            0,
            "duplicated elements: 'a' is there twice",
        ),
        ("cpus:7.63918e-313", 0, "Subnormal values not supported"),
        ("cpus:-7.63918e-313", 0, "Subnormal values not supported"),
        ("cpus:0.00001", 0, "value <= 0"),
        ("cpus:1e300", 0, "out of range"),
        (
            "mem:1;cpus:-1",
            6,
            "Bad type for resource cpus value -1 type TEXT",
        ),
        ("cpus:inf", 0, "Bad type for resource cpus"),
        ("cpus:nan", 0, "it must be a number that is not negative"),
        (
            "cpus:abc",
            0,
            "Bad type for resource cpus value abc type TEXT",
        ),
        (
            "gpus:1.5",
            0,
            "'gpus' resource must be a non-negative integer, not 1.5",
        ),
        (
            "foo(role1):1;foo(role2):[0-1]",
            13,
            "different types are not allowed: SCALAR and RANGES",
        ),
    ];
    for (text, offset, expected) in cases {
        let error = Resources::parse(text, &Role::star()).expect_err(text);
        assert_eq!(error.offset, offset, "{text}: {error}");
        assert!(error.to_string().contains(expected), "{text}: {error}");
        assert!(
            error.to_string().contains(&format!("at byte {offset}")),
            "{text}: {error}"
        );
    }
}

#[test]
fn an_error_names_the_piece() {
    let error = Resources::parse("cpus:4;mem=64;disk:1", &Role::star()).unwrap_err();
    assert_eq!(error.piece, "mem=64");
    assert_eq!(error.reason, ParseReason::Colons);
    assert_eq!(
        refused("cpus:4;mem=64"),
        "'mem=64' at byte 7: missing or extra ':'; write name:value or name(role):value, with ';' \
         between"
    );
}

#[test]
fn command_line_resources_are_plain() {
    let check = |resources: &Resources| validate_command_line_resources(resources);
    assert_eq!(check(&all("cpus:1;mem(a):2;ports:[1-2];gpus:2")), Ok(()));
    assert!(matches!(
        check(&sum(&[&volume(1.0, "role", "1", "path")])),
        Err(CommandLineError::PersistentVolume(_))
    ));
    assert!(matches!(
        check(&revocable("cpus:1")),
        Err(CommandLineError::Revocable(_))
    ));
    assert!(matches!(
        check(&reserved("cpus:1", &dynamic("role", "p")).into()),
        Err(CommandLineError::DynamicReservation(_))
    ));
    let two_types: Resources = [one("foo(a):1"), one("foo:{x}")].into_iter().collect();
    assert!(matches!(
        check(&two_types),
        Err(CommandLineError::TypeConflict(_))
    ));
    for (text, cure) in [
        ("ports:5", "ports:[31000-32000]"),
        ("cpus:{a}", "cpus:4"),
        ("mem:[1-2]", "mem:4"),
        ("disk(a):{a}", "disk:4"),
        ("gpus:[1-2]", "gpus:4"),
        ("my bugs:{a}", "without ' '"),
        ("b\u{fc}gs:1", "letters, digits, '-', '/', '.' and '_'"),
    ] {
        let error = check(&all(text)).unwrap_err().to_string();
        assert!(error.contains(cure), "{text}: {error}");
    }
    assert_eq!(check(&all("a-b/c.d_E9:{x};bugs:[1-2]")), Ok(()));
    let half = one("gpus:1").with_value(crate::given::scalar(0.5).into());
    assert!(matches!(
        check(&half.into()),
        Err(CommandLineError::Gpus(_))
    ));
}

#[test]
fn plain_resources_survive_print_and_parse() {
    let resources = all("cpus:0.5;mem:64;ports:[1-2,7-7];disks:{a,b}");
    assert_eq!(
        resources.to_string(),
        "cpus:0.5; disks:{a, b}; mem:64; ports:[1-2, 7-7]"
    );
    assert_eq!(all(&resources.to_string()), resources);
    assert!(resources.iter().all(Resource::is_unreserved));
}
