//! The master's HTTP: which path is which endpoint, and what every endpoint has in common.
//!
//! Entered through [`router`]. Paths are found by longest prefix, as Mesos does it: with or without
//! `/master` before and `/` behind; [`routes`] has the table. Invariant: a handler reads from snapshots or asks the core; it
//! holds no state of its own.

pub(crate) mod authentication;
pub(crate) mod buffered_response;
pub(crate) mod chunked_response;
mod constraints;
mod explain;
mod files;
mod logging;
mod maintenance;
mod openapi;
mod operator;
mod output;
mod quota;
pub(crate) mod reservations;
mod routes;
mod scheduler;
mod v0;
pub(crate) mod views;
mod weights;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use meseta_daemon::authentication::{Authentication, Caller};
use meseta_daemon::files::FileReads;
use meseta_daemon::request;
use meseta_daemon::verbosity::Verbosity;
use meseta_proto::budget::Budget;
use meseta_proto::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::Predicate;
use tower_http::services::ServeDir;

use crate::budgets::Peer;
use crate::core::{Answer, Identity};
use crate::files::Files;
use crate::metrics::Metrics;
use crate::permission;
use crate::service::{Closed, Handle};
use authentication::CallRateLimit;
use buffered_response::BufferedResponses;
use chunked_response::Renderer;
use routes::{Permitted, ROUTES};

pub(crate) use routes::{BODY_MAX, SCHEDULER_BODY_MAX};
pub(crate) use scheduler::leave;

#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) handle: Handle,
    pub(crate) identity: Identity,
    /// The flags in effect, as texts.
    pub(crate) flags: BTreeMap<String, String>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) renderer: Renderer,
    pub(crate) buffered_responses: BufferedResponses,
    pub(crate) files: Files,
    /// Files that are read for clients.
    pub(crate) file_reads: FileReads,
    pub(crate) authentication: Authentication,
    /// What holds frameworks to their pace.
    pub(crate) call_rate_limit: CallRateLimit,
    pub(crate) verbosity: Verbosity,
    /// Files of a page for people, served at the root.
    pub(crate) webui: Option<ServeDir>,
    /// Cancelled when all streams are to end.
    pub(crate) shutdown: CancellationToken,
}

impl Context {
    /// What a request of a caller may take, of what all of its group may.
    pub(crate) fn request_of(&self, caller: &Caller) -> Budget {
        self.handle.budgets.request_of(peer_of(caller))
    }
}

/// Whose a caller's requests are.
pub(crate) fn peer_of(caller: &Caller) -> Peer {
    caller.group()
}

/// The router of everything but gRPC.
pub(crate) fn router(context: Arc<Context>) -> Router {
    let compression = CompressionLayer::new()
        .quality(CompressionLevel::Fastest)
        .compress_when(WorthCompressing);
    let routes = Router::new()
        .fallback(handle)
        .layer(compression)
        .with_state(context.clone());
    authentication::authenticated(routes, context)
}

/// Marks an answer that may be compressed for a client who says that it understands that. Streams of
/// events never are: their readers take each chunk for an event.
#[derive(Clone, Copy, Debug)]
struct Compressible;

#[derive(Clone, Copy, Debug)]
struct WorthCompressing;

impl Predicate for WorthCompressing {
    fn should_compress<B: http_body::Body>(&self, response: &http::Response<B>) -> bool {
        /// As in Mesos: less is not worth it.
        const BYTES_MIN: u64 = 1_024;
        let length = response.body().size_hint().exact();
        response.extensions().get::<Compressible>().is_some()
            && length.is_none_or(|bytes| bytes >= BYTES_MIN)
    }
}

