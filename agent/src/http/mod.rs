//! The agent's HTTP server for Mesos clients, operators and Prometheus.
//!
//! One dispatch by path, as in libprocess: a leading `/slave(1)` and surrounding slashes are ignored, and the longest
//! known prefix of an API path answers; [`routes`] has the table. Answers are made from a snapshot of the core and from
//! the last samples; nothing here reads usage from the kernel or delays the core.

mod api;
mod attach_input;
mod container_rights;
mod containers;
mod executor;
mod executor_caller;
mod files;
mod reply;
mod routes;
mod state;
mod statistics;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use http::{Method, Request, Response, StatusCode};
use meseta_daemon::authentication::{self, Caller};
use meseta_daemon::body;
use meseta_daemon::compression;
use meseta_daemon::page::{self, Page};
use meseta_daemon::query::Query;
use meseta_daemon::request;
use meseta_daemon::server::Peer;
use meseta_proto::WireMessage;
use meseta_proto::budget::Charge;
use meseta_proto::media::{self, ChargedError, MediaType};

use crate::context::{Context, memory_owner};
use crate::permission;

pub(crate) use reply::Reply;
pub(crate) use routes::ROUTES;
use routes::{Permitted, Route};

/// Creates the router with its shared context.
pub(crate) fn router(context: Arc<Context>) -> Router {
    let routes = Router::new().fallback(dispatch);
    routes.layer(compression::layer()).with_state(context)
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
    let query = Query::from_uri(request.uri());
    if let Err(rejection) = check_length(request.uri(), &query) {
        return rejection.into_response();
    }
    let path = request.uri().path().to_owned();
    if ROUTES.is_disabled(&context.authentication, &path) {
        let text = format!("Endpoint '{path}' is disabled");
        return Reply::text(StatusCode::FORBIDDEN, &text).into_response();
    }
    let Some(route) = ROUTES.find(&path) else {
        if let Some(file) = page::answer(Page::Agent, &request) {
            return file;
        }
        return Reply::not_found().into_response();
    };
    let peer = request.extensions().get::<Peer>();
    let caller = match context
        .authentication
        .authenticate(route.realm, request.headers(), peer)
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
    let checked = check_method(route, request.method()).and_then(|()| {
        let need = route.need(request.method());
        permission::check(&caller, need).map_err(Reply::from)
    });
    let owner = memory_owner(&caller);
    let reply = match checked {
        Ok(()) => {
            (route.handler)(Permitted {
                context: context.clone(),
                caller,
                query: query.clone(),
                request,
            })
            .await
        }
        Err(rejection) => Err(rejection),
    };
    let reply = reply.unwrap_or_else(|rejection| rejection);
    let charge = |bytes| context.answers.for_peer(owner).charge(bytes);
    reply.into_charged_response(&query, charge)
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
        return Err(Reply::text(StatusCode::BAD_REQUEST, reason.as_str()));
    }
    Ok(())
}

fn check_method(route: &Route, method: &Method) -> Result<(), Reply> {
    if route.takes(method) {
        return Ok(());
    }
    let (allow, reason) = request::method_not_allowed(method, route.methods);
    Err(Reply::text(StatusCode::METHOD_NOT_ALLOWED, &reason).allow(allow))
}

/// Decodes a call, with the charge that it holds until it is done.
async fn read_call<T: WireMessage>(
    context: &Context,
    caller: &Caller,
    content_type: MediaType,
    request: Request<Body>,
) -> Result<(T, Charge), Reply> {
    let budget = context.body_of(caller);
    let max = context.budgets.call_bytes_max();
    let (parts, body) = request.into_parts();
    let read = body::read_charged(&parts.headers, body, max, &budget).await;
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
mod tests;
