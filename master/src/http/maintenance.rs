//! `/maintenance/schedule`, `/maintenance/status`, `/machine/down`, `/machine/up`.

use axum::response::Response;
use http::Method;
use meseta_proto::json;
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::Schedule;

use super::routes::Permitted;
use super::v0;
use crate::core::Administration;

/// `/maintenance/schedule`: shown, or replaced as a whole.
pub(super) async fn schedule(permitted: Permitted) -> Response {
    if permitted.request.method() != Method::POST {
        return v0::read(permitted, &v0::MAINTENANCE_SCHEDULE).await;
    }
    let read = json::from_slice::<Schedule>;
    match permitted.read_json("maintenance schedule", read).await {
        Ok((asker, schedule)) => {
            let request = Administration::UpdateSchedule(Box::new(schedule));
            asker.administer(request).await
        }
        Err(refused) => refused,
    }
}

/// Answers requests for `/machine/down` and `/machine/up`.
pub(super) async fn machines(
    permitted: Permitted,
    to_request: fn(Vec<MachineId>) -> Administration,
) -> Response {
    let read = json::many_from_slice::<MachineId>;
    match permitted.read_json("machine list", read).await {
        Ok((asker, machines)) => asker.administer(to_request(machines)).await,
        Err(refused) => refused,
    }
}
