//! The master's routes: the handler of each path, and its requirements.
//!
//! This file and those of the handlers know each other: the table names the handlers, and they take its [`Permitted`]
//! requests.

use std::pin::Pin;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use http::{Method, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::{Caller, Realm};
use meseta_daemon::body;
use meseta_daemon::query::Query;
use meseta_daemon::routes::{self, BodyType, Need};
use meseta_proto::budget::Charge;
use meseta_proto::json;

use super::files::FileRequest;
use super::responses::{answered, not_json, text};
use super::{
    constraints, explain, files, history, leadership, logging, maintenance, openapi, operator,
    quota, reservations, rights, scheduler, v0, weights,
};
use crate::context::{BODY_MAX, Context, SCHEDULER_BODY_MAX};
use crate::core;
use crate::operator::reservations::Change;

/// A request of an authenticated caller with the permission that the route needs.
#[derive(Debug)]
pub(crate) struct Permitted {
    pub(super) context: Arc<Context>,
    pub(super) caller: Caller,
    pub(super) route: &'static Route,
    pub(super) request: Request,
}

/// Answers without the core and the disk.
fn health(context: &Context) -> Response {
    match context.metrics.disk_silence.reported() {
        None => StatusCode::OK.into_response(),
        Some(silence) => {
            let silence = silence.as_secs();
            let message =
                format!("The disk of the registry has not answered for {silence} seconds.\n");
            text(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }
}

/// The caller of a permitted request after its body was read, and the body's charge until the answer is made.
#[derive(Debug)]
pub(super) struct Asker {
    pub(super) context: Arc<Context>,
    pub(super) caller: Caller,
    _charge: Charge,
}

impl Asker {
    /// Sends an operator's request to the core.
    pub(super) async fn administer(&self, request: core::Administration) -> Handled {
        let answer = self.context.handle.administer(&self.caller, request);
        Ok(answered(answer.await?))
    }
}

impl Permitted {
    /// Reads the body with `read`.
    pub(super) async fn read_body<T>(
        self,
        read: impl FnOnce(&Bytes) -> T,
    ) -> Result<(Asker, T, Bytes), Response> {
        let budget = self.context.request_of(&self.caller);
        let max = self.route.body_bytes_max;
        let (parts, body) = self.request.into_parts();
        let read_whole = body::read_charged(&parts.headers, body, max, &budget).await;
        let (bytes, charge) = read_whole.map_err(body::BodyError::response)?;
        let (content, charge) = json::charged(charge, || read(&bytes)).map_err(body::no_memory)?;
        let asker = Asker {
            context: self.context,
            caller: self.caller,
            _charge: charge,
        };
        Ok((asker, content, bytes))
    }

    /// Reads a JSON body; `what` names it in the error for other input.
    pub(super) async fn read_json<T>(
        self,
        what: &str,
        read: impl FnOnce(&[u8]) -> Result<T, json::Error>,
    ) -> Result<(Asker, T), Response> {
        let (asker, content, bytes) = self.read_body(|bytes| read(bytes)).await?;
        let content = content.map_err(|error| not_json(what, &bytes, &error))?;
        Ok((asker, content))
    }

    /// The parameters of the URL.
    pub(super) fn query(&self) -> Query {
        Query::from_uri(self.request.uri())
    }
}

/// The answer to a request; an error is an answer too.
pub(super) type Handled = Result<Response, Response>;

type Answer = Pin<Box<dyn Future<Output = Handled> + Send>>;

pub(crate) type Route = routes::Route<fn(Permitted) -> Answer>;

const POST: &[Method] = &[Method::POST];
const JSON: Option<BodyType> = Some(BodyType::Json);
const FORM: Option<BodyType> = Some(BodyType::Form);

static LIST: &[Route] = &[
    Route::change(
        "/api/v1/scheduler",
        POST,
        |permitted| Box::pin(scheduler::handle(permitted)),
        "the scheduler API: a stream of events for SUBSCRIBE, 202 for other calls; JSON and protobuf",
    )
    .realm(Realm::Scheduler)
    .body(SCHEDULER_BODY_MAX, None),
    Route::change(
        "/api/v1",
        POST,
        |permitted| Box::pin(operator::handle(permitted)),
        "the operator API: reads, changes, and the event stream of SUBSCRIBE (`state=false`: without the initial state); JSON and protobuf",
    )
    .body(BODY_MAX, None),
    Route::open(
        "/health",
        |permitted| Box::pin(async move { Ok(health(&permitted.context)) }),
        "200 while the master serves; 503 after the disk of its registry has not answered for 30 seconds",
    )
    .by_followers(),
    Route::open(
        "/version",
        |permitted| Box::pin(v0::read(permitted, &v0::VERSION)),
        "the version of the Mesos interface, and the version (`meseta_version`), commit and date of Meseta",
    )
    .by_followers(),
    Route::read(
        "/flags",
        Need::Permission(Action::ViewFlags, None),
        |permitted| Box::pin(v0::read(permitted, &v0::FLAGS)),
        "the flags and their values",
    )
    .by_followers(),
    Route::read(
        "/state",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::STATE)),
        "the whole state",
    )
    .with_etag(),
    Route::read(
        "/state-summary",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::STATE_SUMMARY)),
        "agents and frameworks with the counts of their tasks; `slaves=false` omits the agents",
    )
    .with_etag(),
    Route::read(
        "/slaves",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::SLAVES)),
        "agents with all their resources; select with `slave_id`, `filter` (words of address, id, state and attributes, such as `rack:r1 draining`), `state` (several with commas), `limit` and `offset`, which add `total`",
    )
    .with_etag(),
    Route::read(
        "/frameworks",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::FRAMEWORKS)),
        "frameworks with tasks, offers, executors; `framework_id`, `tasks=false` omits the tasks",
    )
    .with_etag(),
    Route::read(
        "/tasks",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::TASKS)),
        "tasks by age; `framework_id`, `task_id` (with the reasons of its statuses), `limit` (100; negative for all), `offset`, `order` (`asc`, `desc`)",
    )
    .with_etag(),
    Route::read(
        "/roles",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::ROLES)),
        "roles in use and their parents; `quota.semantics` is `seed` if the guarantee is also the limit",
    )
    .with_etag(),
    Route::change(
        "/quota",
        &[Method::GET, Method::POST, Method::DELETE],
        |permitted| Box::pin(quota::handle(permitted)),
        "GET: the quotas, with `semantics` (`seed` or `head`) unless all are as in Mesos; POST: sets the quota of a role that has none; `DELETE /quota/ROLE` removes it",
    )
    .filters_reads()
    .with_etag()
    .body(BODY_MAX, JSON),
    Route::change(
        "/weights",
        &[Method::GET, Method::PUT],
        |permitted| Box::pin(weights::handle(permitted)),
        "GET: the weights; PUT: sets the weights of the named roles",
    )
    .filters_reads()
    .with_etag()
    .body(BODY_MAX, JSON),
    Route::change(
        "/reserve",
        POST,
        |permitted| Box::pin(reservations::handle(permitted, Change::Reserve)),
        "form `slaveId`, `resources`, and `source` to change an existing reservation",
    )
    .body(BODY_MAX, FORM),
    Route::change(
        "/unreserve",
        POST,
        |permitted| Box::pin(reservations::handle(permitted, Change::Unreserve)),
        "form `slaveId`, `resources`",
    )
    .body(BODY_MAX, FORM),
    Route::change(
        "/create-volumes",
        POST,
        |permitted| Box::pin(reservations::handle(permitted, Change::Create)),
        "form `slaveId`, `volumes`",
    )
    .body(BODY_MAX, FORM),
    Route::change(
        "/destroy-volumes",
        POST,
        |permitted| Box::pin(reservations::handle(permitted, Change::Destroy)),
        "form `slaveId`, `volumes`",
    )
    .body(BODY_MAX, FORM),
    Route::change(
        "/teardown",
        POST,
        |permitted| Box::pin(v0::teardown(permitted)),
        "form `frameworkId`: ends a framework",
    )
    .body(BODY_MAX, FORM),
    Route::change(
        "/maintenance/schedule",
        &[Method::GET, Method::POST],
        |permitted| Box::pin(maintenance::schedule(permitted)),
        "GET: the schedule; POST: replaces the schedule",
    )
    .filters_reads()
    .with_etag()
    .body(BODY_MAX, JSON),
    Route::change(
        "/maintenance/windows",
        POST,
        |permitted| Box::pin(maintenance::windows(permitted)),
        "adds a window to the schedule",
    )
    .body(BODY_MAX, JSON),
    Route::read(
        "/maintenance/status",
        Need::Filtered,
        |permitted| Box::pin(v0::read(permitted, &v0::MAINTENANCE_STATUS)),
        "draining machines, and machines that are down",
    )
    .realm(Realm::Readwrite)
    .with_etag(),
    Route::change(
        "/machine/down",
        POST,
        |permitted| Box::pin(maintenance::machines(permitted, core::Administration::StartMaintenance)),
        "takes scheduled machines down: their agents and tasks end",
    )
    .body(BODY_MAX, JSON),
    Route::change(
        "/machine/up",
        POST,
        |permitted| Box::pin(maintenance::machines(permitted, core::Administration::StopMaintenance)),
        "ends the maintenance of machines",
    )
    .body(BODY_MAX, JSON),
    Route::read(
        "/explain",
        Need::Filtered,
        |permitted| Box::pin(explain::handle(permitted)),
        "why a framework or role gets no offer: `framework_id`, `role`, `slave_id`",
    ),
    Route::read(
        "/hierarchical-allocator(1)/offer_constraints_debug",
        Need::Filtered,
        |permitted| Box::pin(constraints::handle(permitted)),
        "the agents that each framework's offer constraints exclude, by role, and the suppressed roles of each framework",
    ),
    Route::read(
        "/rights",
        Need::Nothing,
        |permitted| Box::pin(async move { Ok(rights::handle(&permitted)) }),
        "the caller's principal, and its permissions by object",
    )
    .alone(),
    Route::endpoint(
        "/metrics",
        |permitted| Box::pin(v0::prometheus(permitted)),
        "metrics for Prometheus: [metrics.md](metrics.md)",
    )
    .by_followers()
    .methods(&[Method::GET, Method::HEAD])
    .alone(),
    Route::endpoint(
        "/metrics/snapshot",
        |permitted| Box::pin(v0::read(permitted, &v0::METRICS_SNAPSHOT)),
        "metrics under the names of Mesos; accepts `timeout`; `frameworks=false` omits the keys of frameworks and principals",
    )
    .by_followers(),
    Route::read(
        "/metrics/history",
        Need::Permission(Action::GetEndpoint, Some("/metrics/snapshot")),
        |permitted| Box::pin(history::handle(permitted)),
        "resources, allocation and usage of the cluster over the last hour, four samples a minute; `since` (seconds since 1970)",
    ),
    Route::endpoint(
        "/logging/toggle",
        |permitted| Box::pin(async move { Ok(logging::toggle(&permitted)) }),
        "GET: the log level; POST: changes the log level for a time (`level`, `duration`)",
    )
    .by_followers()
    .realm(Realm::Readwrite)
    .changed_by("level"),
    Route::open(
        "/redirect",
        |permitted| Box::pin(async move { Ok(leadership::redirect(&permitted.context)) }),
        "307 to the leader",
    )
    .by_followers()
    .alone(),
    Route::open(
        "/leader",
        |permitted| Box::pin(async move { Ok(leadership::leader(&permitted.context).await) }),
        "the state of this master (`following`, `recovering`, `leading`, `suspended`), the leader, the addresses of all masters, and the id of the leader's cluster",
    )
    .by_followers()
    .alone(),
    Route::read(
        "/files/browse",
        Need::Permission(Action::AccessMesosLog, None),
        |permitted| Box::pin(files::handle(permitted, FileRequest::Browse)),
        "`path`: the entries of a directory",
    ),
    Route::read(
        "/files/read",
        Need::Permission(Action::AccessMesosLog, None),
        |permitted| Box::pin(files::handle(permitted, FileRequest::Read)),
        "`path`, `offset`, `length`: a part of a file; without `offset` its size",
    ),
    Route::read(
        "/files/download",
        Need::Permission(Action::AccessMesosLog, None),
        |permitted| Box::pin(files::handle(permitted, FileRequest::Download)),
        "`path`: the whole file",
    ),
    Route::read(
        "/files/debug",
        Need::Permission(Action::AccessMesosLog, None),
        |permitted| Box::pin(files::handle(permitted, FileRequest::Debug)),
        "the names of attached files and their paths",
    ),
    Route::open(
        "/openapi.json",
        |_| Box::pin(async { Ok(openapi::answer()) }),
        "the description of these endpoints for programs",
    ),
];

static LIBPROCESS: Route = Route::open(
    "/mesos.internal",
    |_| {
        Box::pin(async {
            Err(text(
                StatusCode::NOT_IMPLEMENTED,
                "The libprocess protocol is not supported: use the HTTP API at /api/v1/scheduler",
            ))
        })
    },
    "messages of libprocess, which Meseta does not support",
)
.methods(routes::ANY_METHOD);

pub(crate) static ROUTES: routes::Routes<fn(Permitted) -> Answer> = routes::Routes {
    process: "master",
    list: LIST,
    libprocess: &LIBPROCESS,
};
