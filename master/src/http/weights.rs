//! `/weights`: what roles are due in comparison with each other.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use meseta_proto::json;
use meseta_proto::mesos::v1::WeightInfo;
use meseta_proto::transport::door::Caller;

use super::{Endpoint, Site, answered, not_json, text, v0};
use crate::operator;

pub(super) async fn handle(site: &Arc<Site>, caller: &Caller, request: HttpRequest) -> Response {
    if request.method() != Method::PUT {
        return v0::read(site, caller, Endpoint::Weights, v0::Asked::of(&request)).await;
    }
    let read = |bytes: &Bytes| json::many_from_slice::<WeightInfo>(bytes);
    let (infos, bytes, _charge) = match site.json_body(caller, request.into_body(), read).await {
        Ok(read) => read,
        Err(refused) => return refused,
    };
    let infos = match infos {
        Ok(infos) => infos,
        Err(error) => return invalid(&bytes, &error),
    };
    answered(
        site.handle
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
