//! The master's HTTP server: the mapping of paths to endpoints, and the common parts of all endpoints.
//!
//! Entered through [`router`]. Paths are found by longest prefix, as in Mesos: with or without a leading `/master`
//! and a trailing `/`; [`routes`] has the table. Invariant: a handler reads from snapshots or sends requests to the
//! core; it holds no state of its own.

pub(crate) mod authentication;
mod constraints;
mod explain;
mod files;
mod history;
mod leadership;
mod logging;
mod maintenance;
mod openapi;
mod operator;
mod output;
mod quota;
mod reservations;
mod responses;
mod rights;
mod routes;
mod scheduler;
mod v0;
mod weights;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use http::{HeaderValue, Method, StatusCode, header};
use meseta_daemon::compression;
use meseta_daemon::page::{self, Page};
use meseta_daemon::request;
use tower::ServiceExt as _;

use crate::context::Context;
use crate::permission;
use responses::text;
use routes::{Permitted, ROUTES};

pub(crate) use leadership::UNPROVEN;
pub(crate) use scheduler::leave;

/// The router of everything except gRPC.
pub(crate) fn router(context: Arc<Context>) -> Router {
    let routes = Router::new()
        .fallback(handle)
        .layer(compression::layer())
        .with_state(context.clone());
    authentication::authenticated(routes, context)
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
        return file_of_page(&context, request).await;
    };
    if !route.takes(request.method()) {
        return method_not_allowed(request.method(), route.methods);
    }
    if !route.by_followers
        && let Some(response) = leadership::elsewhere(&context, &request)
    {
        return response;
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
    // A later layer removes the body of an answer to HEAD.
    let handle = context.handle.clone();
    let response = (route.handler)(Permitted {
        context,
        caller,
        route,
        request,
    });
    let response = response.await.unwrap_or_else(std::convert::identity);
    leadership::marked(&handle, response)
}

/// A file of the web page, Meseta's own or that of `--webui_dir`, if it exists.
async fn file_of_page(context: &Context, request: Request) -> Response {
    let Some(webui) = context.webui.clone() else {
        let file = page::answer(Page::Master, &request);
        return file.unwrap_or_else(|| text(StatusCode::NOT_FOUND, "404 Not Found."));
    };
    match webui.oneshot(request).await {
        Ok(response) if response.status() == StatusCode::NOT_FOUND => {
            text(StatusCode::NOT_FOUND, "404 Not Found.")
        }
        Ok(response) => response.map(Body::new),
        Err(never) => match never {},
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

#[cfg(test)]
mod tests;
