//! Authentication before all routes, HTTP and gRPC: no handler runs without it.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use meseta_daemon::authentication::{Caller, Realm, allow_cross_origin};
use meseta_daemon::body;
use meseta_daemon::messages::{limited_messages, messages};
use meseta_daemon::server::Peer;

use super::responses::text;
use super::routes::ROUTES;
use crate::buffered_response::SendPermit;
use crate::context::Context;

/// The size up to which an agent's frame is not counted while it is read: most frames are smaller.
const SMALL_FRAME_BYTES: u32 = 8 * 1024;

/// Adds authentication to routes.
pub(crate) fn authenticated(routes: Router, context: Arc<Context>) -> Router {
    routes.layer(from_fn_with_state(context, authenticate))
}

async fn authenticate(
    State(context): State<Arc<Context>>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let grpc = grpc_realm(path);
    let route = ROUTES.find(path);
    let query = request.uri().query();
    let changes_by_get = route.is_some_and(|route| route.changes_by_get(query));
    let source = match context
        .authentication
        .check_browser_request(&request, changes_by_get)
    {
        Ok(source) => source,
        Err(rejection) if grpc.is_some() => return rejection.status_of_grpc().into_http(),
        Err(rejection) => return rejection.response(),
    };
    if ROUTES.is_disabled(&context.authentication, path) {
        let message = format!("Endpoint '{path}' is disabled");
        return text(StatusCode::FORBIDDEN, message);
    }
    let realm = grpc.or_else(|| route.map(|route| route.realm));
    // An unknown path needs no authentication.
    let realm = realm.unwrap_or(Realm::Open);
    let peer = request.extensions().get::<Peer>();
    match context
        .authentication
        .authenticate(realm, request.headers(), peer)
        .await
    {
        Ok(caller) => {
            if let Some(realm) = grpc {
                request = request.map(|body| counted(&context, &caller, realm, body));
            }
            request.extensions_mut().insert(caller);
            let mut response = next.run(request).await;
            if let Some(send_permit) = response.extensions_mut().remove::<SendPermit>() {
                response = response.map(|body| send_permit.until_sent(body));
            }
            allow_cross_origin(source, &mut response);
            response
        }
        Err(rejection) if grpc.is_some() => rejection.status_of_grpc().into_http(),
        Err(rejection) => rejection.response(),
    }
}

/// The body of a gRPC call, counted while it is read. Frames of an agent come irregularly.
fn counted(context: &Context, caller: &Caller, realm: Realm, body: Body) -> Body {
    if realm == Realm::Agents {
        let frame_buffer = context.handle.budgets.frame_buffer.clone();
        return limited_messages(body, frame_buffer, caller.host().into(), SMALL_FRAME_BYTES);
    }
    messages(body::charged(body, context.request_of(caller)), true)
}

/// The realm of a method's path; `None` if the path is not one of gRPC.
fn grpc_realm(path: &str) -> Option<Realm> {
    let (service, _method) = path.strip_prefix('/')?.split_once('/')?;
    match service {
        "meseta.v1.AgentRegistry" => Some(Realm::Agents),
        "meseta.v1.Scheduler" => Some(Realm::Scheduler),
        "meseta.v1.Operator" => Some(Realm::Readwrite),
        "grpc.health.v1.Health" => Some(Realm::Open),
        _ if service.contains('.') && service.starts_with("grpc.") => Some(Realm::Readonly),
        _ if service.starts_with("meseta.") => Some(Realm::Readwrite),
        _ => None,
    }
}

/// The authenticated caller of a request.
pub(crate) fn caller(request: &Request) -> Option<Caller> {
    request.extensions().get::<Caller>().cloned()
}

/// The response to a group that subscribes too often: clients of Mesos retry only after this status.
pub(crate) fn subscribed_too_often(wait: Duration) -> Response {
    let message = format!("Too many subscriptions of this principal: try again in {wait:?}");
    let mut response = (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    let headers = response.headers_mut();
    headers.insert(
        header::RETRY_AFTER,
        HeaderValue::from(wait.as_secs().saturating_add(1)),
    );
    response
}

/// The response to a call that came too early.
pub(crate) fn too_many_requests(wait: Duration) -> Response {
    let seconds = wait.as_secs().saturating_add(1);
    let message = format!("Too many calls of this principal: try again in {wait:?}");
    let mut response = (StatusCode::TOO_MANY_REQUESTS, message).into_response();
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}
