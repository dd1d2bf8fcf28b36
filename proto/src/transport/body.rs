//! Request bodies: read whole, up to a limit, from clients that keep sending.

use std::time::Duration;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use bytes::{Bytes, BytesMut};
use http::StatusCode;
use http_body_util::BodyExt;

/// For how long a client may send nothing in the middle of a body.
const IDLE_MAX: Duration = Duration::from_secs(30);

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyError {
    #[error("The request body is larger than {max} bytes")]
    TooLarge { max: usize },
    #[error("The request body was not complete after {} seconds of silence", IDLE_MAX.as_secs())]
    Idle,
    #[error("The request body ended early")]
    Truncated,
}

impl BodyError {
    #[must_use]
    pub fn status(self) -> StatusCode {
        match self {
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Idle => StatusCode::REQUEST_TIMEOUT,
            Self::Truncated => StatusCode::BAD_REQUEST,
        }
    }

    #[must_use]
    pub fn response(self) -> Response {
        (self.status(), self.to_string()).into_response()
    }
}

/// Reads a body, chunked or not.
///
/// # Errors
/// When there is too much of it, or not all; what is announced as too much is not waited for.
pub async fn read(mut body: Body, max: usize) -> Result<Bytes, BodyError> {
    let announced = http_body::Body::size_hint(&body).lower();
    if announced > u64::try_from(max).unwrap_or(u64::MAX) {
        return Err(BodyError::TooLarge { max });
    }
    let mut whole = BytesMut::new();
    loop {
        let frame = tokio::time::timeout(IDLE_MAX, body.frame())
            .await
            .map_err(|_| BodyError::Idle)?;
        let Some(frame) = frame else {
            return Ok(whole.freeze());
        };
        let frame = frame.map_err(|_| BodyError::Truncated)?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if whole.len().saturating_add(data.len()) > max {
            return Err(BodyError::TooLarge { max });
        }
        whole.extend_from_slice(&data);
    }
}
