//! The doors, without sockets: the status-code matrix, and what hostile clients send.

mod access;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use clap::Parser;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use meseta_proto::transport::door::Caller;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::clock::Clock;
use crate::core::{Lsn, MasterCore, Recovered};
use crate::flags::Flags;
use crate::registry::InMemory;
use crate::shell::Service;

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    flags: Flags,
}

/// A whole master but for its port.
fn master() -> Router {
    master_and_handle().0
}

fn master_and_handle() -> (Router, Handle) {
    let recovered = Recovered {
        epoch: 1,
        ..Recovered::default()
    };
    master_with(recovered)
}

fn master_with(recovered: Recovered) -> (Router, Handle) {
    let site = site_behind(Door::open("master"), recovered);
    let handle = site.handle.clone();
    (router(site), handle)
}

/// The same behind another door.
fn site_behind(door: Door, recovered: Recovered) -> Arc<Site> {
    let flags = Command::try_parse_from(["master"]).unwrap().flags;
    let address = "127.0.0.1:5050".parse().unwrap();
    let identity = crate::run::identity(&flags, address);
    let config = crate::run::config(&flags, flags.options().unwrap(), identity.clone());
    let (sender, persisted) = watch::channel(Lsn::default());
    let (_, registry) = InMemory::open(Box::new(move |lsn| {
        sender.send_replace(lsn);
    }));
    let clock = Clock::new();
    let core = MasterCore::new(config, recovered, clock.now());
    let (service, handle) = Service::new(core, clock, Box::new(registry), persisted);
    tokio::spawn(service.run(CancellationToken::new()));
    let site = Site {
        handle,
        identity,
        flags: BTreeMap::from([("port".to_owned(), "5050".to_owned())]),
        metrics: Arc::default(),
        renderings: Renderings::default(),
        wholes: Wholes::default(),
        verbosity: Verbosity::default(),
        webui: None,
        files: Files::default(),
        door,
        pace: Pace::default(),
        shutdown: CancellationToken::new(),
    };
    Arc::new(site)
}

async fn send(
    router: &Router,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Body>,
) -> Response {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    router
        .clone()
        .oneshot(request.body(body.into()).unwrap())
        .await
        .unwrap()
}

async fn get(router: &Router, path: &str) -> Response {
    send(router, "GET", path, &[], "").await
}

const JSON: (&str, &str) = ("Content-Type", "application/json");
const PROTOBUF: (&str, &str) = ("Content-Type", "application/x-protobuf");

async fn call(router: &Router, headers: &[(&str, &str)], body: &str) -> Response {
    send(
        router,
        "POST",
        "/api/v1/scheduler",
        headers,
        body.to_owned(),
    )
    .await
}

async fn text_of(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The next chunk of a stream, which is one record.
async fn record(response: &mut Response) -> serde_json::Value {
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    let chunk = frame.into_data().unwrap();
    let text = std::str::from_utf8(&chunk).unwrap();
    let (length, json) = text.split_once('\n').unwrap();
    assert_eq!(
        length.parse::<usize>().unwrap(),
        json.len(),
        "one record per chunk"
    );
    assert!(!json.contains('\n'));
    serde_json::from_str(json).unwrap()
}

const SUBSCRIBE: &str = r#"{"type":"SUBSCRIBE","framework_id":null,"accept":null,
    "subscribe":{"framework_info":{"user":"u","name":"x","failover_timeout":60,"unknown":{"a":[1]}}}}"#;

