//! Which machines are on their way out, and which are.

use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::ClusterStatus;
use meseta_proto::mesos::v1::maintenance::cluster_status::DrainingMachine;

use crate::core::Snapshot;

/// `/maintenance/status`.
pub(crate) fn maintenance_status(snapshot: &Snapshot) -> ClusterStatus {
    let maintenance = &snapshot.maintenance;
    let windows = maintenance.schedule.windows.iter();
    let is_up = |id: &&MachineId| !maintenance.down.contains(*id);
    let machines = windows.flat_map(|window| &window.machine_ids);
    ClusterStatus {
        draining_machines: machines
            .filter(is_up)
            .map(|id| DrainingMachine {
                id: id.clone(),
                statuses: Vec::new(),
            })
            .collect(),
        down_machines: maintenance.down.clone(),
    }
}
