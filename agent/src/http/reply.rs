//! An answer under construction: status, type, body.

use axum::body::Body;
use bytes::Bytes;
use http::header::{ALLOW, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, WWW_AUTHENTICATE};
use http::{HeaderValue, Response, StatusCode};
use meseta_access::Forbidden;
use meseta_proto::budget::{Charge, Exhausted};
use meseta_proto::media::MESSAGE_CONTENT_TYPE;
use serde::{Serialize, Serializer};

use crate::context::Unavailable;
use meseta_daemon::compression::Compressible;
use meseta_daemon::query::Query;

/// Smaller answers are not counted: each connection has at most one at a time.
const COUNTED_ANSWER_BYTES: usize = 16 * 1024;

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const JAVASCRIPT: &str = "text/javascript";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug)]
pub(crate) struct Reply {
    status: StatusCode,
    content_type: Option<&'static str>,
    body: Content,
    allow: Option<String>,
    challenge: Option<&'static str>,
}

#[derive(Debug)]
enum Content {
    Bytes(Bytes),
    File {
        name: String,
        length: u64,
        body: Body,
    },
    Stream {
        body: Body,
        /// The type of its records, if they are framed.
        records: Option<&'static str>,
    },
}

impl From<Unavailable> for Reply {
    fn from(unavailable: Unavailable) -> Self {
        Self::text(StatusCode::SERVICE_UNAVAILABLE, &unavailable.to_string())
    }
}

/// The answer to an unauthorized request.
impl From<Forbidden> for Reply {
    fn from(forbidden: Forbidden) -> Self {
        Self::text(StatusCode::FORBIDDEN, &forbidden.to_string())
    }
}

