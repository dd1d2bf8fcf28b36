//! What clients put on the wire and rely on in return: one test for each rule, to the byte.
//!
//! The rules are the union of what pymesos, mesos-framework, mesoshttp and mesos-go break on.

use meseta_tests::framework::{framework_info, task};
use meseta_tests::raw::{Head, Raw};
use meseta_tests::{Cluster, Framework};
use serde_json::{Value, json};

use crate::anywhere;
use crate::requests::{API, JSON, exchange, send_in_chunks, stream, subscribe_call};

meseta_tests::scenarios! {
    anywhere:
        paths_go_by_the_longest_prefix,
        request_bodies_may_come_in_chunks,
        null_means_unset,
        unknown_keys_and_names_are_ignored,
        credentials_are_ignored_without_authentication,
        media_types_are_compared_exactly,
        filters_may_last_forever,
        connections_are_kept_and_streams_outlive_close,
        streams_are_chunked_and_named,
        records_are_whole_chunks,
        taken_calls_have_no_body_and_no_type,
        versions_are_numbers,
        redirects_keep_the_scheme,
        offers_have_what_clients_read,
        updates_have_what_clients_read,
        a_framework_is_updated_at_once_or_told_why_not,
        unknown_is_a_call_that_is_not_served;
}

fn answer(cluster: &Cluster, line: &str, headers: &[&str], body: &str) -> (Head, String) {
    exchange(cluster.master.address(), line, headers, body)
}

/// The headers of a call on a framework's stream.
fn named(framework: &Framework) -> String {
    format!("Mesos-Stream-Id: {}", framework.stream_id)
}

fn call_of(framework: &Framework, kind: &str) -> String {
    json!({"type": kind, "framework_id": {"value": framework.id}}).to_string()
}

fn paths_go_by_the_longest_prefix() {
    let cluster = Cluster::default();
    for (line, status) in [
        ("GET /state", 200),
        ("GET /master/state", 200),
        ("GET /master/frameworks/", 200),
        ("GET /state/../state", 404),
        ("GET /nosuch", 404),
    ] {
        assert_eq!(answer(&cluster, line, &[], "").0.status, status, "{line}");
    }
    let health = r#"{"type": "GET_HEALTH"}"#;
    for path in ["/api/v1", "/api/v1/operator", "/master/api/v1/operator/"] {
        let (head, text) = answer(&cluster, &format!("POST {path}"), &[JSON], health);
        assert_eq!(
            (head.status, text.contains("get_health")),
            (200, true),
            "{path}"
        );
    }
    for path in ["/health", "/slave(1)/health", "/slave(1)/state", "/state"] {
        let mut raw = Raw::connect(cluster.agent().address());
        raw.request(&format!("GET {path}"), &["Connection: close"], "");
        assert_eq!(raw.head().status, 200, "{path} of the agent");
    }
    let internal = "POST /master/mesos.internal.RegisterFrameworkMessage";
    let (head, text) = answer(&cluster, internal, &[], "");
    assert_eq!(head.status, 501);
    assert!(text.contains("/api/v1/scheduler"), "{text}");
}

fn request_bodies_may_come_in_chunks() {
    let cluster = Cluster::default();
    let call = subscribe_call(&framework_info("dev"));
    let mut raw = Raw::connect(cluster.master.address());
    send_in_chunks(&mut raw, API, &call, 17);
    assert_eq!(raw.head().status, 200);
    assert_eq!(raw.record().expect("a record")["type"], "SUBSCRIBED");
}

fn null_means_unset() {
    let cluster = Cluster::default();
    let mut call = json!({"type": "SUBSCRIBE", "framework_id": null, "accept": null, "decline": null,
        "kill": null, "subscribe": {"framework_info": framework_info("dev"), "suppressed_roles": null}});
    for key in ["id", "role", "hostname", "principal", "webui_url", "labels"] {
        call["subscribe"]["framework_info"][key] = Value::Null;
    }
    let (mut raw, _) = stream(&cluster, &[JSON], &call.to_string());
    assert_eq!(raw.record().expect("a record")["type"], "SUBSCRIBED");
}

