//! Machines in maintenance: draining machines, machines that are down, and the answers of frameworks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_access::Action;
use meseta_proto::mesos::v1::allocator::InverseOfferStatus;
use meseta_proto::mesos::v1::allocator::inverse_offer_status::Status;
use meseta_proto::mesos::v1::maintenance::cluster_status::DrainingMachine;
use meseta_proto::mesos::v1::maintenance::{ClusterStatus, Schedule};
use meseta_proto::mesos::v1::{FrameworkId, MachineId, TimeInfo};

use super::{between_lists, write};
use crate::chunked_response::{Document, Row, list, text};
use crate::core::{AgentView, Maintenance, Snapshot};

/// The approximate size of a machine in a list, in bytes; below, that of a framework's answer.
const MACHINE_BYTES: usize = 80;
const STATUS_BYTES: usize = 150;

/// An object of lists, without empty lists.
fn of_lists(lists: impl IntoIterator<Item = (&'static str, Row)>) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, list) in lists.into_iter().filter(|(_, list)| list.len() > 0) {
        rows.push(if rows.is_empty() {
            text(format!("{{\"{name}\":["))
        } else {
            between_lists(name)
        });
        rows.push(list);
    }
    rows.push(text(if rows.is_empty() { "{}" } else { "]}" }));
    rows
}

/// Answers requests for `/maintenance/schedule`.
pub(crate) fn schedule_list(snapshot: &Snapshot) -> Document {
    let windows = maintenance_schedule(snapshot).windows;
    let machines: usize = windows.iter().map(|window| window.machine_ids.len()).sum();
    let each = MACHINE_BYTES * (1 + machines / windows.len().max(1));
    let windows = list(windows.len(), each, move |index, out| {
        write(out, &windows.get(index));
    });
    Document::from_first(of_lists([("windows", windows)]))
}

/// Answers requests for `/maintenance/status`. Converts the answers of frameworks while writing: they are large with
/// many frameworks on many machines.
pub(crate) fn status_list(snapshot: &Arc<Snapshot>) -> Document {
    let snapshot = snapshot.clone();
    let rest = move || {
        let (draining, down) = machines(&snapshot);
        let answers = draining.iter().flat_map(|machine| &machine.agents);
        let answers: usize = answers.map(|agent| agent.inverse_replies.len()).sum();
        let each = MACHINE_BYTES + STATUS_BYTES * answers / draining.len().max(1);
        let draining = list(draining.len(), each, move |index, out| {
            write(out, &draining.get(index).map(Draining::view));
        });
        let down = list(down.len(), MACHINE_BYTES, move |index, out| {
            write(out, &down.get(index));
        });
        of_lists([("draining_machines", draining), ("down_machines", down)])
    };
    Document {
        first: Vec::new(),
        rest: Some(Box::new(rest)),
    }
}

/// The answer to the call GET_MAINTENANCE_SCHEDULE.
pub(crate) fn maintenance_schedule(snapshot: &Snapshot) -> Schedule {
    if !snapshot.viewer.allows(Action::GetMaintenanceSchedule, None) {
        return Schedule::default();
    }
    snapshot.maintenance.schedule.clone()
}

/// The answer to the call GET_MAINTENANCE_STATUS.
pub(crate) fn maintenance_status(snapshot: &Snapshot) -> ClusterStatus {
    let (draining, down_machines) = machines(snapshot);
    ClusterStatus {
        draining_machines: draining.iter().map(Draining::view).collect(),
        down_machines,
    }
}

/// A draining machine, and its agents with answers from frameworks.
struct Draining {
    id: MachineId,
    agents: Vec<Arc<AgentView>>,
}

impl Draining {
    fn view(&self) -> DrainingMachine {
        let agents = self.agents.iter();
        DrainingMachine {
            id: self.id.clone(),
            statuses: agents.flat_map(|agent| statuses(agent)).collect(),
        }
    }
}

/// The visible machines: draining ones, and those that are down.
fn machines(snapshot: &Snapshot) -> (Vec<Draining>, Vec<MachineId>) {
    if !snapshot.viewer.allows(Action::GetMaintenanceStatus, None) {
        return Default::default();
    }
    let maintenance = &snapshot.maintenance;
    let windows = maintenance.schedule.windows.iter();
    let down: BTreeSet<_> = maintenance.down.iter().map(names_of).collect();
    let machines = windows.flat_map(|window| &window.machine_ids);
    let answered = AnsweredAgents::from_snapshot(snapshot);
    let draining = machines.filter(|id| !down.contains(&names_of(id)));
    let draining = draining.map(|id| Draining {
        id: id.clone(),
        agents: answered.on(id).cloned().collect(),
    });
    (draining.collect(), maintenance.down.clone())
}

fn names_of(id: &MachineId) -> (Option<&str>, Option<&str>) {
    (id.hostname.as_deref(), id.ip.as_deref())
}

/// Agents with answers from frameworks about their maintenance, by the names of their machines.
struct AnsweredAgents<'a> {
    by_host: BTreeMap<String, Vec<&'a Arc<AgentView>>>,
    by_address: BTreeMap<&'a str, Vec<&'a Arc<AgentView>>>,
}

impl<'a> AnsweredAgents<'a> {
    fn from_snapshot(snapshot: &'a Snapshot) -> Self {
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

    /// The agents on a machine: every given part of its name must match.
    fn on(&self, id: &MachineId) -> impl Iterator<Item = &'a Arc<AgentView>> {
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
