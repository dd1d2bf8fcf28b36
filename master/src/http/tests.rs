//! The endpoints without sockets: a whole master except for its port, and helpers for calls.

mod access;
mod encoding;
mod filtering;
mod operators;
mod overload;
mod pages;
mod scheduler;

use std::collections::BTreeMap;

use axum::body::Body;
use axum::response::Response;
use http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use meseta_daemon::authentication::{Authentication, Caller};
use meseta_daemon::files::FileReads;
use meseta_daemon::verbosity::Verbosity;
use meseta_etcd::leadership::{Fence, ProvenLeader, Role, Standing};
use meseta_proto::convert::parse_resources;
use meseta_proto::meseta::v1::{self as meseta, agent_frame};
use meseta_proto::mesos::v1;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::*;
use crate::budgets::Budgets;
use crate::buffered_response::BufferedResponses;
use crate::call_rate_limit::CallRateLimit;
use crate::chunked_response::Renderer;
use crate::context::{BODY_MAX, SCHEDULER_BODY_MAX};
use crate::core::{ConnectionId, Format, Lsn, MasterCore, Recovered, to_wire};
use crate::events;
use crate::files::Files;
use crate::handle::{self, Handle};
use crate::registry::InMemory;
use crate::service::Service;
use crate::subscription_rate::SubscriptionRate;
use meseta_daemon::clock::Clock;

/// A whole master except for its port.
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
    let context = context_with_authentication(Authentication::not_required("master"), recovered);
    let handle = context.handle.clone();
    (router(context), handle)
}

/// The context with another authentication.
fn context_with_authentication(
    authentication: Authentication,
    recovered: Recovered,
) -> Arc<Context> {
    context_of(authentication, recovered, &[])
}

/// The context with other flags.
fn context_of(
    authentication: Authentication,
    recovered: Recovered,
    flags: &[&str],
) -> Arc<Context> {
    let flags = crate::flags::tests::flags(flags);
    let address = "127.0.0.1:5050".parse().unwrap();
    let identity = crate::run::identity(&flags, address);
    let options = flags.options().unwrap();
    let budgets = Budgets::from_total_bytes(options.memory_budget);
    let config = crate::run::config(&flags, options, identity.clone());
    let (sender, persisted) = watch::channel(Lsn::default());
    let (_, registry) = InMemory::open(Box::new(move |lsn| {
        sender.send_replace(lsn);
    }));
    let clock = Clock::new();
    let core = MasterCore::new(config, recovered, clock.now());
    let (_, role) = watch::channel(Role::Leading);
    let (handle, inbox) = Handle::new(
        budgets,
        Standing {
            role,
            fence: Fence::never(),
            proven: ProvenLeader::any(),
        },
    );
    let registry = Box::new(registry);
    let service = Service::new(core, clock, registry, persisted, &handle, inbox, 1_000);
    tokio::spawn(service.run(CancellationToken::new()));
    let context = Context {
        handle,
        identity,
        masters: watch::channel(vec!["127.0.0.1:5050".to_owned()]).1,
        flags: BTreeMap::from([("port".to_owned(), "5050".to_owned())]),
        metrics: Arc::default(),
        history: Arc::default(),
        renderer: Renderer::default(),
        buffered_responses: BufferedResponses::default(),
        verbosity: Verbosity::default(),
        webui: None,
        files: Files::default(),
        file_reads: FileReads::default(),
        authentication,
        call_rate_limit: CallRateLimit::default(),
        subscription_rate: SubscriptionRate::default(),
        shutdown: CancellationToken::new(),
    };
    Arc::new(context)
}

fn registration(resources: &str) -> meseta::Register {
    let resources = parse_resources(resources, &meseta_resources::Role::star()).unwrap();
    meseta::Register {
        agent_info: v1::AgentInfo {
            hostname: "127.0.0.1".to_owned(),
            resources: to_wire(&resources, Format::PostRefinement),
            ..v1::AgentInfo::default()
        },
        version: "0.1.0".to_owned(),
        ..meseta::Register::default()
    }
}

/// Registers an agent; the returned queue has its frames.
async fn join(
    handle: &Handle,
    register: meseta::Register,
) -> (ConnectionId, events::Source<meseta::MasterFrame>) {
    let connection = handle.new_connection();
    let (sink, frames) = events::queue(handle.budgets.agent(), 1_024);
    let caller = Caller::default();
    let (answer, answered) = tokio::sync::oneshot::channel();
    let connected = handle::Command::AgentConnected {
        connection,
        frames: sink,
        caller,
        answer,
    };
    handle.send(connected).await.unwrap();
    answered.await.unwrap();
    let message = agent_frame::Message::Register(register);
    handle.agent_frame(connection, message).await.unwrap();
    (connection, frames)
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
    let body = body.to_owned();
    send(router, "POST", "/api/v1/scheduler", headers, body).await
}

/// The operator's queries without parameters.
const QUESTIONS: &str = "GET_HEALTH GET_FLAGS GET_VERSION GET_LOGGING_LEVEL GET_STATE GET_AGENTS \
    GET_FRAMEWORKS GET_EXECUTORS GET_OPERATIONS GET_TASKS GET_ROLES GET_WEIGHTS GET_MASTER \
    GET_MAINTENANCE_STATUS GET_MAINTENANCE_SCHEDULE GET_QUOTA";

/// A call of the operator API.
async fn operator(router: &Router, body: impl Into<Body>) -> Response {
    send(router, "POST", "/api/v1", &[JSON], body).await
}

#[track_caller]
fn assert_status(response: Response, status: StatusCode) {
    assert_eq!(response.status(), status);
}

async fn page(router: &Router, path: &str) -> Value {
    json_of(get(router, path).await).await
}

async fn json_of(response: Response) -> Value {
    serde_json::from_str(&text_of(response).await).unwrap()
}

async fn text_of(response: Response) -> String {
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

/// The next chunk of a stream, which is a single record.
async fn record(response: &mut Response) -> Value {
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
    subscribe_with(router, SUBSCRIBE).await
}

/// A stream after its first heartbeat, with the ids of the stream and its framework.
async fn subscribe_with(router: &Router, body: &str) -> (Response, String, String) {
    let mut response = call(router, &[JSON], body).await;
    assert_eq!(response.status(), StatusCode::OK);
    let stream = response.headers()["mesos-stream-id"]
        .to_str()
        .unwrap()
        .to_owned();
    let subscribed = record(&mut response).await;
    let id = &subscribed["subscribed"]["framework_id"]["value"];
    let id = id.as_str().unwrap().to_owned();
    assert_eq!(record(&mut response).await, json!({"type": "HEARTBEAT"}));
    (response, stream, id)
}
