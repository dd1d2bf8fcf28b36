//! Which machines are on their way out, which are, and what frameworks say to it.

use std::sync::Arc;

use meseta_access::Action;
use meseta_proto::mesos::v1::allocator::InverseOfferStatus;
use meseta_proto::mesos::v1::allocator::inverse_offer_status::Status;
use meseta_proto::mesos::v1::maintenance::cluster_status::DrainingMachine;
use meseta_proto::mesos::v1::maintenance::{ClusterStatus, Schedule};
use meseta_proto::mesos::v1::{FrameworkId, MachineId, TimeInfo};

use crate::core::{AgentView, Maintenance, Snapshot};

/// Answers requests for `/maintenance/schedule`.
pub(crate) fn maintenance_schedule(snapshot: &Snapshot) -> Schedule {
    if !snapshot.viewer.allows(Action::GetMaintenanceSchedule, None) {
        return Schedule::default();
    }
    snapshot.maintenance.schedule.clone()
}

/// Answers requests for `/maintenance/status`.
pub(crate) fn maintenance_status(snapshot: &Snapshot) -> ClusterStatus {
    if !snapshot.viewer.allows(Action::GetMaintenanceStatus, None) {
        return ClusterStatus::default();
    }
    let maintenance = &snapshot.maintenance;
    let windows = maintenance.schedule.windows.iter();
    let is_up = |id: &&MachineId| !maintenance.down.contains(*id);
    let machines = windows.flat_map(|window| &window.machine_ids);
    let answered: Vec<&Arc<AgentView>> = snapshot
        .agents
        .iter()
        .filter(|agent| !agent.inverse_replies.is_empty())
        .collect();
    ClusterStatus {
        draining_machines: machines
            .filter(is_up)
            .map(|id| DrainingMachine {
                id: id.clone(),
                statuses: answered
                    .iter()
                    .filter(|agent| Maintenance::is_machine_of(id, &agent.profile))
                    .flat_map(|agent| statuses(agent))
                    .collect(),
            })
            .collect(),
        down_machines: maintenance.down.clone(),
    }
}

fn statuses(agent: &AgentView) -> impl Iterator<Item = InverseOfferStatus> {
    agent.inverse_replies.iter().map(|(framework, reply)| {
        let status = if reply.accepted {
            Status::Accept
        } else {
            Status::Decline
        };
        InverseOfferStatus {
            status: status.into(),
            framework_id: FrameworkId {
                value: framework.to_string(),
            },
            timestamp: TimeInfo {
                nanoseconds: i64::try_from(reply.at.as_nanos()).unwrap_or(i64::MAX),
            },
        }
    })
}
