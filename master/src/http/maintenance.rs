//! `/maintenance/schedule`, `/maintenance/status`, `/machine/down`, `/machine/up`.

use std::sync::Arc;

use axum::extract::Request as HttpRequest;
use axum::response::Response;
use bytes::Bytes;
use http::Method;
use meseta_daemon::authentication::Caller;
use meseta_proto::json;
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::Schedule;

use super::{Context, Endpoint, answered, not_json, v0};
use crate::core::Request;

/// `/maintenance/schedule`: shown, or replaced as a whole.
pub(super) async fn schedule(
    context: &Arc<Context>,
    caller: &Caller,
    request: HttpRequest,
) -> Response {
    if request.method() != Method::POST {
        return v0::read(
            context,
            caller,
            Endpoint::Schedule,
            v0::ReadRequest::of(&request),
        )
        .await;
    }
    let read = |bytes: &Bytes| json::from_slice::<Schedule>(bytes);
    let (schedule, bytes, _charge) =
        match context.json_body(caller, request.into_body(), read).await {
            Ok(read) => read,
            Err(refused) => return refused,
        };
    let schedule = match schedule {
        Ok(schedule) => schedule,
        Err(error) => return not_json("maintenance schedule", &bytes, &error),
    };
    let request = Request::UpdateSchedule(Box::new(schedule));
    answered(context.handle.administer(caller, request).await)
}

/// Answers requests for `/machine/down` and `/machine/up`.
pub(super) async fn machines(
    context: &Context,
    caller: &Caller,
    request: HttpRequest,
    to_request: fn(Vec<MachineId>) -> Request,
) -> Response {
    let read = |bytes: &Bytes| json::many_from_slice::<MachineId>(bytes);
    let (machines, bytes, _charge) =
        match context.json_body(caller, request.into_body(), read).await {
            Ok(read) => read,
            Err(refused) => return refused,
        };
    let machines = match machines {
        Ok(machines) => machines,
        Err(error) => return not_json("machine list", &bytes, &error),
    };
    answered(
        context
            .handle
            .administer(caller, to_request(machines))
            .await,
    )
}
