//! The master's HTTP: which path is which endpoint, and what every endpoint has in common.
//!
//! Entered through [`router`]. Paths are found by longest prefix, as Mesos does it: with or without
//! `/master` before and `/` behind. Invariant: a handler reads from snapshots or asks the core; it
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
use bytes::Bytes;
use http::{HeaderValue, Method, StatusCode, header};
use meseta_access::browser;
use meseta_daemon::authentication::{Authentication, Caller};
use meseta_daemon::body;
use meseta_daemon::files::FileReads;
use meseta_daemon::request::{self, READ};
use meseta_daemon::verbosity::Verbosity;
use meseta_proto::budget::{Budget, Charge};
use meseta_proto::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;
use tower_http::CompressionLevel;
use tower_http::compression::CompressionLayer;
use tower_http::compression::predicate::Predicate;
use tower_http::services::ServeDir;

use crate::budgets::Peer;
use crate::core::{self, Answer, Identity};
use crate::files::Files;
use crate::metrics::Metrics;
use crate::permission;
use crate::service::{Closed, Handle};
use authentication::CallRateLimit;
use buffered_response::BufferedResponses;
use chunked_response::Renderer;
use files::FileRequest;
use reservations::Change;

pub(crate) use scheduler::leave;

/// Bodies of scheduler calls.
pub(crate) const SCHEDULER_BODY_MAX: usize = 32 * 1024 * 1024;
/// Bodies of everything else.
pub(crate) const BODY_MAX: usize = 6 * 1024 * 1024;

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

    /// Reads a body of JSON, with what it takes until the answer is made.
    async fn json_body<T>(
        &self,
        caller: &Caller,
        body: Body,
        read: impl FnOnce(&Bytes) -> T,
    ) -> Result<(T, Bytes, Charge), Response> {
        let budget = self.request_of(caller);
        let read_whole = body::read_charged(body, BODY_MAX, &budget).await;
        let (bytes, charge) = read_whole.map_err(body::BodyError::response)?;
        let decoded = json::charged(charge, || read(&bytes)).map_err(body::no_memory)?;
        Ok((decoded.0, bytes, decoded.1))
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Scheduler,
    Operator,
    Health,
    Version,
    State,
    StateSummary,
    Slaves,
    Frameworks,
    Tasks,
    Roles,
    Flags,
    Explain,
    OfferConstraints,
    Metrics,
    MetricsSnapshot,
    LoggingToggle,
    OpenApi,
    Redirect,
    Teardown,
    Libprocess,
    Quota,
    Weights,
    Reservation(Change),
    Schedule,
    MaintenanceStatus,
    MachineUp,
    MachineDown,
    Files(FileRequest),
}

pub(crate) const ENDPOINTS: &[(&str, Endpoint)] = &[
    ("api/v1/scheduler", Endpoint::Scheduler),
    ("api/v1", Endpoint::Operator),
    ("health", Endpoint::Health),
    ("version", Endpoint::Version),
    ("state", Endpoint::State),
    ("state-summary", Endpoint::StateSummary),
    ("slaves", Endpoint::Slaves),
    ("frameworks", Endpoint::Frameworks),
    ("tasks", Endpoint::Tasks),
    ("roles", Endpoint::Roles),
    ("flags", Endpoint::Flags),
    ("explain", Endpoint::Explain),
    (
        "hierarchical-allocator(1)/offer_constraints_debug",
        Endpoint::OfferConstraints,
    ),
    ("metrics", Endpoint::Metrics),
    ("metrics/snapshot", Endpoint::MetricsSnapshot),
    ("logging/toggle", Endpoint::LoggingToggle),
    ("openapi.json", Endpoint::OpenApi),
    ("redirect", Endpoint::Redirect),
    ("teardown", Endpoint::Teardown),
    ("quota", Endpoint::Quota),
    ("weights", Endpoint::Weights),
    ("reserve", Endpoint::Reservation(Change::Reserve)),
    ("unreserve", Endpoint::Reservation(Change::Unreserve)),
    ("create-volumes", Endpoint::Reservation(Change::Create)),
    ("destroy-volumes", Endpoint::Reservation(Change::Destroy)),
    ("maintenance/schedule", Endpoint::Schedule),
    ("maintenance/status", Endpoint::MaintenanceStatus),
    ("machine/up", Endpoint::MachineUp),
    ("machine/down", Endpoint::MachineDown),
    ("files/browse", Endpoint::Files(FileRequest::Browse)),
    ("files/read", Endpoint::Files(FileRequest::Read)),
    ("files/download", Endpoint::Files(FileRequest::Download)),
    ("files/debug", Endpoint::Files(FileRequest::Debug)),
];

impl Endpoint {
    /// Cuts segments off the right until something is left that is known.
    pub(crate) fn find(path: &str) -> Option<Self> {
        if path.split('/').any(|segment| segment == "..") {
            return None;
        }
        let path = path.trim_start_matches('/').trim_end_matches('/');
        let mut rest = path.strip_prefix("master/").unwrap_or(path);
        if rest.starts_with("mesos.internal.") {
            return Some(Self::Libprocess);
        }
        loop {
            if let Some((_, endpoint)) = ENDPOINTS.iter().find(|(known, _)| *known == rest) {
                // Only these would take any path below them for their own.
                let exact = rest == path.strip_prefix("master/").unwrap_or(path);
                let strict = matches!(endpoint, Self::Redirect | Self::Metrics);
                return (exact || !strict).then_some(*endpoint);
            }
            rest = rest.rsplit_once('/')?.0;
        }
    }