fn unknown_keys_and_names_are_ignored() {
    let cluster = Cluster::default();
    let mut info = framework_info("dev");
    info["command.environment"] = json!({"x": 1});
    info["failover_timeout"] = json!("60");
    info["capabilities"]
        .as_array_mut()
        .expect("a list")
        .push(json!({"type": "NO_SUCH_THING"}));
    let (mut raw, head) = stream(&cluster, &[JSON], &subscribe_call(&info));
    let subscribed = raw.until("SUBSCRIBED");
    let offer = raw.until("OFFERS")["offers"]["offers"][0].clone();
    let mut one = task(&offer, "t", "true", &[("cpus", 0.1), ("mem", 16.0)]);
    one["slave_id"] = offer["agent_id"].clone();
    one["resources"][0]["scalar"]["value"] = json!("0.1");
    let call = json!({"type": "ACCEPT", "framework_id": subscribed["subscribed"]["framework_id"],
        "accept": {"offer_ids": [offer["id"]],
                   "operations": [{"type": "LAUNCH", "launch": {"task_infos": [one]}}]}});
    let id = format!(
        "Mesos-Stream-Id: {}",
        head.header("mesos-stream-id").expect("an id")
    );
    let (head, text) = answer(&cluster, API, &[JSON, &id], &call.to_string());
    assert_eq!(head.status, 202, "{text}");
    assert_eq!(
        raw.until("UPDATE")["update"]["status"]["state"],
        "TASK_STARTING"
    );
    let (head, text) = answer(&cluster, API, &[JSON], r#"{"type": "NO_SUCH_CALL"}"#);
    assert_eq!(head.status, 400);
    assert!(text.ends_with("Expecting 'type' to be present"), "{text}");
}

fn credentials_are_ignored_without_authentication() {
    let cluster = Cluster::default();
    let none = "Authorization: Basic Tm9uZTpOb25l";
    stream(
        &cluster,
        &[JSON, none],
        &subscribe_call(&framework_info("dev")),
    );
}

fn media_types_are_compared_exactly() {
    let cluster = Cluster::default();
    let subscribe = subscribe_call(&framework_info("dev"));
    let sent: [(&[&str], u16); 4] = [
        (&[], 400),
        (&["Content-Type: text/json"], 415),
        (&["Content-Type: application/json; charset=utf-8"], 415),
        (&[JSON, "Accept: text/html"], 406),
    ];
    for (headers, status) in sent {
        let (head, text) = answer(&cluster, API, headers, &subscribe);
        assert_eq!(head.status, status, "{headers:?}: {text}");
    }
    let (json, protobuf) = ("application/json", "application/x-protobuf");
    for (accept, chosen) in [
        ("Accept: */*", json),
        ("Accept: application/*", json),
        ("Accept: application/x-protobuf", protobuf),
        ("Accept: application/x-protobuf, application/json", json),
        (
            "Accept: application/json;q=0, application/x-protobuf",
            protobuf,
        ),
        ("Accept: text/html, application/x-protobuf;q=0.5", protobuf),
    ] {
        let (_raw, head) = stream(&cluster, &[JSON, accept], &subscribe);
        assert_eq!(head.header("content-type"), Some(chosen), "{accept}");
    }
}

fn filters_may_last_forever() {
    let (_cluster, mut framework, offer) = Cluster::with_offer();
    framework.decline(&offer, 4_294_967_295.0);
    framework.accepted(json!({"type": "REVIVE"}));
    let offer = framework.offer();
    framework.decline(&offer, 0.5);
    framework.offer();
}

fn connections_are_kept_and_streams_outlive_close() {
    let cluster = Cluster::default();
    let call = subscribe_call(&framework_info("dev"));
    let (mut raw, _) = stream(&cluster, &[JSON, "Connection: close"], &call);
    raw.until("OFFERS");
    let framework = cluster.framework();
    let mut raw = Raw::connect(cluster.master.address());
    for _ in 0..3 {
        raw.request(
            API,
            &[JSON, &named(&framework)],
            &call_of(&framework, "REVIVE"),
        );
        assert_eq!(raw.answer().0.status, 202, "on one connection");
    }
}

fn streams_are_chunked_and_named() {
    let cluster = Cluster::default();
    let call = subscribe_call(&framework_info("dev"));
    for media in ["application/json", "application/x-protobuf"] {
        let accept = format!("Accept: {media}");
        let gzip = "Accept-Encoding: gzip";
        let (_raw, head) = stream(&cluster, &[JSON, &accept, gzip], &call);
        assert_eq!(head.header("content-type"), Some(media));
        assert_eq!(head.header("transfer-encoding"), Some("chunked"));
        assert_eq!(head.header("content-length"), None);
        assert_eq!(head.header("content-encoding"), None);
        let id = head.header("mesos-stream-id").expect("an id");
        assert_eq!((id.len(), id.matches('-').count()), (36, 4), "{id}");
    }
}

fn records_are_whole_chunks() {
    let cluster = Cluster::default();
    let (mut raw, _) = stream(&cluster, &[JSON], &subscribe_call(&framework_info("dev")));
    let first = raw.record().expect("a record");
    assert_eq!(first["type"], "SUBSCRIBED");
    assert_eq!(first["subscribed"]["heartbeat_interval_seconds"], 15.0);
    assert_eq!(raw.record(), Some(json!({"type": "HEARTBEAT"})));
    assert_eq!(raw.record().expect("a record")["type"], "OFFERS");
}

fn taken_calls_have_no_body_and_no_type() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    for kind in ["REVIVE", "SUPPRESS"] {
        let (head, text) = answer(
            &cluster,
            API,
            &[JSON, &named(&framework)],
            &call_of(&framework, kind),
        );
        assert_eq!((head.status, text.as_str()), (202, ""), "{kind}");
        assert_eq!(head.header("content-type"), None);
    }
}

