//! The answers of a scheduler that does not lead, or may not act at the moment.

use clap::Parser as _;
use http::Method;
use meseta_daemon::authentication::ClientIdentity;
use meseta_daemon::clock::Clock;
use meseta_etcd::leadership::{Fence, Leader, ProvenLeader, Role, Standing};
use meseta_resources::Resources;

use super::*;
use crate::core::{self, Input, Request as Change};
use crate::flags::Flags;
use crate::link::Registration;
use crate::placement::Offer;
use crate::service::{Ends, Inbox, tests::empty_state};

/// Returns a scheduler of this role that answers from a state without jobs.
fn scheduler(role: Role, fence: Fence) -> (watch::Sender<Role>, Arc<Context>) {
    scheduler_of(empty_state(Clock::new()), role, fence)
}

/// Returns a scheduler with this state.
fn scheduler_of(
    state: core::State,
    role: Role,
    fence: Fence,
) -> (watch::Sender<Role>, Arc<Context>) {
    let (role, context, mut inbox) = scheduler_with_inbox(role, fence);
    tokio::spawn(async move { inbox.stand_by(&state).await });
    (role, context)
}

/// Returns a scheduler whose questions come to this inbox.
fn scheduler_with_inbox(role: Role, fence: Fence) -> (watch::Sender<Role>, Arc<Context>, Inbox) {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        flags: Flags,
    }
    let flags = Line::parse_from(["scheduler"]).flags;
    let settings = flags.access.settings(flags.ip, true, None);
    let (authentication, _) = settings.build().expect("nobody authenticates");
    let (role, of_role) = watch::channel(role);
    let standing = Standing {
        role: of_role,
        fence,
        proven: ProvenLeader::any(),
    };
    let Ends { handle, inbox, .. } = Ends::new(Registration::default(), standing);
    let context = Context {
        authentication,
        handle,
        bodies: Bodies::new(),
        changes: Changes::new(),
        files: FileReader::new(),
        readers: Readers::new(),
        quotas: MasterQuotas::new(
            ClientIdentity::default(),
            Vec::new(),
            watch::channel(None).1,
        ),
        user: "somebody".to_owned(),
        leader: watch::channel(None).1,
        address: "here:1".to_owned(),
        schedulers: watch::channel(Vec::new()).1,
        build: BuildInfo::default(),
        shutdown: CancellationToken::new(),
        disk_report: DiskReport::default(),
    };
    (role, Arc::new(context), inbox)
}

/// Returns a state with a job of this many tasks, whose launches are in progress.
fn state_of(tasks: u32) -> core::State {
    let clock = Clock::new();
    let mut state = empty_state(clock);
    let text = format!(
        r#"{{ "name": "many", "kind": "batch", "count": {tasks}, "task": {{ "command": "true" }},
             "resources": {{ "cpus": 0.001, "mem": "1MB" }} }}"#
    );
    let spec = crate::file::from_text(&text).expect("a job");
    let resources = Resources::parse("cpus:100;mem:100000", &meseta_resources::Role::star());
    let offer = Offer {
        id: "o".to_owned(),
        role: spec.role.clone(),
        ..Offer::default()
    };
    let offer = offer.with_resources(resources.expect("resources"));
    let request = Change::Submit(Box::new(spec));
    for input in [
        Input::Request { id: 1, request },
        Input::Offers(vec![offer]),
    ] {
        state.step(clock.now(), input);
    }
    assert_eq!(state.task_count("many"), tasks as usize);
    state
}

async fn json_of(context: &Arc<Context>, path: &str) -> serde_json::Value {
    serde_json::from_str(&text_of(context, path).await).expect("JSON")
}

async fn ask(context: &Arc<Context>, method: Method, path: &str) -> Response<Body> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(http::header::HOST, "127.0.0.1")
        .header(http::header::CONTENT_TYPE, "application/json");
    let request = request.body(Body::empty()).expect("a request");
    routed(context.clone(), request).await
}

async fn text_of(context: &Arc<Context>, path: &str) -> String {
    let answer = ask(context, Method::GET, path).await;
    let body = axum::body::to_bytes(answer.into_body(), 16 << 20).await;
    String::from_utf8(body.expect("a body").into()).expect("text")
}