    pub(crate) fn methods(self) -> &'static [Method] {
        const POST: &[Method] = &[Method::POST];
        const ALL: &[Method] = &[
            Method::GET,
            Method::HEAD,
            Method::POST,
            Method::PUT,
            Method::DELETE,
        ];
        match self {
            Self::Scheduler | Self::Operator | Self::Teardown | Self::Reservation(_) => POST,
            Self::Metrics => &[Method::GET, Method::HEAD],
            Self::Quota => &[Method::GET, Method::POST, Method::DELETE],
            Self::Weights => &[Method::GET, Method::PUT],
            Self::MachineUp | Self::MachineDown => POST,
            Self::Schedule => &[Method::GET, Method::POST],
            Self::Libprocess => ALL,
            Self::Health
            | Self::Version
            | Self::State
            | Self::StateSummary
            | Self::Slaves
            | Self::Frameworks
            | Self::Tasks
            | Self::Roles
            | Self::Flags
            | Self::Explain
            | Self::OfferConstraints
            | Self::MaintenanceStatus
            | Self::MetricsSnapshot
            | Self::LoggingToggle
            | Self::OpenApi
            | Self::Files(_)
            | Self::Redirect => READ,
        }
    }
}

impl Endpoint {
    /// Whether a request may change something although it is a GET.
    pub(crate) fn changes_by_get(self, query: Option<&str>) -> bool {
        self == Self::LoggingToggle && query.is_some_and(|query| query.contains("level"))
    }

    /// Refuses a body of a type that only a page's form has. Nothing else is asked of the type, as in Mesos: `curl
    /// -d` says that it sends a form.
    fn refuse_type(self, request: &Request) -> Option<Response> {
        let expected = match self {
            Self::Quota | Self::Weights | Self::Schedule | Self::MachineUp | Self::MachineDown => {
                "application/json"
            }
            Self::Teardown | Self::Reservation(_) => "application/x-www-form-urlencoded",
            _ => return None,
        };
        let mut given = request.headers().get_all(header::CONTENT_TYPE).iter();
        let given = given.find(|kind| {
            let kind = String::from_utf8_lossy(kind.as_bytes());
            browser::is_type_of_forms(&kind)
        })?;
        let given = String::from_utf8_lossy(given.as_bytes());
        let message = format!(
            "Expecting 'Content-Type' of {expected}, not '{}'",
            given.escape_debug()
        );
        Some(text(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
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
    let Some(endpoint) = Endpoint::find(request.uri().path()) else {
        return page(&context, request).await;
    };
    let methods = endpoint.methods();
    if !methods.contains(request.method()) {
        return method_not_allowed(request.method(), methods);
    }
    let Some(caller) = authentication::caller(&request) else {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "This route has no authentication",
        );
    };
    if let Some(refused) = endpoint.refuse_type(&request) {
        return refused;
    }
    let need = permission::endpoint(endpoint, request.method());
    if let Err(forbidden) = permission::check(&caller, need) {
        return text(StatusCode::FORBIDDEN, forbidden.to_string());
    }
    let caller = &caller;
    // The body of an answer to HEAD is left out further down.
    match endpoint {
        Endpoint::Scheduler => scheduler::handle(&context, caller, request).await,
        Endpoint::Operator => operator::handle(&context, caller, request).await,
        Endpoint::Teardown => v0::teardown(&context, caller, request).await,
        Endpoint::Reservation(change) => {
            reservations::endpoint(&context, caller, change, request).await
        }
        Endpoint::Health => StatusCode::OK.into_response(),
        Endpoint::LoggingToggle => {
            logging::toggle(&context, caller, request.method(), request.uri().query())
        }
        Endpoint::OpenApi => openapi::answer(),
        Endpoint::Redirect => redirect(&context),
        Endpoint::Explain => explain::handle(&context, caller, request.uri().query()).await,
        Endpoint::OfferConstraints => constraints::handle(&context, caller).await,
        Endpoint::Metrics => v0::prometheus(&context).await,
        Endpoint::Libprocess => text(
            StatusCode::NOT_IMPLEMENTED,
            "The libprocess protocol is not spoken here: use the HTTP API at /api/v1/scheduler",
        ),
        Endpoint::Quota => quota::handle(&context, caller, request).await,
        Endpoint::Weights => weights::handle(&context, caller, request).await,
        Endpoint::Schedule => maintenance::schedule(&context, caller, request).await,
        Endpoint::MachineUp => {
            maintenance::machines(&context, caller, request, core::Request::StopMaintenance).await
        }
        Endpoint::MachineDown => {
            maintenance::machines(&context, caller, request, core::Request::StartMaintenance).await
        }
        Endpoint::Files(file_request) => {
            files::handle(&context, caller, file_request, request.uri().query()).await
        }
        Endpoint::Version
        | Endpoint::State
        | Endpoint::StateSummary
        | Endpoint::Slaves
        | Endpoint::Frameworks
        | Endpoint::Tasks
        | Endpoint::Roles
        | Endpoint::Flags
        | Endpoint::MaintenanceStatus
        | Endpoint::MetricsSnapshot => {
            v0::read(&context, caller, endpoint, v0::ReadRequest::of(&request)).await
        }
    }
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
