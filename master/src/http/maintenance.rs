//! `/maintenance/schedule`, `/maintenance/windows`, `/maintenance/status`, `/machine/down`, `/machine/up`.

use http::Method;
use meseta_proto::json;
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};

use super::routes::{Handled, Permitted};
use super::v0;
use crate::core::Administration;

/// `/maintenance/schedule`: shows the schedule, or replaces it as a whole.
pub(super) async fn schedule(permitted: Permitted) -> Handled {
    if permitted.request.method() != Method::POST {
        return v0::read(permitted, &v0::MAINTENANCE_SCHEDULE).await;
    }
    let read = json::from_slice::<Schedule>;
    let (asker, schedule) = permitted.read_json("maintenance schedule", read).await?;
    let request = Administration::UpdateSchedule(Box::new(schedule));
    asker.administer(request).await
}

/// `/maintenance/windows`: adds a window to the schedule.
pub(super) async fn windows(permitted: Permitted) -> Handled {
    let read = json::from_slice::<Window>;
    let (asker, window) = permitted.read_json("maintenance window", read).await?;
    asker
        .administer(Administration::AddWindow(Box::new(window)))
        .await
}

/// Answers requests for `/machine/down` and `/machine/up`.
pub(super) async fn machines(
    permitted: Permitted,
    to_request: fn(Vec<MachineId>) -> Administration,
) -> Handled {
    let read = json::many_from_slice::<MachineId>;
    let (asker, machines) = permitted.read_json("machine list", read).await?;
    asker.administer(to_request(machines)).await
}
