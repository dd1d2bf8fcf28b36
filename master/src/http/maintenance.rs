//! `/maintenance/schedule`, `/maintenance/status`, `/machine/down`, `/machine/up`.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use http::Method;
use meseta_proto::json;
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::Schedule;
use meseta_proto::transport::body;
use meseta_proto::transport::door::Caller;

use super::{BODY_MAX, Endpoint, Site, answered, not_json, v0};
use crate::core::Request;

/// `/maintenance/schedule`: shown, or replaced as a whole.
pub(super) async fn schedule(site: &Arc<Site>, caller: &Caller, request: HttpRequest) -> Response {
    if request.method() != Method::POST {
        return v0::read(site, caller, Endpoint::Schedule, v0::Asked::of(&request)).await;
    }
    let bytes = match body::read(request.into_body(), BODY_MAX).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(),
    };
    let schedule: Schedule = match json::from_slice(&bytes) {
        Ok(schedule) => schedule,
        Err(error) => return not_json("maintenance schedule", &bytes, &error),
    };
    let request = Request::UpdateSchedule(Box::new(schedule));
    answered(site.handle.administer(caller, request).await)
}

/// `/machine/down` and `/machine/up`.
pub(super) async fn machines(
    site: &Site,
    caller: &Caller,
    request: HttpRequest,
    to_request: fn(Vec<MachineId>) -> Request,
) -> Response {
    let bytes = match body::read(request.into_body(), BODY_MAX).await {
        Ok(bytes) => bytes,
        Err(error) => return error.response(),
    };
    let machines: Vec<MachineId> = match json::many_from_slice(&bytes) {
        Ok(machines) => machines,
        Err(error) => return not_json("machine list", &bytes, &error),
    };
    answered(site.handle.administer(caller, to_request(machines)).await)
}
