//! `/weights`: what roles are due in comparison with each other.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use meseta_daemon::authentication::Caller;
use meseta_proto::json;
use meseta_proto::mesos::v1::WeightInfo;

use super::{Context, Endpoint, answered, not_json, text, v0};
use crate::operator;

pub(super) async fn handle(
    context: &Arc<Context>,
    caller: &Caller,
    request: HttpRequest,
) -> Response {
    if request.method() != Method::PUT {
        return v0::read(
            context,
            caller,
            Endpoint::Weights,
            v0::ReadRequest::of(&request),
        )
        .await;
    }
    let read = |bytes: &Bytes| json::many_from_slice::<WeightInfo>(bytes);
    let (infos, bytes, _charge) = match context.json_body(caller, request.into_body(), read).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let infos = match infos {
        Ok(infos) => infos,
        Err(error) => return invalid(&bytes, &error),
    };
    answered(
        context
            .handle
            .administer(caller, operator::weights(infos))
            .await,
    )
}

fn invalid(body: &[u8], error: &json::Error) -> Response {
    let shown = String::from_utf8_lossy(body);
    let message = match error {
        json::Error::Convert { reason, .. } if reason == "Expecting a JSON array" => format!(
            "Failed to parse update weights request JSON '{shown}': Unexpected JSON type parsed"
        ),
        json::Error::Convert { reason, .. } => {
            format!("Failed to convert weights JSON array to protobuf '{shown}': {reason}")
        }
        json::Error::Syntax { .. } => return not_json("update weights", body, error),
    };
    text(StatusCode::BAD_REQUEST, message)
}
