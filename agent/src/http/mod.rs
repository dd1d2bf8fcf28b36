//! The agent's HTTP surface: what Mesos clients, operators and Prometheus ask.
//!
//! One dispatch by path, as libprocess does it: a leading `/slave(1)` and a trailing slash are
//! ignored, and the longest known prefix of an API path answers. Answers are made from a snapshot of
//! the core and from the last samples; nothing here reads usage from the kernel or holds the core up.

mod api;
mod containers;
mod executor;
mod files;
mod query;
mod reply;
mod state;
mod statistics;

pub(crate) use statistics::resource_statistics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};

use crate::checkpoint::Layout;
use crate::core::{self, Snapshot};
use crate::metrics::Metrics;
use crate::run::CancellationToken;
use crate::shell::CoreHandle;
use crate::shell::containerizer::Containerizer;
use crate::shell::executors::ExecutorStreams;
use crate::shell::gc::Gc;
use crate::shell::monitor::Samples;
use crate::shell::nested::NestedContainers;

pub(crate) use query::Query;
pub(crate) use reply::Reply;
pub(crate) use state::VERSION;

/// What is answered before the core knows what there is.
const RECOVERING: &str = "Agent has not finished recovery";
/// The core answers at once unless it waits for the disk.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(5);
/// Largest body of a call.
const BODY_BYTES_MAX: usize = 6 * 1024 * 1024;

/// What the handlers share.
#[derive(Debug)]
pub(crate) struct Surface {
    /// The core.
    pub(crate) core: CoreHandle,
    /// Set once the core is about to hear of what was recovered.
    pub(crate) recovered: AtomicBool,
    /// The last sample of each container.
    pub(crate) samples: Samples,
    /// The streams to executors.
    pub(crate) streams: ExecutorStreams,
    /// Containers that were asked for over the API.
    pub(crate) nested: NestedContainers,
    /// Old sandboxes.
    pub(crate) gc: Gc,
    /// Cancelled when streams are to end with the agent.
    pub(crate) shutdown: CancellationToken,
    /// Set when containers can be run.
    pub(crate) containerizer: std::sync::OnceLock<Containerizer>,
    /// Where sandboxes are.
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
    /// For `/metrics`.
    pub(crate) metrics: Metrics,
}

impl Surface {
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
pub(crate) fn router(surface: Arc<Surface>) -> Router {
    Router::new().fallback(dispatch).with_state(surface)
}

async fn dispatch(State(surface): State<Arc<Surface>>, request: Request<Body>) -> Response<Body> {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    let path = request.uri().path().to_owned();
    let reply = answer(&surface, &path, &query, request).await;
    let reply = reply.unwrap_or_else(|refusal| refusal);
    reply.into_response(&query)
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
    surface: &Arc<Surface>,
    path: &str,
    query: &Query,
    request: Request<Body>,
) -> Result<Reply, Reply> {
    if path.contains("/..") {
        return Err(Reply::not_found());
    }
    match route(path) {
        "/health" => Ok(Reply::empty(StatusCode::OK)),
        "/version" => Ok(Reply::json(&state::version())),
        "/flags" => Ok(Reply::json(&state::flags(surface))),
        "/state" => {
            let snapshot = surface.snapshot().await?;
            Ok(Reply::json(&state::state(surface, &snapshot)))
        }
        "/monitor/statistics" => {
            let snapshot = surface.snapshot().await?;
            Ok(Reply::json(&statistics::statistics(surface, &snapshot)))
        }
        "/containers" => {
            let snapshot = surface.snapshot().await?;
            Ok(Reply::json(&statistics::containers(
                surface, &snapshot, query,
            )))
        }
        "/metrics" => Ok(Reply::prometheus(surface.metrics.text(surface).await)),
        "/metrics/snapshot" => Ok(Reply::json(&crate::metrics::mesos_keys(surface).await)),
        "/files/browse" => files::browse(surface, query).await,
        "/files/read" => files::read(surface, query).await,
        "/files/download" => files::download(surface, query).await,
        "/files/debug" => files::debug(surface).await,
        "/api/v1" => {
            expect_post(request.method())?;
            api::call(surface, request).await
        }
        "/api/v1/executor" => {
            expect_post(request.method())?;
            executor::call(surface, request).await
        }
        path if path.starts_with("/mesos.internal.") => Err(Reply::text(
            StatusCode::NOT_IMPLEMENTED,
            "This agent speaks to its master over gRPC; frameworks use /api/v1/scheduler of the master",
        )),
        _ => Err(Reply::not_found()),
    }
}

fn expect_post(method: &Method) -> Result<(), Reply> {
    if *method == Method::POST {
        return Ok(());
    }
    let text =
        format!("405 Method Not Allowed. Expecting one of {{ 'POST' }}, but received '{method}'.");
    Err(Reply::text(StatusCode::METHOD_NOT_ALLOWED, &text).allow("POST"))
}

/// A whole body, which must not be too long.
async fn body(request: Request<Body>) -> Result<bytes::Bytes, Reply> {
    match Limited::new(request.into_body(), BODY_BYTES_MAX)
        .collect()
        .await
    {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Reply::text(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("The body is longer than {BODY_BYTES_MAX} bytes"),
        )),
        Err(_) => Err(Reply::text(
            StatusCode::BAD_REQUEST,
            "The body could not be read",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::route;

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
