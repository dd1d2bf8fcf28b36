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
mod executor_connections;
mod files;
mod query;
mod reply;
mod state;
mod statistics;

pub(crate) use executor_connections::ExecutorConnections;
pub(crate) use statistics::resource_statistics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Method, Request, Response, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::{self, Authentication, Caller};
use meseta_daemon::body;
use meseta_daemon::files::FileReads;
use meseta_daemon::request::{self, READ};
use meseta_daemon::server::{CancellationToken, Peer};
use meseta_daemon::verbosity::Verbosity;
use meseta_proto::WireMessage;
use meseta_proto::budget::{Budget, Charge, Shares};
use meseta_proto::media::{self, ChargedError, MediaType};

use crate::budgets::Budgets;
use crate::checkpoint::Layout;
use crate::containerizer::Containerizer;
use crate::core::{self, Snapshot};
use crate::executor_tokens::ExecutorTokens;
use crate::gc::Gc;
use crate::handle::Handle;
use crate::intake::Intake;
use crate::link::outgoing::Dropped;
use crate::metrics::Metrics;
use crate::monitor::Samples;
use crate::nested::NestedContainers;
use crate::permission;
use crate::service::executor_streams::ExecutorStreams;

pub(crate) use query::Query;
pub(crate) use reply::Reply;

/// What is answered before the core knows what there is.
const RECOVERING: &str = "Agent has not finished recovery";
/// The core answers at once unless it waits for the disk.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// Answers below this are not counted: each connection has one at a time.
const COUNTED_ANSWER_BYTES: usize = 16 * 1024;

/// State shared by the handlers.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) core: Handle,
    /// Set once the core is about to hear of what was recovered.
    pub(crate) recovered: AtomicBool,
    /// The last sample of each container.
    pub(crate) samples: Samples,
    /// The streams to executors.
    pub(crate) streams: ExecutorStreams,
    /// Containers that were asked for over the API.
    pub(crate) nested: NestedContainers,
    /// The garbage collection of old sandboxes.
    pub(crate) gc: Gc,
    /// Cancelled when streams are to end with the agent.
    pub(crate) shutdown: CancellationToken,
    /// Set when containers can be run.
    pub(crate) containerizer: std::sync::OnceLock<Containerizer>,
    /// The layout of the work directory.
    pub(crate) layout: Layout,
    /// The flags in force, for `/flags` and `/state`.
    pub(crate) flags: BTreeMap<String, String>,
    /// How the agent is called by Mesos clients: `slave(1)@ip:port`.
    pub(crate) pid: String,
    /// When the agent was started, since the epoch.
    pub(crate) start_time: Duration,
    /// The same on the monotonic clock.
    pub(crate) started: Instant,
    /// How long recovery took, once it is over.
    pub(crate) recovery: std::sync::OnceLock<Duration>,
    /// Whether requests cap the CPUs of containers.
    pub(crate) enable_cfs: bool,
    /// Calls of plug-ins that came to nothing.
    pub(crate) plugin_failures: crate::oversubscription::Failures,
    pub(crate) metrics: Metrics,
    /// Whose tokens executors have; none if nobody asks them.
    pub(crate) tokens: Option<ExecutorTokens>,
    /// Messages of executors that the master did not take.
    pub(crate) dropped: Dropped,
    /// Room for calls of executors that are being read.
    pub(crate) reading: Intake,
    /// Room for updates that wait to be among those that are not acknowledged.
    pub(crate) waiting: Intake,
    /// Room for updates that are not acknowledged.
    pub(crate) unacknowledged: Intake,
    /// Connections authenticated as executors'.
    pub(crate) executor_connections: ExecutorConnections,
    pub(crate) authentication: Authentication,
    /// How the budget of memory is divided.
    pub(crate) budgets: Budgets,
    /// Calls while they are decoded and done, by caller.
    pub(crate) bodies: Shares<String>,
    /// Answers that are not sent, by caller.
    pub(crate) answers: Shares<String>,
    /// Files that are read for clients.
    pub(crate) file_reads: FileReads,
    /// How much is logged.
    pub(crate) verbosity: Verbosity,
}

impl Context {
    /// The core as far as somebody may see it; see [`Context::snapshot`].
    pub(crate) async fn view(&self, caller: &Caller) -> Result<Arc<Snapshot>, Reply> {
        let snapshot = self.snapshot().await?;
        Ok(permission::filtered(snapshot, &caller.approver))
    }

    /// The containers that somebody may see; see [`Context::snapshot`].
    pub(crate) async fn containers(&self, caller: &Caller) -> Result<Arc<Snapshot>, Reply> {
        let snapshot = self.snapshot().await?;
        Ok(permission::containers_of(snapshot, &caller.approver))
    }

    /// What one call of a caller may take, of what all of the caller's may.
    fn body_of(&self, caller: &Caller) -> Budget {
        let all = self.bodies.of(memory_owner(caller));
        all.share(all.limit(), 0)
    }

