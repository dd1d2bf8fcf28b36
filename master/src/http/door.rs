//! The door before all routes of the master, HTTP and gRPC: nobody reaches a handler without it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use meseta_access::rate_limits::{Limiter, RateLimits};
use meseta_proto::transport::body;
use meseta_proto::transport::door::{Caller, Realm, share};
use meseta_proto::transport::messages::{messages, messages_in_room};
use meseta_proto::transport::server::Peer;
use tokio::time::Instant;

use super::whole::Kept;
use super::{ENDPOINTS, Endpoint, Site, text};
use crate::permission;

/// Frames of agents that are not counted while they are read: most of what an agent says that has little to tell.
const SMALL_FRAME_BYTES: u32 = 8 * 1024;

/// Puts the door before routes.
pub(crate) fn before(routes: Router, site: Arc<Site>) -> Router {
    routes.layer(from_fn_with_state(site, enter))
}

async fn enter(State(site): State<Arc<Site>>, mut request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let grpc = grpc_realm(path);
    let endpoint = Endpoint::find(path);
    let query = request.uri().query();
    let changes_by_get = endpoint.is_some_and(|endpoint| endpoint.changes_by_get(query));
    let source = match site.door.screen(&request, changes_by_get) {
        Ok(source) => source,
        Err(turned) if grpc.is_some() => return turned.status_of_grpc().into_http(),
        Err(turned) => return turned.response(),
    };
    if is_disabled(&site, path) {
        let message = format!("Endpoint '{path}' is disabled");
        return text(StatusCode::FORBIDDEN, message);
    }
    let realm = grpc.or_else(|| endpoint.map(permission::realm));
    // What is nowhere needs no door.
    let realm = realm.unwrap_or(Realm::Open);
    let peer = request.extensions().get::<Peer>();
    match site.door.enter(realm, request.headers(), peer).await {
        Ok(caller) => {
            if let Some(realm) = grpc {
                request = request.map(|body| counted(&site, &caller, realm, body));
            }
            request.extensions_mut().insert(caller);
            let mut response = next.run(request).await;
            if let Some(kept) = response.extensions_mut().remove::<Kept>() {
                response = response.map(|body| kept.until_sent(body));
            }
            share(source, &mut response);
            response
        }
        Err(turned) if grpc.is_some() => turned.status_of_grpc().into_http(),
        Err(turned) => turned.response(),
    }
}

/// The body of a gRPC call, counted while it is read. Frames of an agent come when there is something to tell.
fn counted(site: &Site, caller: &Caller, realm: Realm, body: Body) -> Body {
    if realm == Realm::Agents {
        let room = site.handle.budgets.frame_room.clone();
        return messages_in_room(body, room, caller.host().into(), SMALL_FRAME_BYTES);
    }
    messages(body::charged(body, site.request_of(caller)), true)
}

/// Firewall rules name an endpoint with the process or without; a path below one is the endpoint's too.
fn is_disabled(site: &Site, path: &str) -> bool {
    let found = Endpoint::find(path);
    let mut endpoints = ENDPOINTS.iter();
    let name = endpoints.find(|(_, endpoint)| Some(*endpoint) == found);
    let name = name.map(|(name, _)| format!("/{name}"));
    site.door.is_disabled(path)
        || name.is_some_and(|name| {
            site.door.is_disabled(&name) || site.door.is_disabled(&format!("/master{name}"))
        })
}

/// The realm of a method's path; `None` if it is none of gRPC.
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

/// Who came in.
pub(crate) fn caller(request: &Request) -> Option<Caller> {
    request.extensions().get::<Caller>().cloned()
}

/// What holds the calls of frameworks to their pace: `--rate_limits`.
#[derive(Debug, Default)]
pub(crate) struct Pace(Option<Limits>);

#[derive(Debug)]
struct Limits {
    limiter: Mutex<Limiter>,
    begin: Instant,
}

impl Pace {
    pub(crate) fn new(limits: Option<&RateLimits>) -> Self {
        Self(limits.map(|limits| Limits {
            limiter: Mutex::new(Limiter::new(limits)),
            begin: Instant::now(),
        }))
    }

    /// Takes one call of a framework, or says how long the next has to wait. A framework is known by the
    /// principal that it has proven or, without authentication, has given.
    pub(crate) async fn take(
        &self,
        site: &Site,
        framework_id: &str,
        caller: &Caller,
    ) -> Result<(), Duration> {
        let Some(limits) = &self.0 else {
            return Ok(());
        };
        let principal = match caller.owned_principal() {
            Some(principal) => Some(principal),
            None => site
                .handle
                .principal_of(framework_id)
                .await
                .unwrap_or_default(),
        };
        let now = limits.begin.elapsed();
        let mut limiter = limits
            .limiter
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        limiter.take(principal.as_deref(), now)
    }
}

/// The answer to a call that came too early.
pub(crate) fn too_fast(wait: Duration) -> Response {
    let seconds = wait.as_secs().saturating_add(1);
    let message = format!("Too many calls of this principal: try again in {wait:?}");
    let mut response = (StatusCode::TOO_MANY_REQUESTS, message).into_response();
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}
