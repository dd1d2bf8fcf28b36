//! `/quota`: what roles are guaranteed and limited to.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use meseta_daemon::authentication::Caller;
use meseta_proto::json;
use meseta_proto::mesos::v1::quota::QuotaRequest;

use super::output::decode;
use super::{Context, Endpoint, answered, not_json, text, v0};
use crate::core::{Answer, Request};

pub(super) async fn handle(
    context: &Arc<Context>,
    caller: &Caller,
    request: HttpRequest,
) -> Response {
    match *request.method() {
        Method::POST => set(context, caller, request).await,
        Method::DELETE => remove(context, caller, request.uri().path()).await,
        _ => {
            v0::read(
                context,
                caller,
                Endpoint::Quota,
                v0::ReadRequest::of(&request),
            )
            .await
        }
    }
}

async fn set(context: &Context, caller: &Caller, request: HttpRequest) -> Response {
    let read = |bytes: &Bytes| json::from_slice::<QuotaRequest>(bytes);
    let (request, bytes, _charge) = match context.json_body(caller, request.into_body(), read).await
    {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let request = match request {
        Ok(request) => request,
        Err(error) => return not_json("set quota", &bytes, &error),
    };
    answered(
        context
            .handle
            .administer(caller, Request::SetQuota(Box::new(request)))
            .await,
    )
}

/// The role is everything behind `/quota/`: its name may have slashes.
async fn remove(context: &Context, caller: &Caller, path: &str) -> Response {
    // As Mesos names it, whichever way it was asked for.
    let inner = path.trim_start_matches('/');
    let inner = inner.strip_prefix("master/").unwrap_or(inner);
    let endpoint_path = format!("/master/{inner}");
    let role = inner
        .strip_prefix("quota/")
        .map(|role| role.trim_matches('/'));
    let Some(role) = role.filter(|role| !role.is_empty()) else {
        let message = format!(
            "Failed to parse remove quota request for path '{endpoint_path}': expected 3 tokens, found 2 \
             tokens"
        );
        return text(StatusCode::BAD_REQUEST, message);
    };
    let role = decode(role);
    let answer = context
        .handle
        .administer(caller, Request::RemoveQuota { role })
        .await;
    answered(answer.map(|answer| match answer {
        Answer::BadRequest(reason) => Answer::BadRequest(format!(
            "Failed to remove quota for path '{endpoint_path}': {reason}"
        )),
        other => other,
    }))
}