    /// The core as it is, unless the agent is still recovering or already ending.
    pub(crate) async fn snapshot(&self) -> Result<Arc<Snapshot>, Reply> {
        if !self.recovered.load(Ordering::Acquire) {
            return Err(Reply::text(StatusCode::SERVICE_UNAVAILABLE, RECOVERING));
        }
        let unavailable = |text| Reply::text(StatusCode::SERVICE_UNAVAILABLE, text);
        match tokio::time::timeout(SNAPSHOT_TIMEOUT, self.core.snapshot()).await {
            Ok(Some(snapshot)) if snapshot.state == core::State::Recovering => {
                Err(unavailable(RECOVERING))
            }
            Ok(Some(snapshot)) => Ok(snapshot),
            Ok(None) => Err(unavailable("Agent is shutting down")),
            Err(_) => Err(unavailable("Agent is waiting for its disk")),
        }
    }
}

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
        .and_then(|()| permission::check(&caller, permission::route(route)));
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

/// Who shares memory with whom: a container, a principal, or else an address.
fn memory_owner(caller: &Caller) -> String {
    match (&caller.container, caller.approver.principal()) {
        (Some(container), _) => format!("container {container}"),
        (None, Some(principal)) => format!("principal {principal}"),
        (None, None) => caller
            .address
            .map_or_else(String::new, |address| address.ip().to_string()),
    }
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Health,
    Version,
    Flags,
    State,
    Statistics,
    Containers,
    Metrics,
    MetricsSnapshot,
    Browse,
    Read,
    Download,
    Debug,
    Operator,
    Executor,
    Libprocess,
}

pub(crate) const ROUTES: &[(&str, Route)] = &[
    ("/health", Route::Health),
    ("/version", Route::Version),
    ("/flags", Route::Flags),
    ("/state", Route::State),
    ("/monitor/statistics", Route::Statistics),
    ("/containers", Route::Containers),
    ("/metrics", Route::Metrics),
    ("/metrics/snapshot", Route::MetricsSnapshot),
    ("/files/browse", Route::Browse),
    ("/files/read", Route::Read),
    ("/files/download", Route::Download),
    ("/files/debug", Route::Debug),
    ("/api/v1", Route::Operator),
    ("/api/v1/executor", Route::Executor),
];

impl Route {
    fn find(path: &str) -> Option<Self> {
        if path.contains("/..") {
            return None;
        }
        let path = route(path);
        if path.starts_with("/mesos.internal.") {
            return Some(Self::Libprocess);
        }
        let found = ROUTES.iter().find(|(known, _)| *known == path);
        found.map(|(_, route)| *route)
    }

    /// None if any will do.
    fn methods(self) -> Option<&'static [Method]> {
        match self {
            Self::Operator | Self::Executor => Some(&[Method::POST]),
            Self::Libprocess => None,
            Self::Health
            | Self::Version
            | Self::Flags
            | Self::State
            | Self::Statistics
            | Self::Containers
            | Self::Metrics
            | Self::MetricsSnapshot
            | Self::Browse
            | Self::Read
            | Self::Download
            | Self::Debug => Some(READ),
        }
    }
}

/// The path without what names the process, as libprocess routes it.
fn route(path: &str) -> &str {
    let path = path.strip_suffix('/').unwrap_or(path);
    let path = path.strip_prefix("/slave(1)").unwrap_or(path);
    if path == "/api/v1/executor" || path.starts_with("/api/v1/executor/") {
        return "/api/v1/executor";
    }
    if path == "/api/v1" || path.starts_with("/api/v1/") {
        return "/api/v1";
    }
    path
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{READ, ROUTES, route};

    #[test]
    fn every_route_is_in_the_reference_with_its_methods_and_nothing_else_is() {
        let page = include_str!("../../../docs/endpoints.md");
        let of_agent = page.split("## Agent").nth(1).expect("a part");
        let rows = of_agent
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let listed: BTreeSet<(&str, &str)> = rows
            .map(|(path, rest)| (path, rest.split(" |").next().unwrap_or_default()))
            .collect();
        let known = ROUTES.iter().map(|(path, route)| {
            let methods = route.methods().expect("a list");
            (*path, if methods == READ { "read" } else { "POST" })
        });
        assert_eq!(listed, known.collect(), "docs/endpoints.md");
    }

    #[test]
    fn paths_are_routed_as_libprocess_does() {
        for (path, routed) in [
            ("/state", "/state"),
            ("/state/", "/state"),
            ("/slave(1)/state", "/state"),
            ("/slave(1)/monitor/statistics", "/monitor/statistics"),
            ("/api/v1", "/api/v1"),
            ("/slave(1)/api/v1", "/api/v1"),
            ("/api/v1/operator", "/api/v1"),
            ("/slave(1)/api/v1/executor", "/api/v1/executor"),
            ("/api/v1x", "/api/v1x"),
            ("/", ""),
        ] {
            assert_eq!(route(path), routed, "{path}");
        }
    }
}
