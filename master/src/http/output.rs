//! Small JSON answers.

use axum::response::{IntoResponse, Response};
use http::header;
use meseta_daemon::query::Query;

/// A small answer, wrapped in the query's `jsonp` function if there is one.
pub(super) fn value(query: &Query, value: &serde_json::Value) -> Response {
    let (kind, body) = match query.get("jsonp") {
        Some(callback) => ("text/javascript", format!("{callback}({value})")),
        None => ("application/json", value.to_string()),
    };
    ([(header::CONTENT_TYPE, kind)], body).into_response()
}