fn header(answer: &Response<Body>, name: &HeaderName) -> Option<String> {
    let value = answer.headers().get(name)?;
    Some(value.to_str().expect("text").to_owned())
}

const OF_JOBS: [&str; 5] = [
    "/v1/jobs?x=1",
    "/v1/events",
    "/v1/volumes",
    "/v1/subscription",
    "/v1/discovery/http_sd",
];

#[tokio::test]
async fn whoever_follows_answers_nothing_about_jobs() {
    let leader = Leader {
        address: "there:2".to_owned(),
        ..Leader::default()
    };
    let (role, context) = scheduler(Role::Following(Some(leader)), Fence::closed());
    for path in OF_JOBS {
        let answer = ask(&context, Method::GET, path).await;
        assert_eq!(answer.status(), StatusCode::TEMPORARY_REDIRECT, "{path}");
        let location = header(&answer, &http::header::LOCATION);
        assert_eq!(location, Some(format!("//there:2{path}")));
    }
    let posted = ask(&context, Method::POST, "/v1/jobs").await;
    assert_eq!(posted.status(), StatusCode::TEMPORARY_REDIRECT);
    for nobody in [Role::Following(None), Role::Recovering] {
        role.send_replace(nobody);
        for path in OF_JOBS {
            let answer = ask(&context, Method::GET, path).await;
            assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE, "{path}");
        }
    }
    for path in ["/health", "/leader", "/metrics", "/version"] {
        let answer = ask(&context, Method::GET, path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
    }
}

