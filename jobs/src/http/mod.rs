//! The scheduler's HTTP API: jobs and their changes, events, discovery, metrics.
//!
//! - [`routes`]: the table of routes; [`openapi`]: their description.
//! - [`jobs`]: changes; [`changes`]: their turns; [`bodies`] and [`file_reader`]: their job files; [`names`]: the job that a name means.
//! - [`job_pages`]: jobs for readers; [`read_routes`]: the other read-only routes; [`readers`]: the turns of readers; [`quotas`]:
//!   quotas from the master.
//!
//! Invariant: no handler runs before its request is authenticated. A caller who may run tasks in a role, and as their user,
//! may change the jobs of the role. A caller who may view a role sees its jobs.

mod bodies;
mod changes;
mod file_reader;
mod job_pages;
mod jobs;
mod names;
mod openapi;
mod permission;
mod quotas;
mod read_routes;
mod readers;
mod reply;
mod routes;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use meseta_access::Action;
use meseta_daemon::authentication::{self, Authentication, Caller};
use meseta_daemon::build_info::BuildInfo;
use meseta_daemon::fair_semaphore::Permit;
use meseta_daemon::page::{self, Page};
use meseta_daemon::query::Query;
use meseta_daemon::request;
use meseta_daemon::routes::Need;
use meseta_daemon::server::{CancellationToken, Peer};
use meseta_etcd::leadership::{Elsewhere, STALE_HEADER};
use tokio::sync::watch;

use crate::core::{self, Accepted, Refusal};
use crate::service::Handle;
use crate::store::disk_report::DiskReport;
pub(crate) use bodies::Bodies;
pub(crate) use changes::Changes;
pub(crate) use file_reader::FileReader;
pub(crate) use permission::may_run;
pub(crate) use quotas::MasterQuotas;
pub(crate) use readers::Readers;
pub(crate) use reply::Reply;
use routes::ROUTES;
pub use routes::reference;

/// Marks answers of a scheduler that may not act: they may be older than those of another scheduler.
const STALE: HeaderName = HeaderName::from_static(STALE_HEADER);

/// The common context of the handlers.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) authentication: Authentication,
    pub(crate) handle: Handle,
    pub(crate) bodies: Bodies,
    pub(crate) changes: Changes,
    pub(crate) files: FileReader,
    pub(crate) readers: Readers,
    pub(crate) quotas: MasterQuotas,
    /// The user of tasks whose job names none.
    pub(crate) user: String,
    /// The URL of the master to which the scheduler is or was last subscribed.
    pub(crate) leader: watch::Receiver<Option<String>>,
    /// The host and the port to which other schedulers redirect clients.
    pub(crate) address: String,
    /// The addresses of all schedulers that share the jobs.
    pub(crate) schedulers: watch::Receiver<Vec<String>>,
    pub(crate) build: BuildInfo,
    pub(crate) shutdown: CancellationToken,
    pub(crate) disk_report: DiskReport,
}

impl Context {
    /// Waits until a change of this caller may go to the core. A store that takes none at the moment refuses the change.
    async fn turn(&self, caller: &Caller) -> Result<Permit, Reply> {
        let refused = |problem: &str| {
            let text = format!("this scheduler accepts no changes at the moment: {problem}");
            Reply::later(&text)
        };
        if let Some(problem) = self.disk_report.problem() {
            return Err(refused(&problem));
        }
        tokio::select! {
            biased;
            turn = self.changes.turn(caller) => turn,
            problem = self.disk_report.until_problem() => Err(refused(&problem)),
        }
    }

    /// Asks the core for a change. A change that the store cannot write at the moment is made, and not waited for.
    async fn change(
        &self,
        change: core::Request,
        turn: Permit,
    ) -> Result<Result<Accepted, Refusal>, Reply> {
        tokio::select! {
            biased;
            answer = self.handle.request_in_turn(change, turn) => Ok(answer?),
            problem = self.disk_report.until_problem() => {
                let text = format!("the change takes effect once it is written: {problem}");
                Err(Reply::error(StatusCode::SERVICE_UNAVAILABLE, &text))
            }
        }
    }
}

/// A request that may be served.
struct Permitted {
    context: Arc<Context>,
    caller: Caller,
    query: Query,
    request: Request<Body>,
}

