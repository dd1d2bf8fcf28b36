//! Which machines are on their way out, which are, and what frameworks say to it.

use std::collections::{BTreeMap, BTreeSet};

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
    let down: BTreeSet<_> = maintenance.down.iter().map(names_of).collect();
    let machines = windows.flat_map(|window| &window.machine_ids);
    let answered = AnsweredAgents::of(snapshot);
    ClusterStatus {
        draining_machines: machines
            .filter(|id| !down.contains(&names_of(id)))
            .map(|id| DrainingMachine {
                id: id.clone(),
                statuses: answered.on(id).flat_map(statuses).collect(),
            })
            .collect(),
        down_machines: maintenance.down.clone(),
    }
}

fn names_of(id: &MachineId) -> (Option<&str>, Option<&str>) {
    (id.hostname.as_deref(), id.ip.as_deref())
}

/// Agents whose frameworks have said something to their maintenance, by what names their machines.
struct AnsweredAgents<'a> {
    by_host: BTreeMap<String, Vec<&'a AgentView>>,
    by_address: BTreeMap<&'a str, Vec<&'a AgentView>>,
}

impl<'a> AnsweredAgents<'a> {
    fn of(snapshot: &'a Snapshot) -> Self {
        let mut all = Self {
            by_host: BTreeMap::new(),
            by_address: BTreeMap::new(),
        };
        for agent in snapshot.agents.iter() {
            if agent.inverse_replies.is_empty() {
                continue;
            }
            let host = agent.profile.info.hostname.to_lowercase();
            all.by_host.entry(host).or_default().push(agent);
            let address = agent.profile.ip();
            all.by_address.entry(address).or_default().push(agent);
        }
        all
    }

    /// Those on a machine: what it is named by must fit.
    fn on(&self, id: &MachineId) -> impl Iterator<Item = &'a AgentView> {
        let host = id.hostname.as_deref().unwrap_or_default();
        let named = match (host, id.ip.as_deref().unwrap_or_default()) {
            ("", address) => self.by_address.get(address),
            (host, _) => self.by_host.get(&host.to_lowercase()),
        };
        let named = named.into_iter().flatten().copied();
        named.filter(|agent| Maintenance::is_machine_of(id, &agent.profile))
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
