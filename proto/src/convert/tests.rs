//! Conversion from and to every format.

use meseta_resources::{AgentId, Attributes, ContainerId, Resources, Role, TaskId};
use serde_json::{Value, json};

use super::*;
use crate::json;
use crate::mesos::v1;

fn message(value: &Value) -> v1::Resource {
    json::from_slice(value.to_string().as_bytes()).unwrap()
}

fn error(value: &Value) -> String {
    resource(&message(value)).unwrap_err().to_string()
}

fn cpus(more: Value) -> Value {
    let mut out = json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 1.5}});
    let Value::Object(more) = more else {
        panic!("not an object")
    };
    out.as_object_mut().unwrap().extend(more);
    out
}

fn written(resource: &meseta_resources::Resource, format: Format) -> Value {
    serde_json::to_value(to_resource(resource, format).unwrap()).unwrap()
}

#[test]
fn unreserved_resources_in_each_format() {
    let plain = resource(&message(&cpus(json!({})))).unwrap();
    assert_eq!(
        plain,
        resource(&message(&cpus(json!({"role": "*"})))).unwrap()
    );
    assert_eq!(written(&plain, Format::PostRefinement), cpus(json!({})));
    assert_eq!(
        written(&plain, Format::PreRefinement),
        cpus(json!({"role": "*"}))
    );
    assert_eq!(
        written(&plain, Format::Endpoint),
        cpus(json!({"role": "*"}))
    );
}

#[test]
fn single_reservations_in_each_format() {
    let fixed = json!({"role": "ads"});
    let fixed_stack = json!({"reservations": [{"type": "STATIC", "role": "ads"}]});
    let labels = json!({"labels": [{"key": "k", "value": "v"}]});
    let dynamic = json!({"role": "ads", "reservation": {"principal": "p", "labels": labels}});
    let dynamic_stack = json!({
        "reservations": [{"type": "DYNAMIC", "role": "ads", "principal": "p", "labels": labels}],
    });
    for (old, new) in [(fixed, fixed_stack), (dynamic, dynamic_stack)] {
        let mut both = old.clone();
        both.as_object_mut()
            .unwrap()
            .extend(new.as_object().unwrap().clone());
        let parsed = resource(&message(&cpus(old.clone()))).unwrap();
        assert_eq!(parsed, resource(&message(&cpus(new.clone()))).unwrap());
        assert_eq!(parsed, resource(&message(&cpus(both.clone()))).unwrap());
        assert_eq!(written(&parsed, Format::PreRefinement), cpus(old));
        assert_eq!(written(&parsed, Format::PostRefinement), cpus(new));
        assert_eq!(written(&parsed, Format::Endpoint), cpus(both));
    }
}

#[test]
fn refined_reservations_need_the_stack() {
    let stack = cpus(json!({"reservations": [
        {"type": "STATIC", "role": "a"}, {"type": "DYNAMIC", "role": "a/b", "principal": "p"},
    ]}));
    let refined = resource(&message(&stack)).unwrap();
    assert_eq!(written(&refined, Format::PostRefinement), stack);
    assert_eq!(written(&refined, Format::Endpoint), stack);
    let refused = to_resource(&refined, Format::PreRefinement).unwrap_err();
    assert_eq!(refused.0, refined);
    assert!(to_resources(&Resources::from(refined), Format::PreRefinement).is_err());
}

/// Regression, found by libFuzzer: the resource was sent without its principal, so resources made from it differed from those
/// offered.
#[test]
fn static_reservation_principal_needs_the_stack() {
    for who in [
        json!({"principal": "p"}),
        json!({"labels": {"labels": [{"key": "k"}]}}),
    ] {
        let mut reservation = json!({"type": "STATIC", "role": "a"});
        let fields = reservation.as_object_mut().unwrap();
        fields.extend(who.as_object().unwrap().clone());
        let stack = cpus(json!({"reservations": [reservation]}));
        let reserved = resource(&message(&stack)).unwrap();
        assert_eq!(written(&reserved, Format::PostRefinement), stack);
        let refused = to_resource(&reserved, Format::PreRefinement).unwrap_err();
        assert_eq!(refused.0, reserved);
    }
}

