//! The agent's HTTP server: what Mesos clients, operators and Prometheus ask.
//!
//! One dispatch by path, as libprocess does it: a leading `/slave(1)` and a trailing slash are
//! ignored, and the longest known prefix of an API path answers. Answers are made from a snapshot of
//! the core and from the last samples; nothing here reads usage from the kernel or holds the core up.

mod api;
mod container_rights;
mod containers;
mod executor;
mod executor_caller;
mod files;
mod query;
mod reply;
mod state;
mod statistics;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Method, Request, Response, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::{self, Caller};
use meseta_daemon::body;
use meseta_daemon::request;
use meseta_daemon::server::Peer;
use meseta_proto::WireMessage;
use meseta_proto::budget::Charge;
use meseta_proto::media::{self, ChargedError, MediaType};

use crate::context::{Context, memory_owner};
use crate::permission;
use crate::routes::{ROUTES, Route};

pub(crate) use query::Query;
pub(crate) use reply::Reply;

/// Answers below this are not counted: each connection has one at a time.
const COUNTED_ANSWER_BYTES: usize = 16 * 1024;

/// The routes, over what they share.
pub(crate) fn router(context: Arc<Context>) -> Router {
    Router::new().fallback(dispatch).with_state(context)
}

async fn dispatch(State(context): State<Arc<Context>>, request: Request<Body>) -> Response<Body> {
    // No route changes anything by GET.
    let source = match context
        .authentication
        .check_browser_request(&request, false)
    {
        Ok(source) => source,
        Err(turned) => return turned.response(),
    };
    let mut response = routed(context, request).await;
    authentication::allow_cross_origin(source, &mut response);
    response
}

async fn routed(context: Arc<Context>, request: Request<Body>) -> Response<Body> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    if let Err(rejection) = check_length(request.uri(), &query) {
        return rejection.into_response(&Query::default());
    }
    let path = request.uri().path().to_owned();
    if is_disabled(&context, &path) {
        let text = format!("Endpoint '{path}' is disabled");
        return Reply::text(StatusCode::FORBIDDEN, &text).into_response(&query);
    }
    let Some(route) = Route::find(&path) else {
        return Reply::not_found().into_response(&query);
    };
    let peer = request.extensions().get::<Peer>();
    let realm = permission::realm(route);
    let caller = match context
        .authentication
        .authenticate(realm, request.headers(), peer)
        .await
    {
        Ok(caller) => caller,
        Err(turned) => {
            let executor = executor_caller::operator(&context, route, request.headers(), peer);
            match executor.await {
                Some(caller) => caller,
                None => return turned.response(),
            }
        }
    };
    let checked = check_method(route, request.method())
        .and_then(|()| permission::check(&caller, permission::route(route)).map_err(Reply::from));
    let reply = match checked {
        Ok(()) => answer(&context, &caller, route, &query, request).await,
        Err(rejection) => Err(rejection),
    };
    let reply = reply.unwrap_or_else(|rejection| rejection);
    let reply = match reply.counted_bytes() {
        bytes if bytes > COUNTED_ANSWER_BYTES => {
            let answers = context.answers.of(memory_owner(&caller));
            reply.charged(answers.charge(bytes))
        }
        _ => reply,
    };
    reply.into_response(&query)
}

fn check_length(uri: &http::Uri, query: &Query) -> Result<(), Reply> {
    let is_long = |path: &http::uri::PathAndQuery| path.as_str().len() > request::URI_BYTES_MAX;
    if uri.path_and_query().is_some_and(is_long) {
        let reason = request::uri_too_long();
        return Err(Reply::text(StatusCode::URI_TOO_LONG, &reason));
    }
    let callback = query.get("jsonp").unwrap_or_default();
    if callback.len() > request::CALLBACK_BYTES_MAX {
        let reason = request::callback_too_long();
        return Err(Reply::text(StatusCode::BAD_REQUEST, &reason));
    }
    Ok(())
}

