//! The agent's routes: the handler of each path, and the permission that it needs.
//!
//! This file and those of the handlers depend on each other: the table names the handlers, and they take its
//! [`Permitted`] requests.

use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use http::{Method, Request, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::{Caller, Realm};
use meseta_daemon::query::Query;
use meseta_daemon::request;
use meseta_daemon::routes::{self, Need};

use super::reply::List;
use super::{Reply, api, executor, files, state, statistics};
use crate::context::Context;
use crate::metrics;

/// A request of an authenticated caller with the permission that the route needs.
#[derive(Debug)]
pub(crate) struct Permitted {
    pub(super) context: Arc<Context>,
    pub(super) caller: Caller,
    /// The parameters of the URL.
    pub(super) query: Query,
    pub(super) request: Request<Body>,
}

type Answer = Pin<Box<dyn Future<Output = Result<Reply, Reply>> + Send>>;

pub(crate) type Route = routes::Route<fn(Permitted) -> Answer>;

/// The path of the operator API, which executors call too.
pub(super) const OPERATOR: &str = "/api/v1";

static LIST: &[Route] = &[
    Route::change(
        OPERATOR,
        &[Method::POST],
        |permitted| Box::pin(api::call(permitted)),
        "the agent's operator API, and its containers",
    ),
    Route::change(
        "/api/v1/executor",
        &[Method::POST],
        |permitted| Box::pin(executor::call(permitted)),
        "the executor API",
    )
    .realm(Realm::Executor),
    Route::open(
        "/health",
        |permitted| Box::pin(async move { health(&permitted.context) }),
        "200 while the agent serves; 503 while its disk does not answer or its work directory is removed",
    )
    .alone(),
    Route::open(
        "/version",
        |permitted| Box::pin(async move { Ok(Reply::json(&state::version(&permitted.context))) }),
        "as on the master",
    )
    .alone(),
    Route::read(
        "/flags",
        Need::Permission(Action::ViewFlags, None),
        |permitted| Box::pin(async move { Ok(Reply::json(&state::flags(&permitted.context))) }),
        "the flags and their values",
    )
    .alone(),
    Route::read(
        "/state",
        Need::Filtered,
        |permitted| Box::pin(state::page(permitted)),
        "the whole state",
    )
    .alone(),
    Route::endpoint(
        "/monitor/statistics",
        |permitted| Box::pin(monitor_statistics(permitted)),
        "the resource usage of containers",
    )
    .alone(),
    Route::endpoint(
        "/containers",
        |permitted| Box::pin(containers(permitted)),
        "containers with their resource usage; `container_id`",
    )
    .alone(),
    Route::endpoint(
        "/metrics",
        |permitted| Box::pin(prometheus(permitted)),
        "metrics for Prometheus",
    )
    .alone(),
    Route::endpoint(
        "/metrics/snapshot",
        |permitted| Box::pin(metrics_snapshot(permitted)),
        "metrics under the names of Mesos",
    )
    .alone(),
    Route::read(
        "/files/browse",
        Need::ByObject,
        |permitted| Box::pin(files::browse(permitted)),
        "sandboxes and the log",
    )
    .alone(),
    Route::read(
        "/files/read",
        Need::ByObject,
        |permitted| Box::pin(files::read(permitted)),
        "`path`, `offset`, `length`: a part of a file; without `offset` its size",
    )
    .alone(),
    Route::read(
        "/files/download",
        Need::ByObject,
        |permitted| Box::pin(files::download(permitted)),
        "`path`: the whole file",
    )
    .alone(),
    Route::endpoint(
        "/files/debug",
        |permitted| Box::pin(files::debug(permitted)),
        "the names of attached files and their paths",
    )
    .alone(),
];

static LIBPROCESS: Route = Route::open(
    "/mesos.internal",
    |_| {
        Box::pin(async {
            Err(Reply::text(
                StatusCode::NOT_IMPLEMENTED,
                "Agents and masters communicate over gRPC; frameworks use /api/v1/scheduler of \
                 the master",
            ))
        })
    },
    "messages of libprocess, which Meseta does not support",
)
.methods(routes::ANY_METHOD);

pub(crate) static ROUTES: routes::Routes<fn(Permitted) -> Answer> = routes::Routes {
    process: "slave(1)",
    list: LIST,
    libprocess: &LIBPROCESS,
};

/// Answers without the core or the disk.
fn health(context: &Context) -> Result<Reply, Reply> {
    match context.disk_report.problem(context.layout.work_dir()) {
        None => Ok(Reply::empty(StatusCode::OK)),
        Some(problem) => {
            let text = format!("{problem}\n");
            Err(Reply::text(StatusCode::SERVICE_UNAVAILABLE, &text))
        }
    }
}

async fn monitor_statistics(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let snapshot = context.containers(&permitted.caller).await?;
    let entries = statistics::statistics(context, &snapshot);
    Ok(Reply::json(&List(entries)))
}

async fn containers(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    let snapshot = context.containers(&permitted.caller).await?;
    let entries = statistics::containers(context, &snapshot, &permitted.query);
    Ok(Reply::json(&List(entries)))
}

async fn prometheus(permitted: Permitted) -> Result<Reply, Reply> {
    let context = &permitted.context;
    Ok(Reply::prometheus(
        metrics::text(context, &permitted.caller).await,
    ))
}

async fn metrics_snapshot(permitted: Permitted) -> Result<Reply, Reply> {
    if let Some(timeout) = permitted.query.get("timeout") {
        // All data is in memory, so nothing can be slow.
        request::timeout(timeout)
            .map_err(|invalid| Reply::text(StatusCode::BAD_REQUEST, invalid.as_str()))?;
    }
    Ok(Reply::json(&metrics::mesos_keys(&permitted.context).await))
}

#[cfg(test)]
mod tests {
    use meseta_access::PATHS;

    use super::*;

    #[test]
    fn every_route_is_in_the_reference() {
        let page = include_str!("../../../docs/endpoints.md");
        let of_agent = page.split("## Agent").nth(1).expect("a part");
        let of_agent = of_agent.split("\n## ").next().expect("a part");
        let rows = of_agent.lines().filter(|line| line.starts_with("| `/"));
        let rows: String = rows.map(|row| format!("{row}\n")).collect();
        assert_eq!(rows, ROUTES.reference(), "docs/endpoints.md");
    }

    #[test]
    fn get_endpoints_paths_are_known() {
        for route in ROUTES.list {
            if let Need::Permission(Action::GetEndpoint, path) = route.need {
                assert!(PATHS.contains(&path.expect("a path")), "{}", route.path);
            }
        }
    }

    #[test]
    fn paths_are_routed_as_libprocess_does() {
        for (path, routed) in [
            ("/state", Some("/state")),
            ("/state/", Some("/state")),
            ("/state/below", None),
            ("/slave(1)/state", Some("/state")),
            ("/slave(1)/monitor/statistics", Some("/monitor/statistics")),
            ("/api/v1", Some("/api/v1")),
            ("/slave(1)/api/v1", Some("/api/v1")),
            ("/api/v1/operator", Some("/api/v1")),
            ("/slave(1)/api/v1/executor", Some("/api/v1/executor")),
            ("/api/v1x", None),
            ("/", None),
        ] {
            let found = ROUTES.find(path).map(|route| route.path);
            assert_eq!(found, routed, "{path}");
        }
    }
}
