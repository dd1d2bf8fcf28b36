//! Every route, call and method, each without credentials, with a wrong secret, as a reader and as an administrator.
//!
//! The list comes from the routers' own tables and the schema: a route or call without an entry here does not compile
//! or fails, whatever it does.

use std::os::unix::fs::PermissionsExt as _;

use meseta_access::{Action, SecretHash, basic};
use meseta_daemon::authentication::{Names, Realm, Settings};
use meseta_proto::mesos::v1::master::call::Type as CallType;
use meseta_proto::mesos::v1::scheduler::call::Type as SchedulerCall;
use prost::Message as _;
use tempfile::TempDir;

use super::*;
use crate::http::routes::{ROUTES, Route};
use crate::permission;
use meseta_daemon::routes::Need;

/// The callers of the tests, with their credentials.
pub(super) struct Principals {
    headers: [(&'static str, Option<String>); 4],
}

const NOBODY: usize = 0;
const WRONG: usize = 1;
pub(super) const READER: usize = 2;
pub(super) const RIGHT: usize = 3;

impl Principals {
    pub(super) fn new() -> Self {
        let header = |name: &str, secret: &[u8]| Some(basic::header(name, secret));
        Self {
            headers: [
                ("nobody", None),
                ("wrong", header("right", b"guessed")),
                ("reader", header("reader", b"r")),
                ("right", header("right", b"w")),
            ],
        }
    }

    pub(super) fn header(&self, who: usize) -> Option<(&str, &str)> {
        let value = self.headers[who].1.as_deref()?;
        Some(("Authorization", value))
    }
}

/// ACLs that allow everything to `right`, and only the filtered views to `reader`.
fn acls() -> String {
    let mut lists = vec!["\"permissive\":false".to_owned()];
    for action in Action::ALL {
        let looks = matches!(
            action,
            Action::ViewFramework | Action::ViewTask | Action::ViewExecutor | Action::ViewRole
        );
        let who = if looks {
            r#""right","reader""#
        } else {
            r#""right""#
        };
        lists.push(format!(
            r#""{}":[{{"principals":{{"values":[{who}]}},"{}":{{"type":"ANY"}}}}]"#,
            action.key(),
            action.object_key()
        ));
    }
    format!("{{{}}}", lists.join(","))
}

/// Settings without any file, and without required authentication.
fn settings() -> Settings {
    Settings {
        daemon: "master",
        address: "127.0.0.1".parse().unwrap(),
        insecure: false,
        credentials: None,
        credentials_flag: "credentials",
        acls: None,
        firewall_rules: None,
        names: Names::default(),
        ssl_cert_file: None,
        ssl_key_file: None,
        ssl_ca_file: None,
        realms: Vec::new(),
        key: [7; 32],
    }
}

/// The authentication with the value `acls` of the flag.
pub(super) fn authentication_with(dir: &TempDir, acls: &str) -> Authentication {
    let hash = |secret: &[u8]| SecretHash::from_secret(secret, [5; 16]).unwrap();
    let path = dir.path().join("people");
    let lines = format!("right {}\nreader {}\n", hash(b"w"), hash(b"r"));
    std::fs::write(&path, lines).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let realms = [
        Realm::Readonly,
        Realm::Readwrite,
        Realm::Scheduler,
        Realm::Agents,
    ];
    let required = realms.map(|realm| (realm, "authenticate", Some(true)));
    let settings = Settings {
        credentials: Some(path),
        acls: Some(acls.to_owned()),
        realms: required.to_vec(),
        ..settings()
    };
    settings.build().unwrap().0
}

pub(super) fn context_with(dir: &TempDir, acls: &str) -> Arc<Context> {
    context_with_authentication(authentication_with(dir, acls), Recovered::default())
}

/// A master under these ACLs.
pub(super) fn begin(acls: &str) -> (TempDir, Router, Principals) {
    let dir = TempDir::new().unwrap();
    let router = router(context_with(&dir, acls));
    (dir, router, Principals::new())
}

/// A body that the endpoint understands, so that only the permission decides.
fn body_for(route: &Route, method: &Method) -> &'static str {
    match (route.path, method) {
        ("/quota", &Method::POST) => {
            r#"{"role":"ads","guarantee":[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}],"force":true}"#
        }
        ("/weights", &Method::PUT) => r#"[{"role":"ads","weight":2}]"#,
        ("/maintenance/schedule", &Method::POST) => r#"{"windows":[]}"#,
        ("/maintenance/windows", _) => {
            r#"{"machine_ids":[{"hostname":"a"}],"unavailability":{"start":{"nanoseconds":1}}}"#
        }
        ("/machine/up" | "/machine/down", _) => r#"[{"hostname":"a"}]"#,
        ("/teardown", _) => "frameworkId=f",
        ("/reserve" | "/unreserve", _) => {
            r#"slaveId=a&resources=[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads","principal":"right"}]}]"#
        }
        ("/create-volumes" | "/destroy-volumes", _) => {
            r#"slaveId=a&volumes=[{"name":"disk","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads"}],"disk":{"persistence":{"id":"v","principal":"right"},"volume":{"mode":"RW","container_path":"p"}}}]"#
        }
        _ => "",
    }
}

pub(super) async fn ask(
    router: &Router,
    principals: &Principals,
    who: usize,
    (method, path): (&Method, &str),
    (headers, body): (&[(&str, &str)], &str),
) -> Response {
    let headers: Vec<_> = headers
        .iter()
        .copied()
        .chain(principals.header(who))
        .collect();
    send(router, method.as_str(), path, &headers, body.to_owned()).await
}

#[tokio::test]
async fn every_route_is_authenticated_and_authorized() {
    let (_dir, router, principals) = begin(&acls());
    for route in ROUTES.list {
        // The required permission of these depends on the call.
        if ["/api/v1", "/api/v1/scheduler"].contains(&route.path) {
            continue;
        }
        let realm = route.realm;
        for method in route.methods {
            let need = route.need(method);
            let path = match (route.path, method) {
                ("/quota", &Method::DELETE) => "/quota/ads".to_owned(),
                (path, _) => format!("/master{path}"),
            };
            for who in [NOBODY, WRONG, READER, RIGHT] {
                let body = body_for(route, method);
                let response = ask(&router, &principals, who, (method, &path), (&[], body)).await;
                let status = response.status();
                let request = format!("{method} {path} by {}: {status}", principals.headers[who].0);
                let expected = match (realm, who, need) {
                    (Realm::Open, _, _) | (_, RIGHT, _) => None,
                    (_, NOBODY | WRONG, _) => Some(StatusCode::UNAUTHORIZED),
                    (_, _, Need::Nothing | Need::Filtered) => None,
                    (_, _, Need::Permission(..) | Need::ByObject) => Some(StatusCode::FORBIDDEN),
                };
                match expected {
                    Some(expected) => assert_eq!(status, expected, "{request}"),
                    None => assert!(
                        status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN,
                        "{request}: {}",
                        text_of(response).await
                    ),
                }
            }
        }
    }
}

/// The rest of a call's JSON that makes the call valid.
fn body_of(kind: CallType) -> &'static str {
    match kind {
        CallType::Unknown
        | CallType::GetHealth
        | CallType::GetFlags
        | CallType::GetVersion
        | CallType::GetLoggingLevel
        | CallType::GetState
        | CallType::GetAgents
        | CallType::GetFrameworks
        | CallType::GetExecutors
        | CallType::GetOperations
        | CallType::GetTasks
        | CallType::GetRoles
        | CallType::GetWeights
        | CallType::GetMaster
        | CallType::GetMaintenanceStatus
        | CallType::GetMaintenanceSchedule
        | CallType::GetQuota
        | CallType::Subscribe => "",
        CallType::GetMetrics => r#","get_metrics":{}"#,
        CallType::SetLoggingLevel => {
            r#","set_logging_level":{"level":1,"duration":{"nanoseconds":1000000000}}"#
        }
        CallType::ListFiles => r#","list_files":{"path":"/master/log"}"#,
        CallType::ReadFile => r#","read_file":{"path":"/master/log","offset":0}"#,
        CallType::UpdateWeights => {
            r#","update_weights":{"weight_infos":[{"role":"ads","weight":3}]}"#
        }
        CallType::ReserveResources => {
            r#","reserve_resources":{"agent_id":{"value":"a"},"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads","principal":"right"}]}]}"#
        }
        CallType::UnreserveResources => {
            r#","unreserve_resources":{"agent_id":{"value":"a"},"resources":[{"name":"cpus","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads","principal":"right"}]}]}"#
        }
        CallType::CreateVolumes => {
            r#","create_volumes":{"agent_id":{"value":"a"},"volumes":[{"name":"disk","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads"}],"disk":{"persistence":{"id":"v","principal":"right"},"volume":{"mode":"RW","container_path":"p"}}}]}"#
        }
        CallType::DestroyVolumes => {
            r#","destroy_volumes":{"agent_id":{"value":"a"},"volumes":[{"name":"disk","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads"}],"disk":{"persistence":{"id":"v","principal":"right"},"volume":{"mode":"RW","container_path":"p"}}}]}"#
        }
        CallType::GrowVolume => {
            r#","grow_volume":{"agent_id":{"value":"a"},"volume":{"name":"disk","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads"}],"disk":{"persistence":{"id":"v"},"volume":{"mode":"RW","container_path":"p"}}},"addition":{"name":"disk","type":"SCALAR","scalar":{"value":1},"reservations":[{"type":"DYNAMIC","role":"ads"}]}}"#
        }
        CallType::ShrinkVolume => {
            r#","shrink_volume":{"agent_id":{"value":"a"},"volume":{"name":"disk","type":"SCALAR","scalar":{"value":2},"reservations":[{"type":"DYNAMIC","role":"ads"}],"disk":{"persistence":{"id":"v"},"volume":{"mode":"RW","container_path":"p"}}},"subtract":{"value":1}}"#
        }
        CallType::UpdateMaintenanceSchedule => {
            r#","update_maintenance_schedule":{"schedule":{"windows":[]}}"#
        }
        CallType::StartMaintenance => r#","start_maintenance":{"machines":[{"hostname":"a"}]}"#,
        CallType::StopMaintenance => r#","stop_maintenance":{"machines":[{"hostname":"a"}]}"#,
        CallType::DrainAgent => r#","drain_agent":{"agent_id":{"value":"a"}}"#,
        CallType::DeactivateAgent => r#","deactivate_agent":{"agent_id":{"value":"a"}}"#,
        CallType::ReactivateAgent => r#","reactivate_agent":{"agent_id":{"value":"a"}}"#,
        CallType::UpdateQuota => r#","update_quota":{"quota_configs":[{"role":"ads"}]}"#,
        CallType::SetQuota => {
            r#","set_quota":{"quota_request":{"role":"ads","guarantee":[{"name":"cpus","type":"SCALAR","scalar":{"value":1}}],"force":true}}"#
        }
        CallType::RemoveQuota => r#","remove_quota":{"role":"ads"}"#,
        CallType::Teardown => r#","teardown":{"framework_id":{"value":"f"}}"#,
        CallType::MarkAgentGone => r#","mark_agent_gone":{"agent_id":{"value":"a"}}"#,
    }
}