/// Firewall rules name a route with the process or without.
fn is_disabled(context: &Context, path: &str) -> bool {
    let found = Route::find(path);
    let mut routes = ROUTES.iter();
    let name = routes.find(|(_, route)| Some(*route) == found);
    context.authentication.is_disabled(path)
        || name.is_some_and(|(name, _)| {
            context.authentication.is_disabled(name)
                || context
                    .authentication
                    .is_disabled(&format!("/slave(1){name}"))
        })
}

async fn answer(
    context: &Arc<Context>,
    caller: &Caller,
    route: Route,
    query: &Query,
    request: Request<Body>,
) -> Result<Reply, Reply> {
    match route {
        Route::Health => Ok(Reply::empty(StatusCode::OK)),
        Route::Version => Ok(Reply::json(&state::version())),
        Route::Flags => Ok(Reply::json(&state::flags(context))),
        Route::State => {
            let snapshot = context.view(caller).await?;
            let may_see_flags = caller.check(Action::ViewFlags, None).is_ok();
            Ok(state::state(context, &snapshot, may_see_flags))
        }
        Route::Statistics => {
            let snapshot = context.containers(caller).await?;
            let entries = statistics::statistics(context, &snapshot);
            Ok(Reply::json(&reply::List(entries)))
        }
        Route::Containers => {
            let snapshot = context.containers(caller).await?;
            let entries = statistics::containers(context, &snapshot, query);
            Ok(Reply::json(&reply::List(entries)))
        }
        Route::Metrics => Ok(Reply::prometheus(context.metrics.text(context).await)),
        Route::MetricsSnapshot => {
            if let Some(timeout) = query.get("timeout") {
                // All is at hand: there is nothing to wait for.
                request::timeout(timeout)
                    .map_err(|reason| Reply::text(StatusCode::BAD_REQUEST, &reason))?;
            }
            Ok(Reply::json(&crate::metrics::mesos_keys(context).await))
        }
        Route::Browse => files::browse(context, caller, query).await,
        Route::Read => files::read(context, caller, query).await,
        Route::Download => files::download(context, caller, query).await,
        Route::Debug => files::debug(context).await,
        // Boxed: these are many times larger than the others, and each connection would have room for them.
        Route::Operator => Box::pin(api::call(context, caller, request)).await,
        Route::Executor => Box::pin(executor::call(context, request)).await,
        Route::Libprocess => Err(Reply::text(
            StatusCode::NOT_IMPLEMENTED,
            "This agent speaks to its master over gRPC; frameworks use /api/v1/scheduler of the master",
        )),
    }
}

fn check_method(route: Route, method: &Method) -> Result<(), Reply> {
    let allowed = match route.methods() {
        Some(allowed) if !allowed.contains(method) => allowed,
        _ => return Ok(()),
    };
    let (allow, reason) = request::method_not_allowed(method, allowed);
    Err(Reply::text(StatusCode::METHOD_NOT_ALLOWED, &reason).allow(allow))
}

/// A call, and what it takes until it is done.
async fn read_call<T: WireMessage>(
    context: &Context,
    caller: &Caller,
    content_type: MediaType,
    request: Request<Body>,
) -> Result<(T, Charge), Reply> {
    let budget = context.body_of(caller);
    let max = context.budgets.call_bytes_max();
    let read = body::read_charged(request.into_body(), max, &budget).await;
    let (bytes, charge) = read.map_err(|error| Reply::text(error.status(), &error.to_string()))?;
    let decoded = media::decode_charged(content_type, &bytes, &budget);
    drop(charge);
    decoded.map_err(|error| undecodable(&error))
}

fn undecodable(error: &ChargedError) -> Reply {
    let status = match error {
        ChargedError::Body(_) => StatusCode::BAD_REQUEST,
        ChargedError::Exhausted(exhausted) => body::BodyError::from(*exhausted).status(),
        ChargedError::Interrupted => StatusCode::SERVICE_UNAVAILABLE,
    };
    Reply::text(status, &error.to_string())
}