#[test]
fn everything_about_a_disk_comes_back() {
    for disk in [
        json!({"persistence": {"id": "v1", "principal": "ops"},
            "volume": {"mode": "RW", "container_path": "data"}}),
        json!({"source": {"type": "MOUNT", "mount": {"root": "/mnt/a"}}}),
        json!({"source": {"type": "PATH", "path": {"root": "/a"}}, "persistence": {"id": "v2"},
            "volume": {"mode": "RO", "container_path": "data", "host_path": "/h"}}),
        json!({"source": {"type": "RAW", "vendor": "v", "id": "i", "profile": "p",
            "metadata": {"labels": [{"key": "k"}]}}}),
        json!({"source": {"type": "BLOCK", "id": "i"}}),
    ] {
        let value = json!({
            "provider_id": {"value": "rp"}, "name": "disk", "type": "SCALAR",
            "scalar": {"value": 64.0}, "allocation_info": {"role": "a"},
            "reservations": [{"type": "DYNAMIC", "role": "a"}], "disk": disk,
        });
        let parsed = resource(&message(&value)).unwrap();
        assert_eq!(written(&parsed, Format::PostRefinement), value);
    }
}

#[test]
fn each_shared_volume_copy_is_written() {
    let volume = message(&json!({
        "name": "disk", "type": "SCALAR", "scalar": {"value": 64.0}, "shared": {},
        "reservations": [{"type": "DYNAMIC", "role": "a"}],
        "disk": {"persistence": {"id": "v"}, "volume": {"mode": "RW", "container_path": "d"}},
    }));
    let twice = resources(&[volume.clone(), volume.clone()]).unwrap();
    assert_eq!(twice.len(), 1);
    assert_eq!(
        to_resources(&twice, Format::PostRefinement).unwrap(),
        [volume.clone(), volume]
    );
}

#[test]
fn faults_are_named() {
    for (value, fragment) in [
        (
            json!({"name": "", "type": "SCALAR", "scalar": {"value": 1}}),
            "name",
        ),
        (
            json!({"name": "cpus", "type": "TEXT"}),
            "Unsupported resource type",
        ),
        (
            json!({"name": "cpus", "type": "SET", "scalar": {"value": 1}}),
            "Invalid set resource",
        ),
        (cpus(json!({"scalar": {"value": -1}})), "value < 0"),
        (cpus(json!({"scalar": {"value": 0.0001}})), "value <= 0"),
        (
            cpus(json!({"scalar": {"value": "Infinity"}})),
            "not a finite number",
        ),
        (cpus(json!({"scalar": {"value": 1e300}})), "out of range"),
        (cpus(json!({"role": "a/../b"})), "cannot include '..'"),
        (
            cpus(json!({"role": "*", "reservation": {}})),
            "cannot be dynamically reserved",
        ),
        (
            cpus(json!({"reservations": [{"role": "a"}]})),
            "'Resource.ReservationInfo.type' field",
        ),
        (
            cpus(json!({"reservations": [{"type": "NEW", "role": "a"}]})),
            "type' field must be set",
        ),
        (
            cpus(json!({"reservations": [{"type": "UNKNOWN", "role": "a"}]})),
            "STATIC or DYNAMIC",
        ),
        (
            cpus(json!({"role": "b", "reservations": [{"type": "STATIC", "role": "a"}]})),
            "does not match the role",
        ),
        (cpus(json!({"disk": {}})), "DiskInfo"),
        (cpus(json!({"shared": {}})), "shared"),
        (
            json!({"name": "p", "type": "RANGES", "ranges": {"range": [{"begin": 2, "end": 1}]}}),
            "begin > end",
        ),
        (
            json!({"name": "s", "type": "SET", "set": {"item": ["a", "a"]}}),
            "duplicated elements",
        ),
    ] {
        let text = error(&value);
        assert!(text.contains(fragment), "{value}: {text}");
    }
    let unknown = v1::Resource {
        name: "cpus".into(),
        r#type: 99,
        ..Default::default()
    };
    assert!(
        resource(&unknown)
            .unwrap_err()
            .to_string()
            .contains("Invalid resource type")
    );
    let second = [
        message(&cpus(json!({}))),
        message(&cpus(json!({"scalar": {"value": -1}}))),
    ];
    let error = resources(&second).unwrap_err();
    assert_eq!(error.index, 1);
    assert!(
        error
            .to_string()
            .starts_with("Resource 'cpus' is invalid: "),
        "{error}"
    );
}

