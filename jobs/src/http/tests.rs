//! What is answered by a scheduler that does not lead, or may not act at the moment.

use clap::Parser as _;
use http::Method;
use meseta_daemon::clock::Clock;
use meseta_etcd::leadership::{Fence, Leader, Role, Standing};

use super::*;
use crate::flags::Flags;
use crate::link::Registration;
use crate::service::{Ends, tests::empty_state};

/// Answers questions from a state without jobs, as one of this role.
fn scheduler(role: Role, fence: Fence) -> (watch::Sender<Role>, Arc<Context>) {
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
    };
    let Ends {
        handle, mut inbox, ..
    } = Ends::new(Registration::default(), standing);
    tokio::spawn(async move { inbox.stand_by(&empty_state(Clock::new())).await });
    let context = Context {
        authentication,
        handle,
        files: FileReader::new(),
        user: "somebody".to_owned(),
        leader: watch::channel(None).1,
        address: "here:1".to_owned(),
        schedulers: watch::channel(Vec::new()).1,
        build: BuildInfo::default(),
        shutdown: CancellationToken::new(),
    };
    (role, Arc::new(context))
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
    let body = axum::body::to_bytes(answer.into_body(), 1 << 20).await;
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

/// It is told that it leads, and its lease has ended.
#[tokio::test]
async fn what_a_leader_shows_that_may_not_act_is_marked_as_such() {
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