fn versions_are_numbers() {
    let cluster = Cluster::default();
    let version = cluster.master.page("/version").json()["version"].clone();
    let parts: Vec<u32> = version
        .as_str()
        .expect("a text")
        .split('.')
        .map(|part| part.parse().expect("a number"))
        .collect();
    assert!(parts >= vec![1, 0, 0], "{version}");
}

fn redirects_keep_the_scheme() {
    let cluster = Cluster::default();
    let (head, _) = answer(&cluster, "GET /redirect", &[], "");
    assert_eq!(head.status, 307);
    let location = head.header("location").expect("a place");
    assert!(
        location.starts_with("//")
            && location.ends_with(cluster.master.address().rsplit(':').next().expect("a port")),
        "{location}"
    );
}

fn offers_have_what_clients_read() {
    let (cluster, framework, offer) = Cluster::with_offer();
    let address = &offer["url"]["address"];
    for text in [
        &offer["id"]["value"],
        &offer["agent_id"]["value"],
        &offer["hostname"],
        &address["ip"],
        &address["hostname"],
        &offer["url"]["scheme"],
    ] {
        assert!(
            text.as_str().is_some_and(|text| !text.is_empty()),
            "{offer:#}"
        );
    }
    assert_eq!(offer["framework_id"]["value"], framework.id);
    assert!(address["port"].is_u64());
    assert_eq!(offer["allocation_info"]["role"], "dev");
    framework.teardown();
    let plain = json!({"user": "root", "name": "plain", "role": "dev"});
    let mut plain = cluster.subscribe(&plain);
    let offer = plain.offer();
    assert_eq!(offer.get("allocation_info"), None);
    for resource in offer["resources"].as_array().expect("resources") {
        assert_eq!(resource.get("allocation_info"), None);
        assert_eq!(resource["role"], "*");
    }
}