#[test]
fn operators_write_text_or_json() {
    let ads = Role::new("ads").unwrap();
    let text = parse_resources("cpus:1.5;mem(*):64", &ads).unwrap();
    let json = parse_resources(
        r#" [{"name":"cpus","type":"SCALAR","scalar":{"value":1.5}},
            {"name":"mem","type":"SCALAR","scalar":{"value":64},"role":"*"}]"#,
        &ads,
    );
    assert_eq!(json.unwrap(), text);
    for (given, fragment) in [
        ("cpus", "missing or extra ':'"),
        ("[", "Failed to parse body into JSON: syntax error"),
        ("[1]", "Expecting a JSON object"),
        (r#"[{"name":"cpus"}]"#, "Missing required fields: type"),
        (r#"{"name":"cpus"}"#, "write a list of resources, [{...}]"),
        (
            r#"[{"name":"cpus","type":"SCALAR","scalar":{"value":-1}}]"#,
            "value < 0",
        ),
    ] {
        let error = parse_resources(given, &ads).unwrap_err().to_string();
        assert!(error.contains(fragment), "{given}: {error}");
    }
}

#[test]
fn attributes_there_and_back() {
    let given: Attributes = "rack:a:b;level:2.5;slots:[1-3,5-6]".parse().unwrap();
    let messages = to_attributes(&given);
    assert_eq!(attributes(&messages).unwrap(), given);
    assert_eq!(
        serde_json::to_value(&messages[2]).unwrap(),
        json!({"name": "slots", "type": "RANGES",
            "ranges": {"range": [{"begin": 1, "end": 3}, {"begin": 5, "end": 6}]}})
    );
    let mut set = messages[0].clone();
    set.set_type(v1::value::Type::Set);
    assert!(matches!(
        attributes(&[set]),
        Err(AttributeError::Set { .. })
    ));
    let mut bare = messages[0].clone();
    bare.text = None;
    assert!(matches!(
        attributes(&[bare]),
        Err(AttributeError::WrongField { .. })
    ));
}

#[test]
fn ids_are_validated_on_input() {
    let agent = AgentId::new("S1").unwrap();
    let message = v1::AgentId::from(&agent);
    assert_eq!(AgentId::try_from(&message).unwrap(), agent);
    for bad in ["", "a/b", "..", "a\u{7}"] {
        assert!(
            TaskId::try_from(v1::TaskId { value: bad.into() }).is_err(),
            "{bad:?}"
        );
    }
    let nested = ContainerId::new("a")
        .unwrap()
        .child("b")
        .unwrap()
        .child("c")
        .unwrap();
    let message = v1::ContainerId::from(&nested);
    assert_eq!(message.value, "c");
    assert_eq!(message.parent.as_ref().unwrap().value, "b");
    assert_eq!(ContainerId::try_from(&message).unwrap(), nested);
    assert!(ContainerId::try_from(&v1::ContainerId::default()).is_err());
}

#[test]
fn roles_follow_the_capability() {
    let framework = |value: Value| -> v1::FrameworkInfo {
        let mut all = json!({"user": "u", "name": "n"});
        all.as_object_mut()
            .unwrap()
            .extend(value.as_object().unwrap().clone());
        json::from_slice(all.to_string().as_bytes()).unwrap()
    };
    let roles = |value| {
        let roles = framework_roles(&framework(value)).map_err(|error| error.to_string())?;
        Ok::<_, String>(roles.iter().map(Role::to_string).collect::<Vec<_>>())
    };
    let multi = json!([{"type": "MULTI_ROLE"}]);
    assert_eq!(roles(json!({})).unwrap(), ["*"]);
    assert_eq!(roles(json!({"role": "a"})).unwrap(), ["a"]);
    assert_eq!(
        roles(json!({"roles": ["b", "a"], "capabilities": multi})).unwrap(),
        ["b", "a"]
    );
    assert!(roles(json!({"capabilities": multi})).unwrap().is_empty());
    for (value, fragment) in [
        (json!({"roles": ["a"]}), "is not MULTI_ROLE capable"),
        (
            json!({"role": "a", "capabilities": multi}),
            "is MULTI_ROLE capable",
        ),
        (
            json!({"roles": ["a", "a"], "capabilities": multi}),
            "duplicate items: { a }",
        ),
        (
            json!({"roles": ["/"], "capabilities": multi}),
            "contains invalid role: ",
        ),
        (
            json!({"role": "a//b"}),
            "'FrameworkInfo.role' is not a valid role: ",
        ),
    ] {
        let error = roles(value).unwrap_err();
        assert!(error.contains(fragment), "{error}");
    }
    let capabilities =
        FrameworkCapabilities::from_framework(&framework(json!({"capabilities": multi})));
    assert!(capabilities.multi_role && !capabilities.gpu_resources);
}

#[test]
fn amounts_by_name() {
    let message = [("cpus", 1.5), ("mem", 64.0)]
        .map(|(name, value)| (name.to_owned(), v1::value::Scalar { value }));
    let amounts = quantities(&message.into()).unwrap();
    assert_eq!(amounts.get("cpus").to_string(), "1.5");
    let negative = [("cpus".to_owned(), v1::value::Scalar { value: -1.0 })];
    assert_eq!(quantities(&negative.into()).unwrap_err().0, "cpus");
}
