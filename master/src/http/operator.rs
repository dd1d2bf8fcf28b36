//! `/api/v1`: the operator API in JSON and protobuf.

use std::sync::Arc;

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, header};
use meseta_proto::media::{self, MediaType};
use meseta_proto::mesos::v1::master::Call;

use super::{BODY_MAX, Site, answered, body, text};
use crate::operator::{self, Outcome};

pub(super) async fn handle(site: &Arc<Site>, request: Request) -> Response {
    let (parts, request_body) = request.into_parts();
    let media = match media::content_type(&parts.headers, &MediaType::MESSAGES) {
        Ok(media) => media,
        Err(error) => return text(error.status(), error.to_string()),
    };
    let bytes = match body::read(request_body, BODY_MAX).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(),
    };
    let call = match media::decode::<Call>(media, &bytes) {
        Ok(call) => call,
        Err(error) => return text(StatusCode::BAD_REQUEST, error.to_string()),
    };
    let (kind, call) = match operator::check(call) {
        Ok(checked) => checked,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    let accept = match media::accept(&parts.headers) {
        Ok(accept) => accept,
        Err(error) => return text(error.status(), error.to_string()),
    };
    match operator::execute(site, kind, call).await {
        Ok(Outcome::Done(answer)) => answered(Ok(answer)),
        Ok(Outcome::Response(response)) => {
            let encoded =
                tokio::task::spawn_blocking(move || media::encode(accept, &*response)).await;
            match encoded {
                Ok(body) => ([(header::CONTENT_TYPE, accept.header_value())], body).into_response(),
                Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
            }
        }
        Err(closed) => closed.into(),
    }
}
