//! Responses from answers of the core, and from plain texts.

use axum::response::{IntoResponse, Response};
use http::StatusCode;
use meseta_daemon::body;
use meseta_daemon::fair_semaphore::QueueFull;
use meseta_proto::json;
use meseta_proto::media::ChargedError;

use crate::closed::Closed;
use crate::core::Answer;

/// The response for an invalid JSON body, with the position of the error.
pub(super) fn not_json(what: &str, body: &[u8], error: &json::Error) -> Response {
    /// The number of characters of a body repeated in the answer.
    const EXCERPT_MAX_CHARS: usize = 1_024;
    let text_of_body = String::from_utf8_lossy(body);
    let excerpt: String = text_of_body.chars().take(EXCERPT_MAX_CHARS).collect();
    let message = match error {
        json::Error::Syntax {
            reason,
            line,
            column,
        } => format!(
            "Failed to parse {what} request JSON '{excerpt}': {reason} (line {line}, column {column})"
        ),
        json::Error::Convert { reason, .. } => {
            format!("Failed to convert {what} request JSON to protobuf '{excerpt}': {reason}")
        }
    };
    text(StatusCode::BAD_REQUEST, message)
}

/// Converts the core's answer to a status and a text.
pub(super) fn answered(answer: Answer) -> Response {
    let (status, message) = match answer {
        Answer::Accepted | Answer::Applied(_) => return StatusCode::ACCEPTED.into_response(),
        Answer::Done => return StatusCode::OK.into_response(),
        Answer::Warned(message) => (StatusCode::OK, message),
        Answer::BadRequest(message) => (StatusCode::BAD_REQUEST, message),
        Answer::Forbidden(message) => (StatusCode::FORBIDDEN, message),
        Answer::NotFound(message) => (StatusCode::NOT_FOUND, message),
        Answer::Conflict(message) => (StatusCode::CONFLICT, message),
        Answer::Unavailable(message) => (StatusCode::SERVICE_UNAVAILABLE, message),
        Answer::NotImplemented(message) => (StatusCode::NOT_IMPLEMENTED, message),
    };
    text(status, message)
}

/// The response for an undecodable call.
pub(super) fn undecodable(error: ChargedError) -> Response {
    match error {
        ChargedError::Exhausted(exhausted) => body::no_memory(exhausted),
        error => text(StatusCode::BAD_REQUEST, error.to_string()),
    }
}

/// The response that asks the client to retry.
pub(super) fn crowded(crowded: QueueFull) -> Response {
    text(StatusCode::SERVICE_UNAVAILABLE, crowded.to_string())
}

pub(super) fn text(status: StatusCode, message: impl Into<String>) -> Response {
    (status, message.into()).into_response()
}

impl From<Closed> for Response {
    fn from(closed: Closed) -> Self {
        text(StatusCode::SERVICE_UNAVAILABLE, closed.to_string())
    }
}
