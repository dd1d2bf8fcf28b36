//! An answer in the making: JSON, but for metrics and streams.

use axum::body::Body;
use http::header::{ALLOW, CONTENT_TYPE};
use http::{HeaderValue, Response, StatusCode};
use meseta_access::Forbidden;
use serde::Serialize;

use crate::core::Refusal;
use crate::service::Ending;

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
pub(crate) struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Body,
    allow: Option<String>,
}

/// The answer to what was refused as a whole.
#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
}

impl Reply {
    pub(super) fn json(value: &impl Serialize) -> Self {
        Self::json_with(StatusCode::OK, value)
    }

    pub(super) fn json_with(status: StatusCode, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new(status, JSON, body.into()),
            Err(error) => Self::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        }
    }

    pub(super) fn error(status: StatusCode, message: &str) -> Self {
        let body = serde_json::to_vec(&Error { message }).unwrap_or_default();
        Self::new(status, JSON, body.into())
    }

    pub(super) fn no_job(name: &str) -> Self {
        Self::error(
            StatusCode::NOT_FOUND,
            &Refusal::NotFound(name.to_owned()).to_string(),
        )
    }

    pub(super) fn prometheus(text: Vec<u8>) -> Self {
        Self::new(StatusCode::OK, PROMETHEUS, text.into())
    }

    /// One JSON object a line, for as long as both sides stay.
    pub(super) fn lines(body: Body) -> Self {
        Self::new(StatusCode::OK, LINES, body)
    }

    fn new(status: StatusCode, content_type: &'static str, body: Body) -> Self {
        Self {
            status,
            content_type,
            body,
            allow: None,
        }
    }

    pub(super) fn allow(self, methods: String) -> Self {
        Self {
            allow: Some(methods),
            ..self
        }
    }

    pub(super) fn response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(allow) = self.allow.and_then(|allow| allow.parse().ok()) {
            headers.insert(ALLOW, allow);
        }
        response
    }
}

impl From<Forbidden> for Reply {
    fn from(forbidden: Forbidden) -> Self {
        Self::error(StatusCode::FORBIDDEN, &forbidden.to_string())
    }
}

impl From<Ending> for Reply {
    fn from(ending: Ending) -> Self {
        Self::error(StatusCode::SERVICE_UNAVAILABLE, &ending.to_string())
    }
}

impl From<Refusal> for Reply {
    fn from(refusal: Refusal) -> Self {
        let status = match &refusal {
            Refusal::NotFound(_) => StatusCode::NOT_FOUND,
            Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
            Refusal::Conflict(_) => StatusCode::CONFLICT,
        };
        Self::error(status, &refusal.to_string())
    }
}