impl Reply {
    fn new(status: StatusCode, content_type: Option<&'static str>, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type,
            body: Content::Bytes(body.into()),
            allow: None,
            challenge: None,
        }
    }

    /// An answer with only a status.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self::new(status, None, Bytes::new())
    }

    /// A text for people.
    pub(crate) fn text(status: StatusCode, text: &str) -> Self {
        Self::new(status, Some(TEXT), text.to_owned())
    }

    /// The answer of libprocess for an unknown path.
    pub(crate) fn not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 Not Found.")
    }

    /// A value as JSON, or as JSONP if the query requests that.
    pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Self {
        match serde_json::to_vec(value) {
            Ok(body) => Self::new(StatusCode::OK, Some(JSON), body),
            Err(error) => {
                // No view has keys that are not strings.
                tracing::error!(%error, "a view cannot be written as JSON");
                Self::empty(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// Bytes of a given type.
    pub(crate) fn bytes(content_type: &'static str, body: Vec<u8>) -> Self {
        Self::new(StatusCode::OK, Some(content_type), body)
    }

    pub(crate) fn prometheus(text: String) -> Self {
        Self::new(StatusCode::OK, Some(PROMETHEUS), text)
    }

    /// A file to be saved.
    pub(crate) fn file(name: String, length: u64, body: Body) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: Some("application/octet-stream"),
            body: Content::File { name, length, body },
            allow: None,
            challenge: None,
        }
    }

    /// A body that continues until one side ends it; framed as records of a type, if there is one.
    pub(crate) fn stream(
        content_type: &'static str,
        records: Option<&'static str>,
        body: Body,
    ) -> Self {
        Self {
            status: StatusCode::OK,
            content_type: Some(content_type),
            body: Content::Stream { body, records },
            allow: None,
            challenge: None,
        }
    }

    /// Adds the allowed methods.
    pub(crate) fn allow(mut self, methods: String) -> Self {
        self.allow = Some(methods);
        self
    }

    /// The memory of the body until it is sent.
    fn counted_bytes(&self) -> usize {
        match &self.body {
            Content::Bytes(bytes) => bytes.len(),
            Content::File { .. } | Content::Stream { .. } => 0,
        }
    }

    /// Attaches the charge to the body; without room it becomes an error.
    fn charged(mut self, charge: Result<Charge, Exhausted>) -> Self {
        match (charge, self.body) {
            (Ok(charge), Content::Bytes(bytes)) => {
                self.body = Content::Bytes(charge.attach(bytes));
                self
            }
            (Ok(_), body) => {
                self.body = body;
                self
            }
            (Err(error), _) => {
                let text = format!("Not enough memory for this answer now: {error}");
                Self::text(StatusCode::SERVICE_UNAVAILABLE, &text)
            }
        }
    }

    /// Whether the agent cannot answer yet.
    pub(crate) fn is_unavailable(&self) -> bool {
        self.status == StatusCode::SERVICE_UNAVAILABLE
    }

    /// Adds a challenge to authenticate.
    pub(crate) fn challenge(mut self, challenge: &'static str) -> Self {
        self.challenge = Some(challenge);
        self
    }

    /// The answer to a query: as JSONP if requested, and charged for its memory until it is sent.
    pub(crate) fn into_charged_response(
        self,
        query: &Query,
        charge: impl FnOnce(usize) -> Result<Charge, Exhausted>,
    ) -> Response<Body> {
        let reply = self.in_callback(query);
        match reply.counted_bytes() {
            bytes if bytes > COUNTED_ANSWER_BYTES => reply.charged(charge(bytes)).into_response(),
            _ => reply.into_response(),
        }
    }

    fn in_callback(mut self, query: &Query) -> Self {
        if let (Some(JSON), Content::Bytes(body), Some(callback)) =
            (self.content_type, &self.body, query.get("jsonp"))
        {
            let wrapped = [callback.as_bytes(), b"(", body, b")"].concat();
            self.body = Content::Bytes(wrapped.into());
            self.content_type = Some(JAVASCRIPT);
        }
        self
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = match self.body {
            Content::Bytes(bytes) => {
                let length = bytes.len();
                let mut response = Response::new(Body::from(bytes));
                response
                    .headers_mut()
                    .insert(CONTENT_LENGTH, HeaderValue::from(length));
                response.extensions_mut().insert(Compressible);
                response
            }
            Content::Stream { body, records } => {
                let mut response = Response::new(body);
                if let Some(records) = records {
                    let value = HeaderValue::from_static(records);
                    response.headers_mut().insert(MESSAGE_CONTENT_TYPE, value);
                }
                response
            }
            Content::File { name, length, body } => {
                let mut response = Response::new(body);
                let headers = response.headers_mut();
                headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
                let disposition = format!("attachment; filename={}", quoted(&name));
                if let Ok(value) = HeaderValue::from_str(&disposition) {
                    headers.insert(CONTENT_DISPOSITION, value);
                }
                response
            }
        };
        *response.status_mut() = self.status;
        if let Some(content_type) = self.content_type {
            let value = HeaderValue::from_static(content_type);
            response.headers_mut().insert(CONTENT_TYPE, value);
        }
        let allow = self.allow.map(HeaderValue::try_from);
        if let Some(Ok(value)) = allow {
            response.headers_mut().insert(ALLOW, value);
        }
        if let Some(challenge) = self.challenge {
            let value = HeaderValue::from_static(challenge);
            response.headers_mut().insert(WWW_AUTHENTICATE, value);
        }
        response
    }
}

/// A file name in the form for a header: plain names unchanged, others quoted without invalid characters.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    if !name.is_empty() && name.chars().all(plain) {
        return name.to_owned();
    }
    let safe = |c: char| {
        if c == '"' || c == '\\' || !(' '..='~').contains(&c) {
            '_'
        } else {
            c
        }
    };
    format!("\"{}\"", name.chars().map(safe).collect::<String>())
}

/// A list whose entries are made while it is written.
pub(super) struct List<I>(pub(super) I);

impl<I> Serialize for List<I>
where
    I: Iterator<Item: Serialize> + Clone,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::budget::Budget;

    use super::*;

    /// Regression: the callback wrapped a copy that was not charged.
    #[test]
    fn callback_answer_counts_until_sent() {
        const BYTES: usize = 2 * COUNTED_ANSWER_BYTES;
        for uri in ["/state", "/state?jsonp=call"] {
            let budget = Budget::new(3 * COUNTED_ANSWER_BYTES);
            let query = Query::from_uri(&uri.parse().expect("a URI"));
            let answer = || {
                let reply = Reply::json(&"x".repeat(BYTES));
                reply.into_charged_response(&query, |bytes| budget.charge(bytes))
            };
            let first = answer();
            assert_eq!(first.status(), StatusCode::OK, "{uri}");
            assert_eq!(answer().status(), StatusCode::SERVICE_UNAVAILABLE, "{uri}");
            drop(first);
            assert_eq!(answer().status(), StatusCode::OK, "{uri}");
        }
    }
}
