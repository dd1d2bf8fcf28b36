//! The dialect, rule by rule.

use serde_json::json;

use super::{Error, from_slice, many_from_slice, to_string};
use crate::mesos::v1::master::call::DrainAgent;
use crate::mesos::v1::scheduler::{AttributeConstraint, Call, Event, OfferConstraints, call};
use crate::mesos::v1::{
    CommandInfo, ContainerInfo, Environment, Filters, FrameworkInfo, HealthCheck, Labels,
    MasterInfo, Resource, TaskInfo, TaskStatus, Value, health_check, task_status, value,
};
use crate::schema::WireMessage;

fn read<T: WireMessage>(value: &serde_json::Value) -> T {
    from_slice(value.to_string().as_bytes()).unwrap()
}

fn refused<T: WireMessage>(body: &str) -> String {
    from_slice::<T>(body.as_bytes())
        .map(|_| ())
        .unwrap_err()
        .to_string()
}

#[test]
fn null_is_absence_at_any_depth() {
    let call: Call = read(&json!({
        "type": "SUBSCRIBE", "framework_id": null, "accept": null,
        "subscribe": {"framework_info": {
            "user": "u", "name": "n", "role": null, "roles": [null, "a"], "capabilities": null,
            "offer_filters": {"a": null},
        }},
    }));
    let info = call.subscribe.unwrap().framework_info;
    assert_eq!(
        (call.framework_id, call.accept, info.role),
        (None, None, None)
    );
    assert_eq!(info.roles, ["a"]);
    assert!(info.offer_filters.is_empty());
    // For a required field this equals a missing field.
    assert_eq!(
        refused::<FrameworkInfo>(r#"{"user": null, "name": "n"}"#),
        "Failed to convert JSON into FrameworkInfo protobuf: Missing required fields: user"
    );
}

/// The discarded value causes no error.
#[test]
fn last_of_duplicate_keys_wins() {
    let text = r#"{"type": "KILL", "type": "REVIVE", "revive": {"roles": ["a"]}, "revive": {"roles": ["b"]}}"#;
    let call: Call = from_slice(text.as_bytes()).unwrap();
    assert_eq!(call.r#type(), call::Type::Revive);
    assert_eq!(call.revive.unwrap().roles, ["b"]);
}

#[test]
fn unknown_keys_are_ignored() {
    let filters: Filters = read(&json!({
        "x": [1, -2, 3.5, "a", null, true, {"y": [[]]}], "refuse_seconds": 1, "refuseSeconds": 7,
        "\u{e9}\n": "escaped",
    }));
    assert_eq!(filters.refuse_seconds, Some(1.0));
}

#[test]
fn enums_go_by_name_alone() {
    let capabilities: FrameworkInfo = read(&json!({
        "user": "u", "name": "n", "capabilities": [{"type": "GPU_RESOURCES"}, {"type": "FROM_2030"}],
    }));
    assert_eq!(capabilities.capabilities[0].r#type, Some(3));
    assert_eq!(capabilities.capabilities[1].r#type, None);
    assert_eq!(
        refused::<Call>(r#"{"type": 1}"#),
        "Failed to convert JSON into Call protobuf: Not expecting a JSON number for field 'type'"
    );
    assert_eq!(
        refused::<Value>(r#"{"type": "COMPLEX"}"#),
        "Failed to convert JSON into Value protobuf: Failed to find enum for 'COMPLEX'"
    );
    assert_eq!(read::<Call>(&json!({"type": "FROM_2030"})).r#type, None);
}

/// Regression: a guarantee of minus zero changed on the way through protobuf and back.
#[test]
fn minus_zero_is_zero() {
    for zero in [json!(-0.0), json!("-0"), json!("-0.0")] {
        let health: HealthCheck = read(&json!({ "delay_seconds": zero }));
        let delay = health.delay_seconds.expect("a delay");
        assert!(delay == 0.0 && delay.is_sign_positive(), "{zero}");
    }
}

#[test]
fn numbers_and_booleans_may_be_strings() {
    let health: HealthCheck = read(&json!({
        "consecutive_failures": "4", "delay_seconds": "1.5", "interval_seconds": "Infinity",
        "timeout_seconds": "-Infinity", "http": {"port": "80", "statuses": ["200", 204.9]},
    }));
    assert_eq!(health.consecutive_failures, Some(4));
    assert_eq!(health.delay_seconds, Some(1.5));
    assert_eq!(health.interval_seconds, Some(f64::INFINITY));
    assert_eq!(health.timeout_seconds, Some(f64::NEG_INFINITY));
    let http = health.http.unwrap();
    assert_eq!((http.port, http.statuses), (80, vec![200, 204]));
    assert_eq!(
        read::<CommandInfo>(&json!({"shell": "false"})).shell,
        Some(false)
    );
    for (body, reason) in [
        (
            r#"{"shell": "no"}"#,
            "Failed to parse 'no' as a JSON boolean for field 'shell'",
        ),
        (
            r#"{"shell": 0}"#,
            "Not expecting a JSON number for field 'shell'",
        ),
        (
            r#"{"value": 5}"#,
            "Not expecting a JSON number for field 'value'",
        ),
        (
            r#"{"value": true}"#,
            "Not expecting a JSON boolean for field 'value'",
        ),
        (
            r#"{"value": ["a"]}"#,
            "Not expecting a JSON array for field 'value'",
        ),
        (
            r#"{"value": {}}"#,
            "Not expecting a JSON object for field 'value'",
        ),
        (
            r#"{"uris": "x"}"#,
            "Not expecting a JSON string for field 'uris'",
        ),
        (
            r#"{"uris": [[]]}"#,
            "Not expecting a JSON array for field 'uris'",
        ),
    ] {
        let expected = format!("Failed to convert JSON into CommandInfo protobuf: {reason}");
        assert_eq!(refused::<CommandInfo>(body), expected);
    }
}

#[test]
fn numbers_out_of_range_are_refused() {
    for port in [
        "-1",
        "4294967296",
        "1e12",
        "\"-1\"",
        "\"1e300\"",
        "\"NaN\"",
        "\"\"",
        "\" \"",
    ] {
        let body = format!(r#"{{"http": {{"port": {port}}}}}"#);
        let error = refused::<HealthCheck>(&body);
        assert!(error.contains("for field 'port'"), "{port}: {error}");
    }
    assert!(refused::<Filters>(r#"{"refuse_seconds": "NaN"}"#).contains("'refuse_seconds'"));
    assert!(refused::<Filters>(r#"{"refuse_seconds": 1e999}"#).contains("syntax error"));
    let exact: value::Range = read(&json!({"begin": 0, "end": u64::MAX}));
    assert_eq!(exact.end, u64::MAX);
}

#[test]
fn single_value_reads_as_list() {
    let info: FrameworkInfo = read(&json!({
        "user": "u", "name": "n", "roles": "a", "capabilities": {"type": "MULTI_ROLE"},
    }));
    assert_eq!(info.roles, ["a"]);
    assert_eq!(info.capabilities[0].r#type, Some(6));
    let http: health_check::HttpCheckInfo = read(&json!({"port": 1, "statuses": 200}));
    assert_eq!(http.statuses, [200]);
}

#[test]
fn all_missing_fields_are_listed() {
    for (body, paths) in [
        (
            json!({"subscribe": {"framework_info": {"name": "x"}}}),
            "subscribe.framework_info.user",
        ),
        (json!({"subscribe": {}}), "subscribe.framework_info"),
        (
            json!({"accept": {
                "offer_ids": [{"value": "a"}, {}],
                "operations": [{"launch": {"task_infos": [{"limits": {"cpus": {}}}]}}],
            }}),
            "accept.offer_ids[1].value, accept.operations[0].launch.task_infos[0].name, \
             accept.operations[0].launch.task_infos[0].task_id, \
             accept.operations[0].launch.task_infos[0].agent_id, \
             accept.operations[0].launch.task_infos[0].limits[\"cpus\"].value",
        ),
        (
            json!({"decline": {"offer_ids": {}}}),
            "decline.offer_ids[0].value",
        ),
    ] {
        assert_eq!(
            refused::<Call>(&body.to_string()),
            format!("Failed to convert JSON into Call protobuf: Missing required fields: {paths}")
        );
    }
    // With serde alone it is an error too.
    assert!(serde_json::from_str::<FrameworkInfo>("{}").is_err());
    assert!(serde_json::from_str::<FrameworkInfo>(r#"{"user":"u","name":"n"}"#).is_ok());
}

#[test]
fn faults_of_syntax_come_first() {
    for (body, reason) in [
        ("{", "syntax error at line 1 near: "),
        ("", "syntax error at line 1 near: "),
        ("{\"type\": x}", "syntax error at line 1 near: x}"),
        // The values are wrong, too.
        (
            "{\"type\": 1,\n oops}",
            "syntax error at line 2 near: oops}",
        ),
        ("{} {}", "syntax error at line 1 near: {}"),
        ("{\"a\":\"\\ud800\"}", "syntax error"),
    ] {
        let error = refused::<Call>(body);
        let expected = format!("Failed to parse body into JSON: {reason}");
        assert!(error.starts_with(&expected), "{body}: {error}");
    }
    assert!(matches!(
        from_slice::<Call>(b"{\"a\":\"\xff\"}"),
        Err(Error::Syntax { .. })
    ));
    for body in ["[]", "5", "\"x\"", "null", "true", "[{}]"] {
        let expected = "Failed to convert JSON into Call protobuf: Expecting a JSON object";
        assert_eq!(refused::<Call>(body), expected);
    }
}

#[test]
fn deep_nesting_fails_without_overflow() {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    for value in [
        deep("[", "]"),
        deep("{\"a\":", "}").replace("{\"a\":}", "{}"),
        format!("{{\"unknown\":{}}}", deep("[", "]")),
        format!("{{\"type\":1,\"unknown\":{}}}", deep("[", "]")),
        "[".repeat(1_000_000),
        "{\"framework_id\":".repeat(100_000),
    ] {
        let error = refused::<Call>(&value);
        assert!(
            error.starts_with("Failed to parse body into JSON"),
            "{error}"
        );
    }
    let ids = "{\"value\":\"a\",\"parent\":".repeat(10_000) + "null" + &"}".repeat(10_000);
    assert!(from_slice::<crate::mesos::v1::ContainerId>(ids.as_bytes()).is_err());
}

#[test]
fn bytes_are_base64() {
    let status: TaskStatus = read(&json!({
        "task_id": {"value": "t"}, "state": "TASK_RUNNING", "data": "AAEC\n/w==", "uuid": "AAE",
        "source": "SOURCE_EXECUTOR", "reason": "REASON_TASK_INVALID",
    }));
    assert_eq!(status.data.as_deref(), Some(&[0, 1, 2, 255][..]));
    assert_eq!(status.uuid.as_deref(), Some(&[0, 1][..]));
    assert_eq!(status.source(), task_status::Source::Executor);
    let written = to_string(&status);
    assert!(written.contains(r#""data":"AAEC/w==""#), "{written}");
    assert!(written.contains(r#""uuid":"AAE=""#), "{written}");
    assert!(refused::<TaskStatus>(r#"{"data": "a!"}"#).contains("base64"));
    let object = r#"{"acknowledge_operation_status": {"uuid": {"value": "AAE="}}}"#;
    let error = refused::<Call>(object);
    assert!(error.contains("uuid"), "{error}");
}

#[test]
fn defaults_are_written_unless_deprecated() {
    let info = FrameworkInfo {
        user: "u".into(),
        name: "n".into(),
        ..Default::default()
    };
    assert_eq!(
        to_string(&info),
        r#"{"user":"u","name":"n","failover_timeout":0.0,"checkpoint":false}"#
    );
    assert_eq!(to_string(&Filters::default()), r#"{"refuse_seconds":5.0}"#);
    let resource = Resource {
        name: "cpus".into(),
        scalar: Some(value::Scalar { value: 12.0 }),
        role: Some("*".into()),
        revocable: Some(Default::default()),
        ..Default::default()
    };
    assert_eq!(
        to_string(&resource),
        r#"{"name":"cpus","type":"SCALAR","scalar":{"value":12.0},"role":"*","revocable":{}}"#
    );
    assert!(to_string(&MasterInfo::default()).contains(r#""port":5050"#));
    let drain = DrainAgent {
        max_grace_period: Some(Default::default()),
        ..Default::default()
    };
    let expected = r#"{"agent_id":{"value":""},"max_grace_period":{},"mark_gone":false}"#;
    assert_eq!(to_string(&drain), expected);
    let variables: Environment = read(&json!({"variables": [{"name": "A", "value": "b"}]}));
    let expected = r#"{"variables":[{"name":"A","type":"VALUE","value":"b"}]}"#;
    assert_eq!(to_string(&variables), expected);
}

#[test]
fn fields_keep_declaration_order() {
    let event: Event = read(&json!({
        "rescind": {"offer_id": {"value": "o"}}, "type": "RESCIND", "offers": {},
    }));
    let expected = r#"{"type":"RESCIND","offers":{},"rescind":{"offer_id":{"value":"o"}}}"#;
    assert_eq!(to_string(&event), expected);
    let heartbeat = Event {
        r#type: Some(8),
        ..Default::default()
    };
    assert_eq!(to_string(&heartbeat), r#"{"type":"HEARTBEAT"}"#);
}

#[test]
fn unknown_enum_number_reads_as_absent() {
    let mut task = TaskStatus {
        source: Some(99),
        reason: Some(-1),
        ..Default::default()
    };
    task.state = 6;
    assert_eq!(
        to_string(&task),
        r#"{"task_id":{"value":""},"state":"TASK_STAGING"}"#
    );
    let variable = crate::mesos::v1::environment::Variable {
        r#type: Some(9),
        ..Default::default()
    };
    assert_eq!(to_string(&variable), r#"{"name":"","type":"VALUE"}"#);
}

#[test]
fn oneofs_and_maps() {
    let body = json!({"role_constraints": {"r": {"groups": [{"attribute_constraints": [
        {"selector": {"attribute_name": "rack"}, "predicate": {"not_exists": {}}},
        {"selector": {"pseudoattribute_type": "ZONE"}, "predicate": {"text_equals": {"value": "z"}}},
    ]}]}}});
    let constraints: OfferConstraints = read(&body);
    assert_eq!(serde_json::to_value(&constraints).unwrap(), body);
    // The last member wins.
    let both: AttributeConstraint = from_slice(
        br#"{"selector": {"pseudoattribute_type": "ZONE", "attribute_name": "x"},
            "predicate": {"exists": null, "not_exists": {}}}"#,
    )
    .unwrap();
    let expected = r#"{"selector":{"attribute_name":"x"},"predicate":{"not_exists":{}}}"#;
    assert_eq!(to_string(&both), expected);
    let task: TaskInfo = read(&json!({
        "name": "", "task_id": {"value": "t"}, "agent_id": {"value": "a"},
        "limits": {"mem": {"value": "Infinity"}, "cpus": {"value": 1}},
    }));
    assert!(
        to_string(&task)
            .ends_with(r#""limits":{"cpus":{"value":1.0},"mem":{"value":"Infinity"}}}"#)
    );
    assert!(refused::<TaskInfo>(r#"{"limits": []}"#).contains("JSON array for field 'limits'"));
}

#[test]
fn strings_keep_slashes_and_escape_newlines() {
    let labels: Labels = read(&json!({"labels": [{"key": "a/\n\"\u{1F600}"}]}));
    assert_eq!(
        to_string(&labels),
        "{\"labels\":[{\"key\":\"a/\\n\\\"\u{1F600}\"}]}"
    );
}

#[test]
fn arrays_of_messages() {
    let body = br#"[{"name":"cpus","type":"SCALAR"},{"name":"mem","type":"SCALAR"}]"#;
    assert_eq!(many_from_slice::<Resource>(body).unwrap().len(), 2);
    for (body, reason) in [
        ("{}", "Expecting a JSON array"),
        ("\"x\"", "Expecting a JSON array"),
        ("[{}, 5]", "Expecting a JSON object"),
        ("[{\"type\":\"SET\"}]", "Missing required fields: name"),
    ] {
        let error = many_from_slice::<Resource>(body.as_bytes())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            format!("Failed to convert JSON into Resource protobuf: {reason}")
        );
    }
}

#[test]
fn call_survives_a_round_trip() {
    let call: Call = read(&json!({
        "framework_id": {"value": "f"}, "type": "ACKNOWLEDGE",
        "acknowledge": {"agent_id": {"value": "a"}, "task_id": {"value": "t"}, "uuid": "AAAA"},
    }));
    assert_eq!(call.r#type(), call::Type::Acknowledge);
    let again: Call = from_slice(to_string(&call).as_bytes()).unwrap();
    assert_eq!(again, call);
    let container: ContainerInfo = read(&json!({"type": "MESOS", "linux_info": {}}));
    assert!(to_string(&container).contains(r#""share_cgroups":true"#));
}
