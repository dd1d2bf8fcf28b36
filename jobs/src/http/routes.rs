//! The table of the scheduler's routes.

use std::pin::Pin;

use http::Method;
use meseta_daemon::routes::{self, BodyType, Need};

use super::{Permitted, Reply, job_pages, jobs, read_routes};
use crate::file;

type Answer = Pin<Box<dyn Future<Output = Result<Reply, Reply>> + Send>>;
type Route = routes::Route<fn(Permitted) -> Answer>;

static LIST: &[Route] = &[
    Route::change(
        jobs::PATH,
        &[Method::GET, Method::POST],
        |permitted| Box::pin(jobs::answer(permitted)),
        "jobs; below this path: `plan`, `NAME` or `ROLE/NAME` (`tasks=false`, `limit`, `offset`, `after`), `NAME/history`, `NAME/file` (`version`) and `NAME/ACTION` (scale, restart, stop, revert, promote, rebalance, release)",
    )
    .filters_reads()
    .body(file::FILE_BYTES_MAX, Some(BodyType::Json)),
    Route::read(
        "/v1/events",
        Need::Filtered,
        |permitted| Box::pin(read_routes::events(permitted)),
        "events of jobs, one JSON object per line, and a space every 15 seconds; `job`",
    )
    .alone(),
    Route::read(
        "/v1/volumes",
        Need::Filtered,
        |permitted| Box::pin(job_pages::volumes(permitted)),
        "volumes of all jobs, and volumes to release",
    )
    .alone(),
    Route::read(
        "/v1/subscription",
        Need::Filtered,
        |permitted| Box::pin(read_routes::subscription(permitted)),
        "the scheduler's subscription: its master and its framework",
    )
    .alone(),
    Route::read(
        "/v1/discovery/http_sd",
        Need::Filtered,
        |permitted| Box::pin(read_routes::http_sd(permitted)),
        "running tasks with ports, for Prometheus",
    )
    .alone(),
    Route::endpoint(
        "/metrics",
        |permitted| Box::pin(read_routes::metrics(permitted)),
        "metrics for Prometheus",
    )
    .by_followers()
    .alone(),
    Route::open(
        "/health",
        |permitted| Box::pin(read_routes::health(permitted)),
        "200 while the core answers; 503 while the start waits for its store, and while the disk of the store is full or does not answer",
    )
    .by_followers()
    .alone(),
    Route::open(
        "/leader",
        |permitted| Box::pin(read_routes::leader(permitted)),
        "the state of this scheduler, the leader, and the addresses of all schedulers",
    )
    .by_followers()
    .alone(),
    Route::open(
        "/version",
        |permitted| Box::pin(read_routes::version(permitted)),
        "as on the master",
    )
    .by_followers()
    .alone(),
    Route::open(
        "/openapi.json",
        |permitted| Box::pin(read_routes::openapi(permitted)),
        "the description of these endpoints for programs",
    )
    .by_followers()
    .alone(),
];

static LIBPROCESS: Route = Route::open(
    "/mesos.internal",
    |_| {
        Box::pin(async {
            let text = "a scheduler does not support libprocess";
            Err(Reply::error(http::StatusCode::NOT_IMPLEMENTED, text))
        })
    },
    "messages of libprocess, which Meseta does not support",
)
.methods(routes::ANY_METHOD);

pub(super) static ROUTES: routes::Routes<fn(Permitted) -> Answer> = routes::Routes {
    process: "scheduler",
    list: LIST,
    libprocess: &LIBPROCESS,
};

/// The rows of `docs/endpoints.md`.
#[must_use]
pub fn reference() -> String {
    ROUTES.reference()
}

#[cfg(test)]
mod tests {
    #[test]
    fn reference_lists_exactly_the_routes() {
        let page = include_str!("../../../docs/endpoints.md");
        let part = page.split("## Scheduler").nth(1).expect("a part");
        let part = part.split("\n## ").next().expect("a part");
        let rows = part.lines().filter(|line| line.starts_with("| `/"));
        let rows: String = rows.map(|row| format!("{row}\n")).collect();
        assert_eq!(rows, super::reference(), "docs/endpoints.md");
    }
}
