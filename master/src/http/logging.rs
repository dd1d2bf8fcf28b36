//! `/logging/toggle`: raises the log level temporarily.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, Method, StatusCode, header};
use meseta_daemon::authentication::Caller;
use meseta_resources::parse_duration;

use super::responses::text;
use super::routes::Permitted;
use crate::context::Context;

impl Context {
    /// Raises the log level temporarily, and logs the requesting principal.
    pub(crate) fn raise_logging(&self, caller: &Caller, level: u32, duration: Duration) {
        self.verbosity.raise(level, duration);
        caller.audit("SET_LOGGING_LEVEL", &level.to_string(), "done");
    }
}

pub(super) fn toggle(permitted: &Permitted) -> Response {
    let context = &permitted.context;
    let query = permitted.query();
    let (level, duration) = match (query.get("level"), query.get("duration")) {
        (None, None) => return text(StatusCode::OK, format!("{}\n", context.verbosity.level())),
        (Some(level), Some(duration)) => (level, duration),
        (None, Some(_)) => {
            return text(
                StatusCode::BAD_REQUEST,
                "Expecting 'level=value' in query.\n",
            );
        }
        (Some(_), None) => {
            return text(
                StatusCode::BAD_REQUEST,
                "Expecting 'duration=value' in query.\n",
            );
        }
    };
    let invalid = |what: &str, text: &str, why: String| {
        format!("Invalid {what} '{}': {why}.\n", text.escape_debug())
    };
    let parsed = level
        .parse::<u32>()
        .map_err(|error| invalid("level", level, error.to_string()))
        .and_then(|number| {
            let time = parse_duration(duration)
                .map_err(|error| invalid("duration", duration, error.to_string()))?;
            Ok((number, time))
        });
    match parsed {
        // A task's check is a GET as well, and so is a picture on a page.
        Ok(_) if *permitted.request.method() != Method::POST => {
            let reason = "Expecting 'POST' to change the level, as with curl -X POST.\n";
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, reason);
            let allow = HeaderValue::from_static("POST");
            response.headers_mut().insert(header::ALLOW, allow);
            response
        }
        Ok((level, duration)) => {
            context.raise_logging(&permitted.caller, level, duration);
            StatusCode::OK.into_response()
        }
        Err(message) => text(StatusCode::BAD_REQUEST, message),
    }
}