fn updates_have_what_clients_read() {
    let (_cluster, mut framework, offer) = Cluster::with_offer();
    framework.launch_task(
        &offer,
        "t",
        "exec sleep 600",
        &[("cpus", 0.1), ("mem", 16.0)],
    );
    let status = framework.update("t");
    assert_eq!(status["executor_id"]["value"], "t");
    assert_eq!(meseta_tests::framework::uuid_bytes(&status).len(), 16);
    assert!(status["timestamp"].is_f64());
    assert!(status["container_status"]["container_id"]["value"].is_string());
    assert_eq!(status["agent_id"], offer["agent_id"]);
    framework.acknowledge(&status);
    framework.until_state("t", "TASK_RUNNING");
    framework.accepted(json!({"type": "RECONCILE", "reconcile": {"tasks": []}}));
    assert_eq!(framework.update("t").get("uuid"), None);
}

fn unknown_is_a_call_that_is_not_served() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    let call = call_of(&framework, "UNKNOWN");
    let (head, _) = answer(&cluster, API, &[JSON, &named(&framework)], &call);
    assert_eq!(head.status, 501);
    assert_eq!(
        answer(&cluster, API, &[JSON], &call).0.status,
        400,
        "no stream"
    );
    let gone = call.replace(&framework.id, "nobody");
    assert_eq!(
        answer(&cluster, API, &[JSON, &named(&framework)], &gone)
            .0
            .status,
        400
    );
}

fn a_framework_is_updated_at_once_or_told_why_not() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    let mut info = framework_info("dev");
    info["id"] = json!({"value": framework.id});
    let update = |change: &dyn Fn(&mut Value)| {
        let mut call = json!({"type": "UPDATE_FRAMEWORK", "framework_id": info["id"],
            "update_framework": {"framework_info": info}});
        change(&mut call["update_framework"]);
        answer(
            &cluster,
            API,
            &[JSON, &named(&framework)],
            &call.to_string(),
        )
    };
    let (head, text) = update(&|call| call["framework_info"]["name"] = json!("renamed"));
    assert_eq!((head.status, text.as_str()), (200, ""));
    let constraints = |predicate: Value| {
        json!({"role_constraints": {"dev": {"groups": [{"attribute_constraints": [
            {"selector": {"attribute_name": "rack"}, "predicate": predicate}]}]}}})
    };
    let exists = constraints(json!({"exists": {}}));
    let (head, text) = update(&|call| {
        call["framework_info"]["name"] = json!("renamed");
        call["offer_constraints"] = exists.clone();
    });
    assert_eq!(head.status, 200, "{text}");
    let bad = constraints(json!({"text_matches": {"regex": "("}}));
    for (what, change) in [
        (
            "user",
            &(|call: &mut Value| call["framework_info"]["user"] = json!("nobody"))
                as &dyn Fn(&mut Value),
        ),
        ("principal", &|call| {
            call["framework_info"]["principal"] = json!("else")
        }),
        ("checkpoint", &|call| {
            call["framework_info"]["checkpoint"] = json!(false)
        }),
        ("id", &|call| {
            call["framework_info"]["id"]["value"] = json!("other")
        }),
        ("suppressed roles", &|call| {
            call["suppressed_roles"] = json!(["none"])
        }),
        ("a role", &|call| {
            call["framework_info"]["roles"] = json!(["../x"])
        }),
        ("a regex", &|call| call["offer_constraints"] = bad.clone()),
        ("no constraints", &|call| {
            call["offer_constraints"] = json!({"role_constraints": {"dev": {"groups": []}}});
        }),
    ] {
        let (head, text) = update(change);
        assert_eq!(head.status, 400, "{what}: {text}");
        assert!(!text.is_empty(), "{what}");
    }
    // None of the refused changed anything: no agent here has a rack.
    let frameworks = cluster.master.page("/frameworks").json();
    assert_eq!(frameworks["frameworks"][0]["name"], "renamed");
}
