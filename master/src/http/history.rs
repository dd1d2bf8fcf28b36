//! `/metrics/history`: the cluster's resources over the last hour. Mesos has no such endpoint.

use axum::Json;
use axum::response::IntoResponse as _;
use http::StatusCode;

use super::responses::text;
use super::routes::{Handled, Permitted};

pub(super) async fn handle(permitted: Permitted) -> Handled {
    let query = permitted.query();
    let since = query.get("since").map_or(Ok(0.0), str::parse::<f64>);
    let since = since.ok().filter(|since| since.is_finite());
    let since = since.ok_or_else(|| {
        let message = "since is not a number of seconds since 1970, for example 1800000000";
        text(StatusCode::BAD_REQUEST, message)
    })?;
    Ok(Json(permitted.context.history.view(since)).into_response())
}
