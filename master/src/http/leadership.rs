//! Responses about leadership: a follower redirects clients to the leader, and a suspended leader marks its answers
//! as possibly outdated.

use std::time::Duration;

use axum::Json;
use axum::extract::Request;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use meseta_etcd::leadership::{Elsewhere, Role, STALE_HEADER};
use serde_json::json;

use super::responses::text;
use crate::context::Context;
use crate::handle::Handle;

/// A header of answers from a master that may not act now: another master's state may be newer. The value is the
/// reason.
const STALE: HeaderName = HeaderName::from_static(STALE_HEADER);

/// The seconds after which a client should retry while nobody leads.
const RETRY_AFTER: &str = "1";

/// How long `/leader` waits for the core to tell the id of the cluster, which it does once.
const CLUSTER_WAIT: Duration = Duration::from_secs(1);

/// The answer while the certificate of the leader named by etcd is unproven.
pub(crate) const UNPROVEN: &str = "The leader in etcd has not proven yet that it is a master";

/// The answer of a master that does not lead; `None` from the leader.
pub(super) fn elsewhere(context: &Context, request: &Request) -> Option<Response> {
    let path = request.uri().path_and_query();
    let path = path.map_or("/", |path| path.as_str());
    Some(match context.handle.standing.elsewhere()? {
        // Without a scheme, so that the client keeps its own.
        Elsewhere::Leader(address) => location(&format!("//{address}{path}")),
        Elsewhere::Unproven => later(UNPROVEN),
        Elsewhere::Nobody => later("No master leads at the moment"),
        Elsewhere::Recovering => later("This master leads and is reading the registry"),
    })
}

fn location(location: &str) -> Response {
    let Ok(location) = HeaderValue::from_str(location) else {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "The hostname contains characters that are invalid in a header",
        );
    };
    let headers = [(header::LOCATION, location)];
    (StatusCode::TEMPORARY_REDIRECT, headers).into_response()
}

fn later(message: &'static str) -> Response {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, message);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER));
    response
}

/// Marks an answer of a master that may not act now.
pub(super) fn marked(handle: &Handle, mut response: Response) -> Response {
    if let Some(reason) = handle.standing.suspended() {
        let reason = HeaderValue::from_str(&reason);
        let reason = reason.unwrap_or_else(|_| HeaderValue::from_static("suspended"));
        response.headers_mut().insert(STALE, reason);
    }
    response
}

/// The base address of the leader, without a scheme, so that the client keeps its own.
pub(super) fn redirect(context: &Context) -> Response {
    match leading(context) {
        Some(address) => location(&format!("//{address}")),
        None => later("No master leads at the moment"),
    }
}

/// The role of this master, the leader, all masters, and the cluster of a leader.
pub(super) async fn leader(context: &Context) -> Response {
    let role = context.handle.standing.now();
    let reason = match &role {
        Role::Suspended { reason } => Some(reason.as_str()),
        Role::Following(Some(_)) if leading(context).is_none() => Some(UNPROVEN),
        Role::Following(_) | Role::Recovering | Role::Leading => None,
    };
    // Whoever looks for the leader does not wait for a core that is busy.
    let cluster = match role {
        Role::Leading => tokio::time::timeout(CLUSTER_WAIT, context.handle.cluster()).await,
        _ => Ok(Ok(None)),
    };
    let cluster = cluster.ok().and_then(Result::ok).flatten();
    Json(json!({
        "role": role.name(),
        "leader": leading(context),
        "masters": *context.masters.borrow(),
        "reason": reason,
        "cluster_id": cluster,
    }))
    .into_response()
}

/// The address of the leader, if this master knows it.
fn leading(context: &Context) -> Option<String> {
    context.handle.standing.leader(&context.identity.address())
}
