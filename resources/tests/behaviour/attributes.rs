//! The text of `--attributes`.

use meseta_resources::{AttributeValue, Attributes, ParseReason};

use crate::given::{ranges, scalar};

fn parse(text: &str) -> Attributes {
    text.parse().unwrap()
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::Text(text.into())
}

#[test]
fn attributes_parsing() {
    let attributes = parse("cpus:45.55;ports:[10000-20000, 30000-50000];rack:rack1,rack2");
    let expected = [
        ("cpus", AttributeValue::Scalar(scalar(45.55))),
        (
            "ports",
            AttributeValue::Ranges(ranges("[10000-20000,30000-50000]")),
        ),
        ("rack", text("rack1,rack2")),
    ];
    assert_eq!(attributes.len(), 3);
    for (attribute, (name, value)) in attributes.iter().zip(expected) {
        assert_eq!((attribute.name(), attribute.value()), (name, &value));
    }
    let colons = parse("attr1:foo:bar;attr2:baz:qux:");
    assert!(colons.get("attr1").eq([&text("foo:bar")]));
    assert!(colons.get("attr2").eq([&text("baz:qux:")]));
    assert_eq!(
        attributes.to_string(),
        "cpus=45.55; ports=[10000-20000, 30000-50000]; rack=rack1,rack2"
    );
}

#[test]
fn attributes_equality() {
    let attributes = parse("cpus:45.55;ports:[10000-20000, 30000-50000];rack:rack1,rack2");
    assert_eq!(
        attributes,
        parse("ports:[30000-50000,10000-20000]\nrack:rack1,rack2;cpus:45.55")
    );
    assert_eq!(parse(""), Attributes::new());
    assert_ne!(attributes, parse(""));
    assert_ne!(attributes, parse("cpus:45.55;ports:45.55;rack:45.55"));
    assert_eq!(
        parse("rack:rack1;dedicated:customer1;dedicated:customer2"),
        parse("dedicated:customer2;dedicated:customer1;rack:rack1")
    );
    assert!(
        parse("dedicated:a;dedicated:b")
            .get("dedicated")
            .eq([&text("a"), &text("b")])
    );
}

#[test]
fn non_numeric_attributes_are_text() {
    for (written, expected) in [
        ("a:-1", "-1"),
        ("a:inf", "inf"),
        ("a:-inf", "-inf"),
        ("a:nan", "nan"),
        ("a:123abc,s", "123abc,s"),
        ("a:us east", "useast"),
        ("serial:98765432109876543210", "98765432109876543210"),
    ] {
        let attributes = parse(written);
        assert_eq!(attributes.iter().next().unwrap().value(), &text(expected));
    }
}

#[test]
fn attributes_malformed() {
    for (written, offset, expected) in [
        ("rack", 0, "write name:value"),
        ("a:1;rack:", 4, "neither of them empty"),
        (":x", 0, "neither of them empty"),
        ("a: ", 0, "Expecting non-empty string"),
        ("zones:{a,b}", 0, "sets are not supported"),
        ("a:b[1]", 0, "Unexpected '['"),
        ("a:1\nb:[1-", 4, "Mismatched brackets"),
    ] {
        let error = written.parse::<Attributes>().expect_err(written);
        assert_eq!(error.offset, offset, "{written}: {error}");
        assert!(error.to_string().contains(expected), "{written}: {error}");
    }
    let error = "zones:{a}".parse::<Attributes>().unwrap_err();
    assert_eq!(error.reason, ParseReason::SetAttribute("zones".into()));
}