impl Permitted {
    /// Whether the caller may see the objects of a role.
    fn sees(&self, role: &str) -> bool {
        sees(&self.caller, role)
    }

    /// Returns how many of the counted objects the caller may see, given their number by role.
    fn seen_of(&self, counts: &BTreeMap<String, usize>) -> usize {
        let seen = counts.iter().filter(|(role, _)| self.sees(role));
        seen.map(|(_, count)| count).sum()
    }
}

fn sees(caller: &Caller, role: &str) -> bool {
    caller.approver.allows(Action::ViewRole, Some(role))
}

/// Returns the router of all routes, with their common context.
pub(crate) fn router(context: Arc<Context>) -> Router {
    Router::new().fallback(dispatch).with_state(context)
}

async fn dispatch(State(context): State<Arc<Context>>, request: Request<Body>) -> Response<Body> {
    let checked = context
        .authentication
        .check_browser_request(&request, false);
    let source = match checked {
        Ok(source) => source,
        Err(turned) => return turned.response(),
    };
    let mut response = routed(context, request).await;
    authentication::allow_cross_origin(source, &mut response);
    response
}

async fn routed(context: Arc<Context>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let is_long = |path: &http::uri::PathAndQuery| path.as_str().len() > request::URI_BYTES_MAX;
    if request.uri().path_and_query().is_some_and(is_long) {
        return Reply::error(StatusCode::URI_TOO_LONG, &request::uri_too_long()).response();
    }
    if ROUTES.is_disabled(&context.authentication, &path) {
        let text = format!("Endpoint '{path}' is disabled");
        return Reply::error(StatusCode::FORBIDDEN, &text).response();
    }
    let Some(route) = ROUTES.find(&path) else {
        if let Some(file) = page::answer(Page::Scheduler, &request) {
            return file;
        }
        let text = format!("there is no {path} here; /openapi.json says what there is");
        return Reply::error(StatusCode::NOT_FOUND, &text).response();
    };
    let peer = request.extensions().get::<Peer>();
    let authenticated = context
        .authentication
        .authenticate(route.realm, request.headers(), peer)
        .await;
    let caller = match authenticated {
        Ok(caller) => caller,
        Err(turned) => return turned.response(),
    };
    if !route.takes(request.method()) {
        let (allow, text) = request::method_not_allowed(request.method(), route.methods);
        return Reply::error(StatusCode::METHOD_NOT_ALLOWED, &text)
            .allow(allow)
            .response();
    }
    if !route.by_followers
        && let Some(elsewhere) = elsewhere(&context, &request)
    {
        return elsewhere.response();
    }
    if let Need::Permission(action, object) = route.need(request.method())
        && let Err(forbidden) = caller.check(action, object)
    {
        return Reply::from(forbidden).response();
    }
    if let Some(text) = route.wrong_body_type(&request) {
        return Reply::error(StatusCode::UNSUPPORTED_MEDIA_TYPE, &text).response();
    }
    let standing = context.handle.standing.clone();
    let permitted = Permitted {
        query: Query::from_uri(request.uri()),
        context,
        caller,
        request,
    };
    let reply = (route.handler)(permitted).await;
    let mut response = reply.unwrap_or_else(|refusal| refusal).response();
    if let Some(reason) = standing.suspended() {
        let reason = HeaderValue::from_str(&reason);
        let reason = reason.unwrap_or_else(|_| HeaderValue::from_static("suspended"));
        response.headers_mut().insert(STALE, reason);
    }
    response
}

/// Returns the response of a scheduler that does not lead, or `None` if it leads.
fn elsewhere(context: &Context, request: &Request<Body>) -> Option<Reply> {
    let path = request.uri().path_and_query();
    let path = path.map_or("/", |path| path.as_str());
    Some(match context.handle.standing.elsewhere()? {
        // A location without a scheme keeps the client's own scheme.
        Elsewhere::Leader(address) => Reply::elsewhere(format!("//{address}{path}")),
        Elsewhere::Unproven => {
            Reply::later("the leader in etcd has not proven yet that it is a scheduler")
        }
        Elsewhere::Nobody => Reply::later("no scheduler leads at the moment"),
        Elsewhere::Recovering => match context.disk_report.problem() {
            Some(problem) => Reply::later(&problem),
            None => Reply::later("this scheduler leads and is reading its jobs"),
        },
    })
}

#[cfg(test)]
mod tests;
