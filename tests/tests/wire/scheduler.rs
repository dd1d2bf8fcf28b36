//! The bytes that clients send and rely on in return: one exact test for each rule.
//!
//! The rules are the union of the requirements of pymesos, mesos-framework, mesoshttp and mesos-go.

use meseta_tests::framework::framework_info;
use meseta_tests::raw::{Head, Raw};
use meseta_tests::{Cluster, Framework};
use serde_json::{Value, json};

use crate::anywhere;
use crate::requests::{API, JSON, exchange, send_in_chunks, stream, subscribe_call};

meseta_tests::scenarios! {
    anywhere:
        request_bodies_may_come_in_chunks,
        streams_survive_connection_close,
        streams_are_chunked_and_named,
        records_are_whole_chunks,
        framework_update_succeeds_or_explains,
        subscribed_names_the_leader,
        unknown_call_is_refused;
}

fn answer(cluster: &Cluster, line: &str, headers: &[&str], body: &str) -> (Head, String) {
    exchange(cluster.master.address(), line, headers, body)
}

/// Returns the headers of a call on a framework's stream.
fn named(framework: &Framework) -> String {
    format!("Mesos-Stream-Id: {}", framework.stream_id)
}

fn call_of(framework: &Framework, kind: &str) -> String {
    json!({"type": kind, "framework_id": {"value": framework.id}}).to_string()
}

fn request_bodies_may_come_in_chunks() {
    let cluster = Cluster::default();
    let call = subscribe_call(&framework_info("dev"));
    let mut raw = Raw::connect(cluster.master.address());
    send_in_chunks(&mut raw, API, &call, 17);
    assert_eq!(raw.head().status, 200);
    assert_eq!(raw.record().expect("a record")["type"], "SUBSCRIBED");
}

fn streams_survive_connection_close() {
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

fn subscribed_names_the_leader() {
    let cluster = Cluster::default();
    let framework = cluster.framework();
    let subscribed = &framework.subscribed["subscribed"];
    assert_eq!(subscribed["framework_id"]["value"], framework.id);
    let master = &subscribed["master_info"];
    let (host, port) = cluster.master.address().rsplit_once(':').expect("a port");
    assert_eq!(master["port"].to_string(), port);
    assert_eq!(master["address"]["ip"], host);
    assert_eq!(master["pid"], format!("master@{host}:{port}"));
    for key in ["hostname", "version", "id"] {
        assert!(master[key].is_string(), "{key} of {master}");
    }
}

fn unknown_call_is_refused() {
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

fn framework_update_succeeds_or_explains() {
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
    // No refused call changed anything: no agent here has a rack.
    let frameworks = cluster.master.page("/frameworks").json();
    assert_eq!(frameworks["frameworks"][0]["name"], "renamed");
}