async fn subscribe(router: &Router) -> (Response, String, String) {
    let mut response = call(router, &[JSON], SUBSCRIBE).await;
    assert_eq!(response.status(), StatusCode::OK);
    let stream = response.headers()["mesos-stream-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let subscribed = record(&mut response).await;
    let id = subscribed["subscribed"]["framework_id"]["value"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(
        record(&mut response).await,
        serde_json::json!({"type": "HEARTBEAT"})
    );
    (response, stream, id)
}

/// Headers and body, then status and text.
type Case<'a> = (Vec<(&'a str, &'a str)>, String, u16, &'a str);

#[tokio::test]
async fn the_status_code_matrix() {
    let router = master();
    let get = send(&router, "GET", "/api/v1/scheduler", &[], "").await;
    assert_eq!(get.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(get.headers()[header::ALLOW], "POST");
    assert_eq!(
        text_of(get).await,
        "405 Method Not Allowed. Expecting one of { 'POST' }, but received 'GET'."
    );
    let (_stream, stream_id, id) = subscribe(&router).await;
    let named = |body: &str| body.replace("ID", &id);
    let stream = ("Mesos-Stream-Id", stream_id.as_str());
    let mismatch = format!(
        "The stream ID 'x' included in this request didn't match the stream ID currently \
         associated with framework ID {id}"
    );
    let plain = r#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"u","name":"x"}}}"#;
    let cases: Vec<Case<'_>> = vec![
        (
            vec![],
            "{}".into(),
            400,
            "Expecting 'Content-Type' to be present",
        ),
        (
            vec![("Content-Type", "text/plain")],
            "{}".into(),
            415,
            "Expecting 'Content-Type' of application/json or application/x-protobuf",
        ),
        (
            vec![JSON],
            "{".into(),
            400,
            "Failed to parse body into JSON: syntax error at line 1 near: ",
        ),
        (
            vec![PROTOBUF],
            "{}".into(),
            400,
            "Failed to parse body into Call protobuf",
        ),
        (
            vec![JSON],
            "{}".into(),
            400,
            "Failed to validate scheduler::Call: Expecting 'type' to be present",
        ),
        (
            vec![JSON],
            r#"{"type":"NOSUCH"}"#.into(),
            400,
            "Failed to validate scheduler::Call: Expecting 'type' to be present",
        ),
        (
            vec![JSON],
            r#"{"type":"REVIVE"}"#.into(),
            400,
            "Failed to validate scheduler::Call: Expecting 'framework_id' to be present",
        ),
        (
            vec![JSON],
            named(r#"{"type":"REVIVE","framework_id":{"value":"ID"}}"#),
            400,
            "All non-subscribe calls should include the 'Mesos-Stream-Id' header",
        ),
        (
            vec![JSON, ("Mesos-Stream-Id", "x")],
            named(r#"{"type":"REVIVE","framework_id":{"value":"ID"}}"#),
            400,
            &mismatch,
        ),
        (
            vec![JSON, stream],
            r#"{"type":"REVIVE","framework_id":{"value":"nosuch"}}"#.into(),
            400,
            "Framework cannot be found",
        ),
        (
            vec![JSON],
            r#"{"type":"SUBSCRIBE"}"#.into(),
            400,
            "Failed to validate scheduler::Call: Expecting 'subscribe' to be present",
        ),
        (
            vec![JSON],
            r#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"name":"x"}}}"#.into(),
            400,
            "Failed to convert JSON into Call protobuf: Missing required fields: subscribe.framework_info.user",
        ),
        (
            vec![JSON, stream],
            plain.into(),
            400,
            "Subscribe calls should not include the 'Mesos-Stream-Id' header",
        ),
        (
            vec![JSON, ("Accept", "text/html")],
            plain.into(),
            406,
            "Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'",
        ),
        (
            vec![JSON, ("Accept", "text/html"), stream],
            plain.into(),
            406,
            "Expecting 'Accept' to allow 'application/x-protobuf' or 'application/json'",
        ),
        (
            vec![JSON],
            named(
                r#"{"type":"SUBSCRIBE","framework_id":{"value":"ID"},"subscribe":{"framework_info":{"user":"u","name":"x"}}}"#,
            ),
            400,
            "Failed to validate scheduler::Call: 'framework_id' differs from 'subscribe.framework_info.id'",
        ),
        (
            vec![JSON, stream],
            named(r#"{"type":"KILL","framework_id":{"value":"ID"}}"#),
            400,
            "Failed to validate scheduler::Call: Expecting 'kill' to be present",
        ),
        (
            vec![JSON, stream],
            named(
                r#"{"type":"ACKNOWLEDGE","framework_id":{"value":"ID"},"acknowledge":{"agent_id":{"value":"a"},"task_id":{"value":"t"},"uuid":"AAAA"}}"#,
            ),
            400,
            "Failed to validate scheduler::Call: Not a valid UUID",
        ),
        (
            vec![JSON, stream],
            named(r#"{"type":"ACCEPT","framework_id":{"value":"ID"}}"#),
            400,
            "Failed to validate scheduler::Call: Expecting 'accept' to be present",
        ),
        (
            vec![JSON, stream],
            named(
                r#"{"type":"DECLINE","framework_id":{"value":"ID"},"decline":{"offer_ids":[{"value":"nosuch"}]}}"#,
            ),
            202,
            "",
        ),
        (
            vec![JSON, stream],
            named(r#"{"type":"DECLINE","framework_id":{"value":"ID"},"decline":{}}"#),
            202,
            "",
        ),
        (
            vec![JSON, stream],
            named(r#"{"type":"KILL","framework_id":{"value":"ID"},"kill":{"task_id":5}}"#),
            400,
            "Failed to convert JSON into Call protobuf: Not expecting a JSON number for field 'task_id'",
        ),
        (
            vec![JSON, stream, ("Authorization", "Basic Tm9uZTpOb25l")],
            named(r#"{"type":"REVIVE","framework_id":{"value":"ID"}}"#),
            202,
            "",
        ),
    ];
    for (headers, body, status, text) in cases {
        let response = call(&router, &headers, &body).await;
        assert_eq!(response.status().as_u16(), status, "{body}");
        if status == 202 {
            assert!(
                response.headers().get(header::CONTENT_TYPE).is_none(),
                "{body}"
            );
        }
        assert_eq!(text_of(response).await, text, "{body}");
    }
}

#[tokio::test]
async fn a_stream_has_the_headers_and_framing_that_clients_need() {
    let router = master();
    let (response, stream_id, _) = subscribe(&router).await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
    assert!(response.headers().get(header::CONTENT_LENGTH).is_none());
    assert!(uuid::Uuid::parse_str(&stream_id).is_ok());

    let mut response = call(
        &router,
        &[JSON, ("Accept", "application/x-protobuf")],
        SUBSCRIBE,
    )
    .await;
    assert_eq!(
        response.headers()[header::CONTENT_TYPE],
        "application/x-protobuf"
    );
    let frame = response.body_mut().frame().await.unwrap().unwrap();
    let chunk: Bytes = frame.into_data().unwrap();
    let mut decoder = meseta_proto::recordio::Decoder::new(1 << 20);
    decoder.push(&chunk);
    let record = decoder.next_record().unwrap().unwrap();
    let event: meseta_proto::mesos::v1::scheduler::Event =
        meseta_proto::protobuf::from_slice(&record).unwrap();
    assert!(event.subscribed.is_some());
}

#[tokio::test]
async fn a_stream_that_is_dropped_disconnects_its_framework() {
    let router = master();
    let (response, stream_id, id) = subscribe(&router).await;
    drop(response);
    let body = format!(r#"{{"type":"REVIVE","framework_id":{{"value":"{id}"}}}}"#);
    // The end of the stream travels to the core behind our back; ask until it has arrived.
    loop {
        let response = call(&router, &[JSON, ("Mesos-Stream-Id", &stream_id)], &body).await;
        if response.status() == StatusCode::FORBIDDEN {
            assert_eq!(text_of(response).await, "Framework is not subscribed");
            return;
        }
        assert_eq!(response.status(), StatusCode::ACCEPTED);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn hostile_bodies_get_their_status_and_change_nothing() {
    let router = master();
    let deep = format!("{}{}", r#"{"a":"#.repeat(10_000), "}".repeat(10_000));
    let mut protobuf = Vec::new();
    for _ in 0..10_000 {
        protobuf.extend_from_slice(&[0x1a, 0xff, 0x7f]);
    }
    let truncated = &SUBSCRIBE[..SUBSCRIBE.len() / 2];
    for (content_type, body, status) in [
        (JSON, Body::from(deep), 400),
        (PROTOBUF, Body::from(protobuf), 400),
        (JSON, Body::from(truncated.to_owned()), 400),
        (JSON, Body::from(vec![0xff; 100]), 400),
        (JSON, Body::from(String::new()), 400),
        (JSON, Body::from("[]"), 400),
        (JSON, Body::from(vec![b' '; SCHEDULER_BODY_MAX + 1]), 413),
        (JSON, Body::from_stream(endless()), 413),
    ] {
        let response = send(&router, "POST", "/api/v1/scheduler", &[content_type], body).await;
        assert_eq!(response.status().as_u16(), status);
        assert!(!text_of(response).await.is_empty(), "says why");
    }
    let state: serde_json::Value =
        serde_json::from_str(&text_of(get(&router, "/state").await).await).unwrap();
    assert_eq!(state["frameworks"], serde_json::json!([]));
    let response = send(
        &router,
        "POST",
        "/api/v1",
        &[JSON],
        vec![b' '; BODY_MAX + 1],
    )
    .await;
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
}

/// A chunked body that never ends.
fn endless() -> impl tokio_stream::Stream<Item = Result<Bytes, std::io::Error>> {
    use tokio_stream::StreamExt;
    tokio_stream::iter(std::iter::repeat_with(|| Bytes::from(vec![b' '; 65_536]))).map(Ok)
}

#[tokio::test]
async fn paths_are_found_as_mesos_finds_them() {
    let router = master();
    for (path, status) in [
        ("/health", 200),
        ("/master/health", 200),
        ("/master/health/", 200),
        ("/state", 200),
        ("/master/frameworks/", 200),
        ("/metrics", 200),
        ("/metrics/snapshot", 200),
        ("/nosuch", 404),
        ("/master/nosuch", 404),
        ("/state.json", 404),
        ("/", 404),
        ("/../x", 404),
        ("/state/../x", 404),
        ("/redirect", 307),
        ("/redirect/x", 404),
        ("/api/v1/operator", 405),
        ("/master/mesos.internal.RegisterFrameworkMessage", 501),
        ("/quota", 200),
        ("/master/weights", 200),
        ("/maintenance/schedule", 200),
        ("/maintenance/status", 200),
        ("/machine/up", 405),
        ("/explain", 400),
        ("/files/read?path=/nosuch", 404),
        ("/files/browse", 400),
    ] {
        assert_eq!(get(&router, path).await.status().as_u16(), status, "{path}");
    }
    let redirect = get(&router, "/master/redirect").await;
    assert_eq!(redirect.headers()[header::LOCATION], "//127.0.0.1:5050");
    assert_eq!(
        text_of(get(&router, "/nosuch").await).await,
        "404 Not Found."
    );
    let long = format!("/{}", "x".repeat(URI_MAX));
    assert_eq!(get(&router, &long).await.status(), StatusCode::URI_TOO_LONG);
    for (method, path) in [
        ("DELETE", "/state"),
        ("PUT", "/health"),
        ("POST", "/metrics"),
    ] {
        let response = send(&router, method, path, &[], "").await;
        assert_eq!(
            response.status(),
            StatusCode::METHOD_NOT_ALLOWED,
            "{method} {path}"
        );
        assert!(response.headers().contains_key(header::ALLOW));
    }
    assert_eq!(
        send(&router, "POST", "/state", &[], "{}").await.status(),
        StatusCode::OK
    );
    let head = send(&router, Method::HEAD.as_str(), "/state", &[], "").await;
    assert_eq!(head.status(), StatusCode::OK);
}

/// The keys of an object, sorted.
fn keys(value: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

#[tokio::test]
async fn idle_answers_have_the_keys_of_mesos() {
    let router = master();
    let body = async |path: &str| -> serde_json::Value {
        let response = get(&router, path).await;
        assert_eq!(
            response.headers()[header::CONTENT_TYPE],
            "application/json",
            "{path}"
        );
        serde_json::from_str(&text_of(response).await).unwrap()
    };
    let state = body("/state").await;
    assert_eq!(
        keys(&state),
        [
            "activated_slaves",
            "build_date",
            "build_time",
            "build_user",
            "capabilities",
            "completed_frameworks",
            "deactivated_slaves",
            "elected_time",
            "flags",
            "frameworks",
            "hostname",
            "id",
            "leader",
            "leader_info",
            "orphan_tasks",
            "pid",
            "recovered_slaves",
            "slaves",
            "start_time",
            "unreachable_slaves",
            "unregistered_frameworks",
            "version",
        ]
    );
    assert_eq!(state["leader"], "master@127.0.0.1:5050");
    assert_eq!(state["activated_slaves"].to_string(), "0.0");
    assert_eq!(
        keys(&state["leader_info"]),
        ["hostname", "id", "pid", "port"]
    );
    let version = body("/version").await;
    assert!(
        version["version"]
            .as_str()
            .unwrap()
            .split('.')
            .all(|part| part.parse::<u32>().is_ok())
    );
    assert_eq!(
        body("/slaves").await,
        serde_json::json!({"slaves": [], "recovered_slaves": []})
    );
    assert_eq!(body("/tasks").await, serde_json::json!({"tasks": []}));
    assert_eq!(
        body("/flags").await,
        serde_json::json!({"flags": {"port": "5050"}})
    );
    assert_eq!(
        keys(&body("/state-summary").await),
        ["frameworks", "hostname", "slaves"]
    );
    assert_eq!(body("/roles").await, serde_json::json!({"roles": []}));
    let metrics = body("/metrics/snapshot").await;
    assert_eq!(metrics["master/elected"], 1.0);

    let jsonp = get(&router, "/version?jsonp=cb").await;
    assert_eq!(jsonp.headers()[header::CONTENT_TYPE], "text/javascript");
    let text = text_of(jsonp).await;
    assert!(text.starts_with("cb({") && text.ends_with("})"), "{text}");
}

#[tokio::test]
async fn pages_of_tasks_are_asked_for_properly() {
    let router = master();
    for (query, status) in [
        ("", 200),
        ("?limit=-1&order=asc", 200),
        ("?limit=10&offset=5&order=desc", 200),
        ("?limit=x", 400),
        ("?offset=x", 400),
        ("?order=sideways", 400),
    ] {
        let response = get(&router, &format!("/tasks{query}")).await;
        assert_eq!(response.status().as_u16(), status, "{query}");
    }
}

#[tokio::test]
async fn agents_that_may_come_back_are_named_beside_the_tasks_that_are_known() {
    use prost::Message;
    let info = meseta_proto::mesos::v1::AgentInfo {
        hostname: "node.example".to_owned(),
        ..meseta_proto::mesos::v1::AgentInfo::default()
    };
    let (router, _) = master_with(Recovered {
        epoch: 2,
        agents: vec![crate::core::AgentRecord {
            agent_id: "old-S0".to_owned(),
            info: info.encode_to_vec().into(),
        }],
        ..Recovered::default()
    });
    let page = get(&router, "/tasks?framework_id=f&task_id=t").await;
    let page: serde_json::Value = serde_json::from_str(&text_of(page).await).unwrap();
    assert_eq!(
        page,
        serde_json::json!({"tasks": [], "recovered_agents": ["old-S0"]})
    );
}

#[tokio::test]
async fn the_operator_api_answers_what_it_knows_and_names_what_it_does_not() {
    let router = master();
    let ask = async |kind: &str, accept: &str| {
        let body = format!(r#"{{"type":"{kind}","get_metrics":{{}}}}"#);
        send(
            &router,
            "POST",
            "/api/v1",
            &[JSON, ("Accept", accept)],
            body,
        )
        .await
    };
    let health = ask("GET_HEALTH", "*/*").await;
    assert_eq!(health.headers()[header::CONTENT_TYPE], "application/json");
    assert_eq!(
        text_of(health).await,
        r#"{"type":"GET_HEALTH","get_health":{"healthy":true}}"#
    );
    for kind in [
        "GET_VERSION",
        "GET_FLAGS",
        "GET_STATE",
        "GET_AGENTS",
        "GET_FRAMEWORKS",
        "GET_TASKS",
        "GET_MASTER",
        "GET_EXECUTORS",
        "GET_METRICS",
        "GET_LOGGING_LEVEL",
        "GET_ROLES",
        "GET_WEIGHTS",
        "GET_QUOTA",
        "GET_OPERATIONS",
        "GET_MAINTENANCE_STATUS",
        "GET_MAINTENANCE_SCHEDULE",
    ] {
        for accept in ["application/json", "application/x-protobuf"] {
            let response = ask(kind, accept).await;
            assert_eq!(response.status(), StatusCode::OK, "{kind}");
            assert_eq!(response.headers()[header::CONTENT_TYPE], accept);
        }
    }
    assert_eq!(
        ask("GET_HEALTH", "text/plain").await.status(),
        StatusCode::NOT_ACCEPTABLE
    );
    for (body, text) in [
        (
            "{}",
            "Failed to validate master::Call: Expecting 'type' to be present",
        ),
        (
            "[]",
            "Failed to convert JSON into Call protobuf: Expecting a JSON object",
        ),
        (
            r#"{"type":"GET_METRICS"}"#,
            "Failed to validate master::Call: Expecting 'get_metrics' to be present",
        ),
        (
            r#"{"type":"READ_FILE"}"#,
            "Failed to validate master::Call: Expecting 'read_file' to be present",
        ),
    ] {
        let response = send(
            &router,
            "POST",
            "/api/v1/operator",
            &[JSON],
            body.to_owned(),
        )
        .await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(text_of(response).await, text);
    }
}

#[tokio::test]
async fn operators_watch_what_happens() {
    let router = master();
    let body = r#"{"type":"SUBSCRIBE"}"#;
    let mut watching = send(&router, "POST", "/api/v1", &[JSON], body).await;
    assert_eq!(watching.status(), StatusCode::OK);
    assert_eq!(watching.headers()[header::CONTENT_TYPE], "application/json");
    let first = record(&mut watching).await;
    assert_eq!(first["type"], "SUBSCRIBED");
    assert_eq!(first["subscribed"]["heartbeat_interval_seconds"], 15.0);
    let frameworks = &first["subscribed"]["get_state"]["get_frameworks"];
    assert_eq!(frameworks["frameworks"], serde_json::Value::Null);
    let beat = record(&mut watching).await;
    assert_eq!(beat, serde_json::json!({"type": "HEARTBEAT"}));
    let (_stream, _, id) = subscribe(&router).await;
    let added = record(&mut watching).await;
    assert_eq!(added["type"], "FRAMEWORK_ADDED");
    let info = &added["framework_added"]["framework"]["framework_info"];
    assert_eq!(info["id"]["value"], id.as_str());
    let updated = record(&mut watching).await;
    assert_eq!(updated["type"], "FRAMEWORK_UPDATED");
    assert_eq!(updated["framework_updated"]["framework"]["connected"], true);
    let form = format!("frameworkId={id}");
    let ended = send(&router, "POST", "/teardown", &[], form).await;
    assert_eq!(ended.status(), StatusCode::OK);
    let removed = record(&mut watching).await;
    assert_eq!(removed["type"], "FRAMEWORK_REMOVED");
    assert_eq!(
        removed["framework_removed"]["framework_info"]["id"]["value"],
        id.as_str()
    );
}

#[tokio::test]
async fn an_explanation_names_whom_it_is_about() {
    let router = master();
    let (_stream, _, id) = subscribe(&router).await;
    for (query, status) in [
        ("", 400),
        ("?framework_id=nosuch", 400),
        ("?role=%20", 400),
        ("?role=dev&slave_id=nosuch", 400),
        ("?role=dev", 200),
    ] {
        let response = get(&router, &format!("/explain{query}")).await;
        assert_eq!(response.status().as_u16(), status, "{query}");
    }
    let none = get(&router, &format!("/explain?framework_id={id}")).await;
    assert_eq!(text_of(none).await, r#"{"explanations":[]}"#);
}

#[tokio::test]
async fn teardown_is_a_form() {
    let router = master();
    for (body, text) in [
        (
            "",
            "Missing 'frameworkId' query parameter in the request body",
        ),
        ("frameworkId=nosuch", "No framework found with specified ID"),
        ("frameworkId=..%2Fx", "No framework found with specified ID"),
    ] {
        let response = send(&router, "POST", "/teardown", &[], body).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert_eq!(text_of(response).await, text);
    }
    let (mut stream, _, id) = subscribe(&router).await;
    let response = send(
        &router,
        "POST",
        "/master/teardown",
        &[],
        format!("frameworkId={id}"),
    )
    .await;
    assert_eq!(response.status(), StatusCode::OK);
    assert!(stream.body_mut().frame().await.is_none(), "the stream ends");
}

#[tokio::test]
async fn prometheus_finds_every_family_with_help_and_a_unit() {
    let router = master();
    let response = get(&router, "/metrics").await;
    assert!(
        response.headers()[header::CONTENT_TYPE]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    let text = text_of(response).await;
    let helped: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .filter_map(|line| line.split(' ').next())
        .collect();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(name.starts_with("meseta_master_"), "{name}");
        assert!(helped.contains(&name), "{name} has no help");
    }
    for counter in text
        .lines()
        .filter(|line| line.starts_with("# TYPE") && line.ends_with(" counter"))
    {
        assert!(counter.contains("_total "), "{counter}");
    }
}

/// A master with one agent, one framework and one running task, and their streams.
async fn busy() -> (Router, impl Sized) {
    use meseta_proto::convert::{Format, parse_resources, to_resources};
    use meseta_proto::meseta::v1::{self as meseta, agent_frame, master_frame};
    use meseta_proto::mesos::v1::{self, TaskState};
    let (router, handle) = master_and_handle();
    let resources = parse_resources(
        "cpus:8;mem:8192;disk:10240;ports:[31000-32000]",
        &meseta_resources::Role::star(),
    );
    let connection = handle.new_connection();
    let (sender, mut frames) = tokio::sync::mpsc::channel(16);
    handle
        .agent_connected(connection, sender, Caller::default())
        .await
        .unwrap();
    let register = meseta::Register {
        agent_info: v1::AgentInfo {
            hostname: "127.0.0.1".to_owned(),
            resources: to_resources(&resources.unwrap(), Format::PostRefinement).unwrap(),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..meseta::Register::default()
    };
    handle
        .agent_frame(connection, agent_frame::Message::Register(register))
        .await
        .unwrap();
    let body = r#"{"type":"SUBSCRIBE","subscribe":{"framework_info":{"user":"root","name":"golden",
        "roles":["dev"],"checkpoint":true,
        "capabilities":[{"type":"MULTI_ROLE"},{"type":"RESERVATION_REFINEMENT"}]}}}"#;
    let mut stream = call(&router, &[JSON], body).await;
    let stream_id = stream.headers()["mesos-stream-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let framework = record(&mut stream).await["subscribed"]["framework_id"].clone();
    record(&mut stream).await;
    let offer = record(&mut stream).await["offers"]["offers"][0].clone();
    let task = serde_json::json!({
        "name": "golden", "task_id": {"value": "task-1"}, "agent_id": offer["agent_id"],
        "resources": [
            {"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.5}},
            {"name": "mem", "type": "SCALAR", "scalar": {"value": 64}},
            {"name": "ports", "type": "RANGES", "ranges": {"range": [{"begin": 31000, "end": 31001}]}},
        ],
        "command": {"value": "sleep 100"},
        "labels": {"labels": [{"key": "a", "value": "b"}]},
        "discovery": {"visibility": "CLUSTER", "name": "gold"},
    });
    let accept = serde_json::json!({
        "type": "ACCEPT", "framework_id": framework,
        "accept": {"offer_ids": [offer["id"]], "filters": {"refuse_seconds": 600},
            "operations": [{"type": "LAUNCH", "launch": {"task_infos": [task]}}]},
    });
    let headers = [JSON, ("Mesos-Stream-Id", stream_id.as_str())];
    assert_eq!(
        call(&router, &headers, &accept.to_string()).await.status(),
        StatusCode::ACCEPTED
    );
    let run = loop {
        let frame = frames.recv().await.unwrap();
        if let Some(master_frame::Message::RunTask(run)) = frame.message {
            break run;
        }
    };
    let status = v1::TaskStatus {
        task_id: run.task.task_id,
        state: TaskState::TaskRunning.into(),
        timestamp: Some(1_795_226_383.993_578),
        uuid: Some(vec![7; 16]),
        container_status: Some(v1::ContainerStatus {
            container_id: Some(v1::ContainerId {
                value: "c".to_owned(),
                parent: None,
            }),
            executor_pid: Some(19_076),
            ..v1::ContainerStatus::default()
        }),
        ..v1::TaskStatus::default()
    };
    let update = meseta::StatusUpdate {
        framework_id: run.framework.id.unwrap(),
        status,
        latest_state: None,
    };
    handle
        .agent_frame(connection, agent_frame::Message::StatusUpdate(update))
        .await
        .unwrap();
    record(&mut stream).await;
    (router, (stream, frames))
}

#[tokio::test]
async fn a_running_task_is_shown_as_mesos_shows_it() {
    let (router, _streams) = busy().await;
    let body = async |path: &str| -> serde_json::Value {
        serde_json::from_str(&text_of(get(&router, path).await).await).unwrap()
    };
    let state = body("/master/state").await;
    let agent = &state["slaves"][0];
    let of_agent = [
        "active",
        "attributes",
        "capabilities",
        "deactivated",
        "hostname",
        "id",
        "offered_resources",
        "pid",
        "port",
        "registered_time",
        "reserved_resources",
        "resources",
        "unreserved_resources",
        "used_resources",
        "version",
    ];
    assert_eq!(keys(agent), of_agent);
    assert_eq!(
        agent["used_resources"],
        serde_json::json!({"cpus": 0.5, "mem": 64.0, "disk": 0.0, "gpus": 0.0, "ports": "[31000-31001]"})
    );
    assert_eq!(agent["pid"], "slave(1)@127.0.0.1:5051");
    let framework = &state["frameworks"][0];
    assert_eq!(
        keys(framework),
        [
            "active",
            "capabilities",
            "checkpoint",
            "completed_tasks",
            "connected",
            "executors",
            "failover_timeout",
            "hostname",
            "id",
            "name",
            "offer_constraints",
            "offered_resources",
            "offers",
            "recovered",
            "registered_time",
            "resources",
            "roles",
            "tasks",
            "unreachable_tasks",
            "unregistered_time",
            "used_resources",
            "user",
            "webui_url",
        ]
    );
    let task = &framework["tasks"][0];
    let of_task = [
        "discovery",
        "executor_id",
        "framework_id",
        "id",
        "labels",
        "name",
        "resources",
        "role",
        "slave_id",
        "state",
        "statuses",
    ];
    assert_eq!(keys(task), of_task);
    assert_eq!(task["executor_id"], "");
    assert_eq!(
        task["labels"],
        serde_json::json!([{"key": "a", "value": "b"}])
    );
    assert_eq!(
        task["statuses"],
        serde_json::json!([{"state": "TASK_RUNNING", "timestamp": 1_795_226_383.993_578,
            "container_status": {"container_id": {"value": "c"}}}])
    );
    assert_eq!(body("/tasks?limit=-1").await["tasks"][0], *task);
    assert_eq!(
        body("/tasks?task_id=other").await["tasks"],
        serde_json::json!([])
    );

    let slaves = body("/slaves").await;
    assert_eq!(
        slaves["slaves"][0]["used_resources_full"][0],
        serde_json::json!({"name": "cpus", "type": "SCALAR", "scalar": {"value": 0.5}, "role": "*",
            "allocation_info": {"role": "dev"}})
    );
    let summary = body("/state-summary").await;
    assert_eq!(summary["slaves"][0]["TASK_RUNNING"], 1);
    assert_eq!(summary["frameworks"][0]["TASK_RUNNING"], 1);
    assert_eq!(
        summary["frameworks"][0]["slave_ids"],
        serde_json::json!([agent["id"]])
    );
    assert_eq!(
        body("/roles").await["roles"],
        serde_json::json!([{"name": "dev", "weight": 1.0,
            "quota": {"role": "dev", "guarantee": {}, "limit": {},
                "consumed": {"cpus": 0.5, "mem": 64.0, "ports": 2.0}},
            "resources": {"cpus": 0.5, "mem": 64.0, "ports": 2.0},
            "allocated": {"cpus": 0.5, "mem": 64.0, "ports": 2.0},
            "offered": {}, "reserved": {}, "frameworks": [framework["id"]]}])
    );
    let tasks = send(
        &router,
        "POST",
        "/api/v1",
        &[JSON],
        r#"{"type":"GET_TASKS"}"#,
    )
    .await;
    let tasks: serde_json::Value = serde_json::from_str(&text_of(tasks).await).unwrap();
    let task = &tasks["get_tasks"]["tasks"][0];
    assert_eq!(task["status_update_state"], "TASK_RUNNING");
    assert_eq!(task["resources"][0]["allocation_info"]["role"], "dev");
}

/// A subscriber that takes nothing for as long as it may is closed, and its framework told off.
#[tokio::test(start_paused = true)]
async fn a_subscriber_that_does_not_read_is_closed() {
    let router = master();
    let (stream, stream_id, id) = subscribe(&router).await;
    let tasks: Vec<_> = (0..100)
        .map(|number| serde_json::json!({"task_id": {"value": format!("t{number}")}}))
        .collect();
    let reconcile = serde_json::json!({"type": "RECONCILE", "framework_id": {"value": id},
        "reconcile": {"tasks": tasks}});
    let headers = [JSON, ("Mesos-Stream-Id", stream_id.as_str())];
    let taken = call(&router, &headers, &reconcile.to_string()).await;
    assert_eq!(taken.status(), StatusCode::ACCEPTED);
    tokio::time::sleep(crate::events::STALL_MAX).await;
    let revive = format!(r#"{{"type":"REVIVE","framework_id":{{"value":"{id}"}}}}"#);
    loop {
        let response = call(&router, &headers, &revive).await;
        if response.status() == StatusCode::FORBIDDEN {
            break;
        }
        tokio::task::yield_now().await;
    }
    drop(stream);
}

#[tokio::test]
async fn weights_that_are_no_weights_are_refused() {
    let router = master();
    let put = async |body: &str| {
        let response = send(&router, "PUT", "/weights", &[], body.to_owned()).await;
        (response.status(), text_of(response).await)
    };
    for (body, why) in [
        (
            r#"[{"role": "dev", "weight": 0}]"#,
            "Weights must be positive",
        ),
        (
            r#"[{"role": "dev", "weight": -2.0}]"#,
            "Weights must be positive",
        ),
        (r#"[{"role": "dev", "weight": "two"}]"#, "weight"),
        (
            r#"[{"weight": 2.0}]"#,
            "Role names cannot be the empty string",
        ),
        (r#"[{"role": "a b", "weight": 2.0}]"#, "role"),
        (r#"[{"role": "dev", "weight": 1e400}]"#, "weight"),
        (r#"[{"role": "dev", "weight": 2.0"#, "column"),
    ] {
        let (status, text) = put(body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {text}");
        assert!(text.contains(why), "{body}: {text}");
    }
    assert_eq!(text_of(get(&router, "/weights").await).await, "[]");
    let (status, _) = put(r#"[{"role": " dev ", "weight": 2.0}]"#).await;
    assert_eq!(
        status,
        StatusCode::OK,
        "white space around a role is no part of it"
    );
    let shown = text_of(get(&router, "/weights").await).await;
    assert_eq!(shown, r#"[{"weight":2.0,"role":"dev"}]"#);
}

#[tokio::test]
async fn what_has_not_changed_is_not_sent_again() {
    let router = master();
    for path in [
        "/state",
        "/slaves",
        "/tasks",
        "/master/roles",
        "/quota",
        "/weights",
    ] {
        let first = get(&router, path).await;
        assert_eq!(first.status(), StatusCode::OK, "{path}");
        let version = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        let known = ("If-None-Match", version.as_str());
        let again = send(&router, "GET", path, &[known], "").await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        assert_eq!(again.headers()[header::ETAG], version.as_str());
        assert_eq!(text_of(again).await, "");
        let other = send(&router, "GET", path, &[("If-None-Match", "W/\"x-1\"")], "").await;
        assert_eq!(other.status(), StatusCode::OK, "{path}");
    }
    let before = get(&router, "/weights").await.headers()[header::ETAG].clone();
    let set = send(
        &router,
        "PUT",
        "/weights",
        &[],
        r#"[{"role": "dev", "weight": 2.0}]"#,
    )
    .await;
    assert_eq!(set.status(), StatusCode::OK);
    let known = ("If-None-Match", before.to_str().unwrap());
    let changed = send(&router, "GET", "/weights", &[known], "").await;
    assert_eq!(changed.status(), StatusCode::OK);
    assert!(
        !get(&router, "/health")
            .await
            .headers()
            .contains_key(header::ETAG)
    );
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_ask_and_streams_never() {
    let router = master();
    let gzip = ("Accept-Encoding", "gzip");
    let page = send(&router, "GET", "/openapi.json", &[gzip], "").await;
    assert_eq!(page.headers()[header::CONTENT_ENCODING], "gzip");
    let bytes = page.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(&bytes[..2], [0x1f, 0x8b], "gzip begins so");
    for (path, headers) in [
        ("/openapi.json", &[][..]),
        ("/health", &[gzip]),
        ("/weights", &[gzip]),
    ] {
        let plain = send(&router, "GET", path, headers, "").await;
        assert!(
            !plain.headers().contains_key(header::CONTENT_ENCODING),
            "{path}"
        );
    }
    let watch = send(
        &router,
        "POST",
        "/api/v1",
        &[JSON, gzip],
        r#"{"type":"SUBSCRIBE"}"#,
    )
    .await;
    assert_eq!(watch.status(), StatusCode::OK);
    assert!(!watch.headers().contains_key(header::CONTENT_ENCODING));
}

#[tokio::test]
async fn the_logging_level_is_raised_for_a_while() {
    let router = master();
    let level = async || {
        let response = send(
            &router,
            "POST",
            "/api/v1",
            &[JSON],
            r#"{"type":"GET_LOGGING_LEVEL"}"#,
        )
        .await;
        text_of(response).await
    };
    let is = |level: u32| {
        format!(r#"{{"type":"GET_LOGGING_LEVEL","get_logging_level":{{"level":{level}}}}}"#)
    };
    assert_eq!(level().await, is(0));
    let set = r#"{"type":"SET_LOGGING_LEVEL","set_logging_level":{"level":2,"duration":{"nanoseconds":3600000000000}}}"#;
    let answer = send(&router, "POST", "/api/v1", &[JSON], set).await;
    assert_eq!(
        (answer.status(), text_of(answer).await.as_str()),
        (StatusCode::OK, "")
    );
    assert_eq!(level().await, is(2));
    let negative = set.replace("3600000000000", "-1");
    let answer = send(&router, "POST", "/api/v1", &[JSON], negative).await;
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    for (query, status, text) in [
        ("?level=1&duration=1hrs", 200, ""),
        ("", 200, "1\n"),
        ("?level=1", 400, "Expecting 'duration=value' in query.\n"),
        (
            "?duration=1secs",
            400,
            "Expecting 'level=value' in query.\n",
        ),
    ] {
        let answer = get(&router, &format!("/logging/toggle{query}")).await;
        assert_eq!(
            (answer.status().as_u16(), text_of(answer).await.as_str()),
            (status, text)
        );
    }
    for query in ["?level=x&duration=1secs", "?level=1&duration=soon"] {
        let answer = get(&router, &format!("/logging/toggle{query}")).await;
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{query}");
        assert!(text_of(answer).await.starts_with("Invalid "), "{query}");
    }
}