#[tokio::test]
async fn operator_calls_are_authenticated_and_authorized() {
    let (_dir, router, principals) = begin(&acls());
    let mut kinds = 0;
    for kind in (1..256).filter_map(|number| CallType::try_from(number).ok()) {
        kinds += 1;
        let need = permission::question(kind);
        let body = format!(r#"{{"type":"{}"{}}}"#, kind.as_str_name(), body_of(kind));
        for who in [NOBODY, WRONG, READER, RIGHT] {
            let to = (&Method::POST, "/api/v1");
            let response = ask(&router, &principals, who, to, (&[JSON], &body)).await;
            let status = response.status();
            let request = format!(
                "{} by {}: {status}",
                kind.as_str_name(),
                principals.headers[who].0
            );
            match (who, need) {
                (NOBODY | WRONG, _) => assert_eq!(status, StatusCode::UNAUTHORIZED, "{request}"),
                (READER, Need::Permission(..) | Need::ByObject) => {
                    assert_eq!(status, StatusCode::FORBIDDEN, "{request}");
                }
                _ => {
                    let passed =
                        status != StatusCode::UNAUTHORIZED && status != StatusCode::FORBIDDEN;
                    assert!(passed, "{request}");
                }
            }
        }
    }
    assert!(kinds >= 38, "the enumeration is not the schema's: {kinds}");
}

fn subscription(principal: Option<&str>) -> String {
    let principal = principal.map(|name| format!(r#","principal":"{name}""#));
    let principal = principal.unwrap_or_default();
    format!(
        r#"{{"type":"SUBSCRIBE","subscribe":{{"framework_info":{{"user":"u","name":"x","roles":["ads"],"capabilities":[{{"type":"MULTI_ROLE"}}]{principal}}}}}}}"#
    )
}

/// The ids of a newly begun stream, and of its framework.
async fn subscribed(stream: &mut Response) -> (String, String) {
    let stream_id = stream.headers()["Mesos-Stream-Id"].to_str().unwrap();
    let stream_id = stream_id.to_owned();
    let event = record(stream).await;
    let id = &event["subscribed"]["framework_id"]["value"];
    (stream_id, id.as_str().unwrap().to_owned())
}

#[tokio::test]
async fn scheduler_calls_require_authentication() {
    let (_dir, router, principals) = begin(&acls());
    let to = (&Method::POST, "/api/v1/scheduler");
    for who in [NOBODY, WRONG] {
        for kind in (1..256).filter_map(|number| SchedulerCall::try_from(number).ok()) {
            let body = format!(
                r#"{{"type":"{}","framework_id":{{"value":"f"}}}}"#,
                kind.as_str_name()
            );
            let response = ask(&router, &principals, who, to, (&[JSON], &body)).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED, "{kind:?}");
            let challenge = &response.headers()[header::WWW_AUTHENTICATE];
            assert_eq!(challenge, "Basic realm=\"mesos-master-scheduler\"");
        }
    }
    // Another principal's name is refused; a missing name becomes the caller's own.
    let other = subscription(Some("somebody"));
    let response = ask(&router, &principals, RIGHT, to, (&[JSON], &other)).await;
    assert_eq!(response.status(), StatusCode::BAD_REQUEST);
    assert!(
        text_of(response)
            .await
            .contains("does not match principal 'somebody'")
    );
    let own = subscription(None);
    let mut stream = ask(&router, &principals, RIGHT, to, (&[JSON], &own)).await;
    let (stream_id, id) = subscribed(&mut stream).await;
    // An unauthorized role is an error on the stream, as in Mesos.
    let mut refused = ask(&router, &principals, READER, to, (&[JSON], &own)).await;
    assert_eq!(refused.status(), StatusCode::OK);
    let event = record(&mut refused).await;
    let message = event["error"]["message"].as_str().unwrap();
    assert_eq!(message, "Not authorized to use the roles { ads }");
    // Another principal can make no calls for the framework, even with its stream id.
    for kind in ["REVIVE", "TEARDOWN", "SUPPRESS"] {
        let body = format!(r#"{{"type":"{kind}","framework_id":{{"value":"{id}"}}}}"#);
        let with_stream = [JSON, ("Mesos-Stream-Id", stream_id.as_str())];
        let stolen = ask(&router, &principals, READER, to, (&with_stream, &body)).await;
        assert_eq!(stolen.status(), StatusCode::BAD_REQUEST, "{kind}");
        assert!(
            text_of(stolen)
                .await
                .contains("does not match principal 'right'")
        );
    }
    let to = (&Method::GET, "/frameworks");
    let state = ask(&router, &principals, RIGHT, to, (&[], "")).await;
    let state = json_of(state).await;
    assert_eq!(state["frameworks"][0]["principal"], "right");
}

#[tokio::test]
async fn grpc_methods_require_authentication() {
    let dir = TempDir::new().unwrap();
    let context = context_with(&dir, &acls());
    let router = router(context.clone()).merge(crate::grpc::router(&context).await);
    let principals = Principals::new();
    let schema = prost_types::FileDescriptorSet::decode(meseta_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut methods = 0;
    for file in &schema.file {
        for service in &file.service {
            let name = format!("{}.{}", file.package(), service.name());
            if !["AgentRegistry", "Scheduler", "Operator"].contains(&service.name()) {
                continue;
            }
            for method in &service.method {
                methods += 1;
                let path = format!("/{name}/{}", method.name());
                for who in [NOBODY, WRONG] {
                    let grpc = ("Content-Type", "application/grpc");
                    let to = (&Method::POST, path.as_str());
                    // An empty message in its frame.
                    let response =
                        ask(&router, &principals, who, to, (&[grpc], "\0\0\0\0\0")).await;
                    let status = response.headers().get("grpc-status");
                    let status = status.map(|status| status.to_str().unwrap().to_owned());
                    assert_eq!(status.as_deref(), Some("16"), "{path}: UNAUTHENTICATED");
                }
            }
        }
    }
    assert!(
        methods >= 30,
        "the enumeration is not the schema's: {methods}"
    );
}

#[tokio::test]
async fn lists_show_only_authorized_objects() {
    let acls = r#"{"permissive":true,
        "view_frameworks":[
            {"principals":{"values":["reader"]},"users":{"values":["web"]}},
            {"principals":{"values":["reader"]},"users":{"type":"NONE"}}],
        "view_roles":[{"principals":{"values":["reader"]},"roles":{"values":["www"]}},
            {"principals":{"values":["reader"]},"roles":{"type":"NONE"}}],
        "get_quotas":[{"principals":{"values":["reader"]},"roles":{"type":"NONE"}}],
        "get_maintenance_schedules":[{"principals":{"values":["reader"]},"machines":{"type":"NONE"}}],
        "view_flags":[{"principals":{"values":["reader"]},"flags":{"type":"NONE"}}]}"#;
    let (_dir, router, principals) = begin(acls);
    let to = (&Method::POST, "/api/v1/scheduler");
    let mut streams = Vec::new();
    for (user, role) in [("web", "www"), ("root", "ads")] {
        let body = subscription(None)
            .replace("\"user\":\"u\"", &format!("\"user\":\"{user}\""))
            .replace("[\"ads\"]", &format!("[\"{role}\"]"));
        let mut stream = ask(&router, &principals, RIGHT, to, (&[JSON], &body)).await;
        record(&mut stream).await;
        streams.push(stream);
    }
    let put = (&Method::PUT, "/weights");
    let weights = r#"[{"role":"www","weight":2},{"role":"ads","weight":3}]"#;
    let set = ask(&router, &principals, RIGHT, put, (&[], weights)).await;
    assert_eq!(set.status(), StatusCode::OK);
    for (who, users, roles, has_flags) in [
        (RIGHT, 2, &["ads", "www"][..], true),
        (READER, 1, &["www"][..], false),
    ] {
        let page = async |path: &str| -> Value {
            let response = ask(&router, &principals, who, (&Method::GET, path), (&[], "")).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            json_of(response).await
        };
        for path in ["/state", "/frameworks", "/state-summary"] {
            let shown = page(path).await;
            let frameworks = shown["frameworks"].as_array().unwrap();
            assert_eq!(
                frameworks.len(),
                users,
                "{path} by {}",
                principals.headers[who].0
            );
        }
        assert_eq!(page("/state").await.get("flags").is_some(), has_flags);
        let names = |list: &Value, key: &str| -> Vec<String> {
            let list = list.as_array().unwrap().iter();
            list.map(|one| one[key].as_str().unwrap().to_owned())
                .collect()
        };
        let shown = page("/roles").await;
        let shown: Vec<_> = names(&shown["roles"], "name");
        let shown: Vec<_> = shown.iter().filter(|role| *role != "*").collect();
        assert_eq!(shown, roles.iter().collect::<Vec<_>>());
        assert_eq!(names(&page("/weights").await, "role"), roles);
        let body = r#"{"type":"GET_FRAMEWORKS"}"#;
        let to = (&Method::POST, "/api/v1");
        let answer = ask(&router, &principals, who, to, (&[JSON], body)).await;
        let answer = json_of(answer).await;
        let list = answer["get_frameworks"]["frameworks"].as_array().unwrap();
        assert_eq!(list.len(), users);
        let watch = r#"{"type":"SUBSCRIBE"}"#;
        let mut watching = ask(&router, &principals, who, to, (&[JSON], watch)).await;
        let first = record(&mut watching).await;
        let state = &first["subscribed"]["get_state"]["get_frameworks"];
        assert_eq!(state["frameworks"].as_array().unwrap().len(), users);
    }
    let flags = ask(
        &router,
        &principals,
        READER,
        (&Method::GET, "/flags"),
        (&[], ""),
    )
    .await;
    assert_eq!(flags.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn events_reach_only_authorized_readers() {
    let acls = r#"{"view_frameworks":[
        {"principals":{"values":["reader"]},"users":{"values":["web"]}},
        {"principals":{"values":["reader"]},"users":{"type":"NONE"}}]}"#;
    let (_dir, router, principals) = begin(acls);
    let watch = r#"{"type":"SUBSCRIBE"}"#;
    let to = (&Method::POST, "/api/v1");
    let mut watching = ask(&router, &principals, READER, to, (&[JSON], watch)).await;
    record(&mut watching).await;
    record(&mut watching).await;
    let to = (&Method::POST, "/api/v1/scheduler");
    let mut streams = Vec::new();
    for user in ["root", "web"] {
        let body = subscription(None).replace("\"user\":\"u\"", &format!("\"user\":\"{user}\""));
        let mut stream = ask(&router, &principals, RIGHT, to, (&[JSON], &body)).await;
        record(&mut stream).await;
        streams.push(stream);
    }
    let event = record(&mut watching).await;
    assert_eq!(event["type"], "FRAMEWORK_ADDED");
    let info = &event["framework_added"]["framework"]["framework_info"];
    assert_eq!(info["user"], "web", "the hidden one came first");
}

#[tokio::test]
async fn closed_endpoint_is_closed_under_aliases() {
    let shut = r#"{"disabled_endpoints":{"paths":["/master/state"]}}"#;
    let settings = Settings {
        firewall_rules: Some(shut.to_owned()),
        ..settings()
    };
    let authentication = settings.build().unwrap().0;
    let router = router(context_with_authentication(
        authentication,
        Recovered::default(),
    ));
    for (path, status) in [
        ("/state", StatusCode::FORBIDDEN),
        ("/master/state", StatusCode::FORBIDDEN),
        ("/master/state/", StatusCode::FORBIDDEN),
        ("/state/below", StatusCode::FORBIDDEN),
        ("/state-summary", StatusCode::OK),
    ] {
        assert_eq!(get(&router, path).await.status(), status, "{path}");
    }
}

#[tokio::test]
async fn frameworks_are_held_to_their_pace() {
    let dir = TempDir::new().unwrap();
    let mut context = context_with(&dir, &acls());
    let limits = r#"{"limits":[{"principal":"right","qps":0.001,"capacity":2}]}"#;
    let limits = meseta_access::rate_limits::RateLimits::parse(limits).unwrap();
    Arc::get_mut(&mut context).unwrap().call_rate_limit = CallRateLimit::new(Some(&limits));
    let router = router(context);
    let principals = Principals::new();
    let to = (&Method::POST, "/api/v1/scheduler");
    let mut stream = ask(
        &router,
        &principals,
        RIGHT,
        to,
        (&[JSON], &subscription(None)),
    )
    .await;
    let (stream_id, id) = subscribed(&mut stream).await;
    let body = format!(r#"{{"type":"REVIVE","framework_id":{{"value":"{id}"}}}}"#);
    let headers = [JSON, ("Mesos-Stream-Id", stream_id.as_str())];
    for expected in [202, 202, 429, 429] {
        let response = ask(&router, &principals, RIGHT, to, (&headers, &body)).await;
        assert_eq!(response.status().as_u16(), expected);
        assert_eq!(
            response.headers().contains_key(header::RETRY_AFTER),
            expected == 429
        );
    }
}

#[tokio::test(start_paused = true)]
async fn changed_rules_invalidate_cached_answers() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("acls");
    std::fs::write(&file, acls()).unwrap();
    let context = context_with(&dir, &format!("file://{}", file.display()));
    let router = router(context.clone());
    let principals = Principals::new();
    let to = (&Method::GET, "/weights");
    let first = ask(&router, &principals, READER, to, (&[], "")).await;
    let version = first.headers()[header::ETAG].to_str().unwrap().to_owned();
    let known = [("If-None-Match", version.as_str())];
    let again = ask(&router, &principals, READER, to, (&known, "")).await;
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    let watching = context
        .authentication
        .watch(std::time::Duration::from_secs(1), context.shutdown.clone());
    tokio::spawn(watching);
    std::fs::write(&file, r#"{"permissive":true}"#).unwrap();
    tokio::time::timeout(std::time::Duration::from_secs(3600), async {
        while ask(&router, &principals, READER, to, (&known, ""))
            .await
            .status()
            != StatusCode::OK
        {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    })
    .await
    .expect("sent again once the rules are others");
}

#[tokio::test]
async fn reservations_are_shown_by_role_permission() {
    let dir = TempDir::new().unwrap();
    let acls = r#"{"permissive":true,
        "view_roles":[{"principals":{"values":["reader"]},"roles":{"values":["www"]}},
            {"principals":{"values":["reader"]},"roles":{"type":"NONE"}}]}"#;
    let context = context_with(&dir, acls);
    let with_reserved = registration("cpus:4;cpus(www):1;cpus(ads):2");
    let (_, frames) = join(&context.handle, with_reserved).await;
    frames.next().await.unwrap();
    let router = router(context);
    let principals = Principals::new();
    for (who, roles, listed) in [(RIGHT, &["ads", "www"][..], 3), (READER, &["www"][..], 2)] {
        let answer = async |(method, path): (&Method, &str), body: &str| -> Value {
            let response = ask(&router, &principals, who, (method, path), (&[JSON], body)).await;
            json_of(response).await
        };
        let slaves = answer((&Method::GET, "/slaves"), "").await;
        let state = answer((&Method::GET, "/state"), "").await;
        let summary = answer((&Method::GET, "/state-summary"), "").await;
        let agent = &slaves["slaves"][0];
        let names = |by_role: &Value| -> Vec<String> {
            by_role.as_object().unwrap().keys().cloned().collect()
        };
        for by_role in [
            &agent["reserved_resources"],
            &agent["reserved_resources_full"],
            &state["slaves"][0]["reserved_resources"],
            &summary["slaves"][0]["reserved_resources"],
        ] {
            assert_eq!(names(by_role), roles, "{agent:#}");
        }
        assert_eq!(agent["resources"]["cpus"], 7.0, "sums are whole");
        let agents = answer((&Method::POST, "/api/v1"), r#"{"type":"GET_AGENTS"}"#).await;
        let agent = &agents["get_agents"]["agents"][0];
        for list in [&agent["total_resources"], &agent["agent_info"]["resources"]] {
            assert_eq!(list.as_array().unwrap().len(), listed, "{agent:#}");
        }
    }
}
