//! `/weights`: the relative shares of roles.

use axum::response::Response;
use bytes::Bytes;
use http::{Method, StatusCode};
use meseta_proto::json;
use meseta_proto::mesos::v1::WeightInfo;

use super::responses::{not_json, text};
use super::routes::{Handled, Permitted};
use super::v0;
use crate::operator;

pub(super) async fn handle(permitted: Permitted) -> Handled {
    if permitted.request.method() != Method::PUT {
        return v0::read(permitted, &v0::WEIGHTS).await;
    }
    let read = |bytes: &Bytes| json::many_from_slice::<WeightInfo>(bytes);
    let (asker, infos, bytes) = permitted.read_body(read).await?;
    let infos = infos.map_err(|error| invalid(&bytes, &error))?;
    asker.administer(operator::weights(infos)).await
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