/// The scheduler still believes that it leads, and its lease has ended.
#[tokio::test]
async fn answers_of_fenced_leader_are_marked() {
    let (_role, fenced) = scheduler(Role::Leading, Fence::closed());
    for path in ["/v1/jobs", "/v1/volumes", "/metrics"] {
        let answer = ask(&fenced, Method::GET, path).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let why = header(&answer, &STALE);
        assert!(why.is_some_and(|why| !why.is_empty()), "{path}");
    }
    for path in ["/health", "/leader"] {
        let told = text_of(&fenced, path).await;
        assert!(told.contains(r#""role":"suspended""#), "{told}");
    }
    let (_role, leading) = scheduler(Role::Leading, Fence::never());
    let answer = ask(&leading, Method::GET, "/v1/jobs").await;
    assert_eq!(header(&answer, &STALE), None);
    for (context, state) in [(fenced, "suspended"), (leading, "leading")] {
        let line = format!("meseta_scheduler_leadership{{state=\"{state}\"}} 1");
        let metrics = text_of(&context, "/metrics").await;
        assert!(metrics.lines().any(|one| one == line), "{state}");
    }
}

#[tokio::test]
async fn job_with_many_tasks_is_paged() {
    let (_role, context) = scheduler_of(state_of(2_500), Role::Leading, Fence::never());
    let indexes = |job: &serde_json::Value| -> Vec<u64> {
        let tasks = job["tasks"].as_array().expect("tasks").iter();
        let indexes = tasks.map(|task| task["index"].as_u64().expect("an index"));
        indexes.collect()
    };
    for (query, expected) in [
        ("", 0..2_500),
        ("?limit=1000", 0..1_000),
        ("?limit=1000&offset=2000", 2_000..2_500),
        ("?limit=0", 0..0),
        ("?offset=9000", 0..0),
    ] {
        let job = json_of(&context, &format!("/v1/jobs/many{query}")).await;
        assert_eq!(indexes(&job), expected.collect::<Vec<_>>(), "{query}");
        assert_eq!(job["tasks_total"], 2_500, "{query}");
        assert_eq!(job["name"], "many");
    }
    // Each page names the place of the next one.
    let (mut all, mut after) = (Vec::new(), String::new());
    for pages in 1.. {
        let job = json_of(&context, &format!("/v1/jobs/many?limit=1100{after}")).await;
        all.extend(indexes(&job));
        let Some(next) = job["next"].as_str() else {
            assert_eq!(pages, 3);
            break;
        };
        after = format!("&after={next}");
    }
    assert_eq!(all, (0..2_500).collect::<Vec<_>>());
    let brief = json_of(&context, "/v1/jobs/many?tasks=false").await;
    assert_eq!(
        (&brief["tasks"], &brief["tasks_total"]),
        (&().into(), &().into())
    );
    let refused = ask(&context, Method::GET, "/v1/jobs/many?limit=some").await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
}

/// Regression: the counts of a job and its tasks came from two steps of the core.
#[tokio::test]
async fn job_counts_match_its_tasks() {
    let (_role, context, mut inbox) = scheduler_with_inbox(Role::Leading, Fence::never());
    tokio::spawn(async move {
        let before = state_of(3);
        for _ in ["the key of the job", "the job"] {
            inbox.answer_next(&before).await;
        }
        // All tasks have ended.
        inbox.stand_by(&empty_state(Clock::new())).await;
    });
    let job = json_of(&context, "/v1/jobs/many").await;
    assert_eq!(job["tasks_total"], 3);
    assert_eq!(job["tasks"].as_array().map(Vec::len), Some(3));
}

/// Returns the URL of a master whose `/roles` has this handler.
pub(super) async fn master_with<T: 'static>(roles: impl axum::handler::Handler<T, ()>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await;
    let listener = listener.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let routes = Router::new().route("/roles", axum::routing::get(roles));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    url
}

#[tokio::test]
async fn waiting_job_shows_quota_of_master() {
    let answer = || async {
        r#"{"roles":[{"name":"r","quota":{"limit":{"cpus":1},"consumed":{"cpus":1}}}]}"#
    };
    let leader = master_with(answer).await;
    let clock = Clock::new();
    let mut state = empty_state(clock);
    let text = r#"{ "name": "waits", "role": "r", "task": { "command": "true" } }"#;
    let spec = crate::file::from_text(text).expect("a job");
    let subscribed = Input::Subscribed {
        framework_id: "f".to_owned(),
        roles: crate::core::RoleSet {
            roles: ["r".to_owned()].into(),
            ..crate::core::RoleSet::default()
        },
    };
    let request = Change::Submit(Box::new(spec));
    for input in [subscribed, Input::Request { id: 1, request }] {
        state.step(clock.now(), input);
    }
    let (_role, context) = scheduler_of(state, Role::Leading, Fence::never());
    let told = "a task waits for an offer that it fits";
    let job = json_of(&context, "/v1/jobs/waits").await;
    assert_eq!(job["why"], told);
    let mut context = Arc::into_inner(context).expect("no other");
    let (_leader, of_leader) = watch::channel(Some(leader));
    context.quotas = MasterQuotas::new(ClientIdentity::default(), Vec::new(), of_leader);
    let context = Arc::new(context);
    for path in ["/v1/jobs/waits", "/v1/jobs/waits?tasks=false"] {
        let why = json_of(&context, path).await["why"].to_string();
        assert!(
            why.contains("role 'r' has 1 cpus of its limit of 1"),
            "{why}"
        );
    }
    let unknown = ask(&context, Method::GET, "/v1/jobs/other").await;
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn answer_counts_until_read_by_client() {
    let (_role, context) = scheduler_of(state_of(2_500), Role::Leading, Fence::never());
    for path in [
        "/v1/jobs",
        "/v1/jobs/many",
        "/v1/jobs/many/history",
        "/v1/volumes",
        "/v1/discovery/http_sd",
    ] {
        let mut asking = Box::pin(ask(&context, Method::GET, path));
        tokio::select! {
            biased;
            _ = &mut asking => panic!("the core has not been asked"),
            () = std::future::ready(()) => {}
        }
        drop(asking);
        assert_eq!(context.readers.used(), (1, 0), "{path}");
        while context.readers.used() != (0, 0) {
            tokio::task::yield_now().await;
        }
    }
    let answer = ask(&context, Method::GET, "/v1/jobs/many").await;
    let (making, held) = context.readers.used();
    assert_eq!(making, 0);
    assert!(held > 2_500 * 100, "{held}");
    let body = axum::body::to_bytes(answer.into_body(), 16 << 20).await;
    assert_eq!(body.expect("all of it").len(), held);
    assert_eq!(context.readers.used(), (0, 0));
}

/// Regression: the list was returned for every path below the prefix of older clients.
#[tokio::test]
async fn process_prefix_changes_no_route() {
    let (_role, context) = scheduler_of(state_of(1), Role::Leading, Fence::never());
    for path in [
        "/v1/jobs",
        "/v1/jobs/many",
        "/v1/jobs/many/history",
        "/v1/jobs/none",
    ] {
        let with = format!("/scheduler{path}");
        let [plain, prefixed] = [path, &with];
        let status = ask(&context, Method::GET, plain).await.status();
        assert_eq!(ask(&context, Method::GET, prefixed).await.status(), status);
        if status.is_success() {
            assert_eq!(
                text_of(&context, prefixed).await,
                text_of(&context, plain).await
            );
        }
    }
    let planned = ask(&context, Method::POST, "/scheduler/v1/jobs/plan").await;
    assert_eq!(planned.status(), StatusCode::BAD_REQUEST, "no file");
}

#[tokio::test(start_paused = true)]
async fn body_without_permission_is_not_read() {
    let (_role, context) = scheduler(Role::Leading, Fence::never());
    let acls = r#"{ "permissive": false,
        "register_frameworks": [{ "principals": { "values": ["ann"] }, "roles": { "values": ["dev"] } }] }"#;
    let acls = meseta_access::Acls::parse(acls).expect("ACLs");
    let rules = meseta_access::Authorizer::new(acls, false);
    for (principal, path, expected) in [
        ("bob", "/v1/jobs", StatusCode::FORBIDDEN),
        ("bob", "/v1/jobs/plan", StatusCode::FORBIDDEN),
        ("bob", "/v1/jobs/web/stop", StatusCode::NOT_FOUND),
        // The scheduler waits for the body of a caller with a role.
        ("ann", "/v1/jobs", StatusCode::REQUEST_TIMEOUT),
    ] {
        let (_unfinished, body) = tokio::io::duplex(64);
        let body = Body::from_stream(tokio_util::io::ReaderStream::new(body));
        let request = Request::post(path).body(body).expect("a request");
        let caller = Caller {
            approver: rules.approver(Some(principal.to_owned())),
            ..file_reader::tests::caller(principal)
        };
        let reply = jobs::answer(Permitted {
            context: Arc::clone(&context),
            caller,
            query: Query::from_uri(request.uri()),
            request,
        });
        let reply = reply.await.unwrap_or_else(|refusal| refusal);
        assert_eq!(reply.status(), expected, "{principal} {path}");
    }
}

/// Creates two tenants with jobs of the same name.
#[tokio::test]
async fn tenants_see_no_job_of_others() {
    let clock = Clock::new();
    let mut state = empty_state(clock);
    for (id, role) in [(1, "ads"), (2, "ops")] {
        let text =
            format!(r#"{{ "name": "web", "role": "{role}", "task": {{ "command": "true" }} }}"#);
        let spec = crate::file::from_text(&text).expect("a job");
        let request = Change::Permitted {
            name: state.key_for(&spec, None).expect("a key"),
            seen: None,
            principal: None,
            request: Box::new(Change::Submit(Box::new(spec))),
        };
        state.step(clock.now(), Input::Request { id, request });
    }
    let (_role, context) = scheduler_of(state, Role::Leading, Fence::never());
    let acls = r#"{ "permissive": false,
        "register_frameworks": [
            { "principals": { "values": ["ann"] }, "roles": { "values": ["ads"] } },
            { "principals": { "values": ["bob"] }, "roles": { "values": ["qa"] } },
            { "principals": { "values": ["root"] }, "roles": { "type": "ANY" } }],
        "view_roles": [
            { "principals": { "values": ["ann"] }, "roles": { "values": ["ads"] } },
            { "principals": { "values": ["bob"] }, "roles": { "values": ["qa", "ops"] } },
            { "principals": { "values": ["root"] }, "roles": { "type": "ANY" } }] }"#;
    let acls = meseta_access::Acls::parse(acls).expect("ACLs");
    let rules = meseta_access::Authorizer::new(acls, false);
    let caller = |principal: &str| Caller {
        approver: rules.approver(Some(principal.to_owned())),
        ..file_reader::tests::caller(principal)
    };
    let asked = async |principal: &str, method: Method, path: &str| {
        let request = Request::builder().method(method).uri(path);
        let request = request.body(Body::empty()).expect("a request");
        let reply = jobs::answer(Permitted {
            context: Arc::clone(&context),
            caller: caller(principal),
            query: Query::from_uri(request.uri()),
            request,
        });
        let reply = reply.await.unwrap_or_else(|refusal| refusal).response();
        let status = reply.status();
        let body = axum::body::to_bytes(reply.into_body(), 1 << 20).await;
        let body = String::from_utf8(body.expect("a body").into()).expect("text");
        (status.as_u16(), body)
    };
    for (principal, name, expected) in [
        ("ann", "web", 200),
        ("ann", "ads/web", 200),
        ("ann", "ads%2Fweb", 200),
        ("ann", "ops/web", 404),
        ("bob", "web", 200),
        ("bob", "ops%2Fweb", 200),
        ("bob", "ads/web", 404),
        ("root", "web", 409),
        ("root", "ops/web", 200),
    ] {
        for part in ["", "/history"] {
            let path = format!("/v1/jobs/{name}{part}");
            let (status, body) = asked(principal, Method::GET, &path).await;
            assert_eq!(status, expected, "{principal} {path} {body}");
            if status == 409 {
                assert!(body.contains("give one of ads/web, ops/web"), "{body}");
            }
        }
    }
    // A hidden job gets the answer of a missing job; a visible job names the missing permission.
    for action in ["stop", "restart", "no-such-thing"] {
        let path = |name: &str| format!("/v1/jobs/{name}/{action}");
        let (hidden, text) = asked("bob", Method::POST, &path("ads/web")).await;
        let (missing, of_missing) = asked("bob", Method::POST, &path("ads/none")).await;
        assert_eq!((hidden, missing), (404, 404));
        assert_eq!(text.replace("web", "none"), of_missing);
        assert_eq!(asked("bob", Method::POST, &path("web")).await.0, 403);
    }
    let target = async |principal: &str, name: &str, after: &str| {
        let text = format!(
            r#"{{ "name": "{name}", "role": "qa", "after": ["{after}"], "task": {{ "command": "true" }} }}"#
        );
        let spec = crate::file::from_text(&text).expect("a job");
        let (caller, beside) = (caller(principal), std::collections::HashSet::new());
        let target = names::Target::from_context(&context, &caller, spec, &beside);
        let target = target.await.map_err(|reply| reply.status().as_u16());
        target.map(|target| {
            (
                target.key,
                target.seen.is_some(),
                target.spec.after[0].clone(),
            )
        })
    };
    let new = |key: &str, after: &str| Ok((key.to_owned(), false, after.to_owned()));
    assert_eq!(target("bob", "web", "db").await, new("web@qa", "db"));
    assert_eq!(
        target("bob", "proxy", "web").await,
        new("proxy@qa", "ops/web")
    );
    assert_eq!(
        target("bob", "proxy", "ops/web").await,
        new("proxy@qa", "ops/web")
    );
    assert_eq!(target("bob", "proxy", "qa/db").await, new("proxy@qa", "db"));
    // The response is the same whether or not the job exists.
    assert_eq!(target("bob", "proxy", "ads/web").await, Err(403));
    assert_eq!(target("bob", "proxy", "ads/none").await, Err(403));
    assert_eq!(target("bob", "ads/web", "db").await, Err(403));
    assert_eq!(target("bob", "ads/none", "db").await, Err(403));
    assert_eq!(target("ann", "web", "db").await, Err(403));
    assert_eq!(target("root", "proxy", "web").await, Err(400));
    let moved = target("root", "ads/web", "db").await;
    assert_eq!(moved, Ok(("web@ads".to_owned(), true, "db".to_owned())));
}

#[tokio::test]
async fn file_of_a_version_is_inspected() {
    let (_role, context) = scheduler_of(state_of(1), Role::Leading, Fence::never());
    for path in ["/v1/jobs/many/file", "/v1/jobs/many/file?version=1"] {
        let file = json_of(&context, path).await;
        assert_eq!(file["version"], 1);
        let spec = crate::file::from_json(&file["job"].to_string()).expect("the job");
        assert_eq!((&*spec.name, spec.count), ("many", 1));
    }
    for (path, status) in [
        ("/v1/jobs/many/file?version=7", StatusCode::BAD_REQUEST),
        ("/v1/jobs/many/file?version=x", StatusCode::BAD_REQUEST),
        ("/v1/jobs/none/file", StatusCode::NOT_FOUND),
    ] {
        let answer = ask(&context, Method::GET, path).await;
        assert_eq!(answer.status(), status, "{path}");
    }
}