async fn handle(State(context): State<Arc<Context>>, request: Request) -> Response {
    if request
        .uri()
        .path_and_query()
        .is_some_and(|path| path.as_str().len() > request::URI_BYTES_MAX)
    {
        return text(StatusCode::URI_TOO_LONG, request::uri_too_long());
    }
    let Some(route) = ROUTES.find(request.uri().path()) else {
        return page(&context, request).await;
    };
    if !route.methods.contains(request.method()) {
        return method_not_allowed(request.method(), route.methods);
    }
    let Some(caller) = authentication::caller(&request) else {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "This route has no authentication",
        );
    };
    if let Some(message) = route.wrong_body_type(&request) {
        return text(StatusCode::UNSUPPORTED_MEDIA_TYPE, message);
    }
    if let Err(forbidden) = permission::check(&caller, route.need(request.method())) {
        return text(StatusCode::FORBIDDEN, forbidden.to_string());
    }
    // The body of an answer to HEAD is left out further down.
    (route.handler)(Permitted {
        context,
        caller,
        route,
        request,
    })
    .await
}

/// A file of the page for people, if there is one.
async fn page(context: &Context, request: Request) -> Response {
    let Some(webui) = context.webui.clone() else {
        return text(StatusCode::NOT_FOUND, "404 Not Found.");
    };
    match webui.oneshot(request).await {
        Ok(response) if response.status() == StatusCode::NOT_FOUND => {
            text(StatusCode::NOT_FOUND, "404 Not Found.")
        }
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
    }
}

/// The base address of the leader, without a scheme, so that the client keeps its own.
fn redirect(context: &Context) -> Response {
    let location = format!("//{}:{}", context.identity.hostname, context.identity.port);
    match HeaderValue::from_str(&location) {
        Ok(location) => (
            StatusCode::TEMPORARY_REDIRECT,
            [(header::LOCATION, location)],
        )
            .into_response(),
        Err(_) => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The hostname cannot be put in a header",
        ),
    }
}

fn method_not_allowed(method: &Method, allowed: &[Method]) -> Response {
    let (allow, reason) = request::method_not_allowed(method, allowed);
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, reason);
    if let Ok(value) = HeaderValue::from_str(&allow) {
        response.headers_mut().insert(header::ALLOW, value);
    }
    response
}

/// What is wrong with a body that should have been JSON, and where.
fn not_json(what: &str, body: &[u8], error: &json::Error) -> Response {
    /// What of a body is repeated in the answer.
    const EXCERPT_MAX_CHARS: usize = 1_024;
    let text_of_body = String::from_utf8_lossy(body);
    let excerpt: String = text_of_body.chars().take(EXCERPT_MAX_CHARS).collect();
    let message = match error {
        json::Error::Syntax {
            reason,
            line,
            column,
        } => format!(
            "Failed to parse {what} request JSON '{excerpt}': {reason} (line {line}, column {column})"
        ),
        json::Error::Convert { reason, .. } => {
            format!("Failed to convert {what} request JSON to protobuf '{excerpt}': {reason}")
        }
    };
    text(StatusCode::BAD_REQUEST, message)
}

/// What the core answered, as a status and a text.
fn answered(answer: Result<Answer, Closed>) -> Response {
    let (status, message) = match answer {
        Ok(Answer::Accepted | Answer::Applied(_)) => return StatusCode::ACCEPTED.into_response(),
        Ok(Answer::Done) => return StatusCode::OK.into_response(),
        Ok(Answer::Warned(message)) => (StatusCode::OK, message),
        Ok(Answer::BadRequest(message)) => (StatusCode::BAD_REQUEST, message),
        Ok(Answer::Forbidden(message)) => (StatusCode::FORBIDDEN, message),
        Ok(Answer::NotFound(message)) => (StatusCode::NOT_FOUND, message),
        Ok(Answer::Conflict(message)) => (StatusCode::CONFLICT, message),
        Ok(Answer::Unavailable(message)) => (StatusCode::SERVICE_UNAVAILABLE, message),
        Ok(Answer::NotImplemented(message)) => (StatusCode::NOT_IMPLEMENTED, message),
        Err(closed) => return closed.into(),
    };
    text(status, message)
}

fn text(status: StatusCode, message: impl Into<String>) -> Response {
    (status, message.into()).into_response()
}

impl From<Closed> for Response {
    fn from(closed: Closed) -> Self {
        text(StatusCode::SERVICE_UNAVAILABLE, closed.to_string())
    }
}

#[cfg(test)]
mod tests;
