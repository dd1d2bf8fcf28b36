//! A response under construction: JSON, except for metrics and streams.

use axum::body::Body;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use meseta_access::Forbidden;
use serde::Serialize;

use crate::core::Refusal;
use crate::service::Unavailable;

const JSON: &str = "application/json";
const LINES: &str = "application/x-ndjson";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
pub(crate) struct Reply {
    status: StatusCode,
    content_type: &'static str,
    body: Body,
    header: Option<(HeaderName, String)>,
}

/// The answer to a request that was refused as a whole.
#[derive(Serialize)]
struct Error<'a> {
    message: &'a str,
}

impl Reply {
    pub(super) fn json(value: &impl Serialize) -> Self {
        Self::json_with(StatusCode::OK, value)
    }

    /// Builds a reply from JSON that is already encoded.
    pub(super) fn json_body(body: Body) -> Self {
        Self::new(StatusCode::OK, JSON, body)
    }

    pub(super) fn json_with(status: StatusCode, value: &impl Serialize) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new(status, JSON, body.into()),
            Err(error) => Self::defect(error),
        }
    }

    /// Answers that the value could not be serialized.
    #[expect(clippy::needless_pass_by_value, reason = "it is given to map_err")]
    pub(super) fn defect(error: serde_json::Error) -> Self {
        Self::error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string())
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

    /// Returns a stream with one JSON object per line, for as long as both sides stay.
    pub(super) fn lines(body: Body) -> Self {
        Self::new(StatusCode::OK, LINES, body)
    }

    fn new(status: StatusCode, content_type: &'static str, body: Body) -> Self {
        Self {
            status,
            content_type,
            body,
            header: None,
        }
    }

    /// Redirects the request to the leading scheduler.
    pub(super) fn elsewhere(location: String) -> Self {
        let text = "another scheduler leads";
        Self::error(StatusCode::TEMPORARY_REDIRECT, text).header(LOCATION, location)
    }

    /// Returns an answer that asks the client to retry in a second.
    pub(super) fn later(message: &str) -> Self {
        let soon = "1".to_owned();
        Self::error(StatusCode::SERVICE_UNAVAILABLE, message).header(RETRY_AFTER, soon)
    }

    pub(super) fn status(&self) -> StatusCode {
        self.status
    }

    pub(super) fn allow(self, methods: String) -> Self {
        self.header(ALLOW, methods)
    }

    fn header(self, name: HeaderName, value: String) -> Self {
        let header = Some((name, value));
        Self { header, ..self }
    }

    pub(super) fn response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some((name, value)) = self.header
            && let Ok(value) = value.parse()
        {
            headers.insert(name, value);
        }
        response
    }
}

impl From<Forbidden> for Reply {
    fn from(forbidden: Forbidden) -> Self {
        Self::error(StatusCode::FORBIDDEN, &forbidden.to_string())
    }
}

impl From<Unavailable> for Reply {
    fn from(unavailable: Unavailable) -> Self {
        let text = unavailable.to_string();
        match unavailable {
            Unavailable::Busy => Self::later(&text),
            Unavailable::Ending | Unavailable::Suspended(_) | Unavailable::Unknown => {
                Self::error(StatusCode::SERVICE_UNAVAILABLE, &text)
            }
        }
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
