//! The maintenance schedule by machine. A lookup for an agent costs the same however long the schedule is.
//!
//! A machine in the schedule may be named by host, by address, or by both: an agent must match every given part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_proto::mesos::v1::maintenance::Schedule;
use meseta_proto::mesos::v1::{MachineId, Unavailability};
use meseta_resources::usual_ip;
use meseta_resources::work_counter::count_entries;

use super::agent::AgentProfile;

/// The schedule, and its machines that are down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Maintenance {
    pub schedule: Schedule,
    pub down: Vec<MachineId>,
}

impl Maintenance {
    /// Whether the id names the machine of an agent.
    pub(crate) fn is_machine_of(id: &MachineId, agent: &AgentProfile) -> bool {
        Machine::from_id(id).has(agent)
    }
}

/// A machine's names in the form for comparison; an empty name is not given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::core) struct Machine {
    pub(in crate::core) hostname: String,
    pub(in crate::core) ip: String,
}

impl Machine {
    pub(in crate::core) fn from_id(id: &MachineId) -> Self {
        Self {
            hostname: id.hostname.as_deref().unwrap_or_default().to_lowercase(),
            ip: usual_ip(id.ip.as_deref().unwrap_or_default()),
        }
    }

    /// All names that a schedule may use for an agent's machine.
    fn names_of(agent: &AgentProfile) -> [Self; 3] {
        let (hostname, ip) = (agent.info.hostname.to_lowercase(), agent.ip().to_owned());
        let of = |hostname: &str, ip: &str| Self {
            hostname: hostname.to_owned(),
            ip: ip.to_owned(),
        };
        [of(&hostname, &ip), of(&hostname, ""), of("", &ip)]
    }

    /// Whether an agent is on this machine.
    pub(in crate::core) fn has(&self, agent: &AgentProfile) -> bool {
        let fits = |named: &str, is: &str| named.is_empty() || named == is;
        fits(&self.hostname, &agent.info.hostname.to_lowercase()) && fits(&self.ip, agent.ip())
    }
}

#[derive(Debug, Default)]
pub(in crate::core) struct Plan {
    maintenance: Arc<Maintenance>,
    /// The windows with their positions in the schedule: an agent uses the first window that matches.
    windows: BTreeMap<Machine, (usize, Unavailability)>,
    down: BTreeSet<Machine>,
}

impl Plan {
    pub(in crate::core) fn from_maintenance(maintenance: Arc<Maintenance>) -> Self {
        let mut by_machine = BTreeMap::new();
        for (position, window) in maintenance.schedule.windows.iter().enumerate() {
            for id in &window.machine_ids {
                let entry = by_machine.entry(Machine::from_id(id));
                entry.or_insert((position, window.unavailability));
            }
        }
        Self {
            windows: by_machine,
            down: maintenance.down.iter().map(Machine::from_id).collect(),
            maintenance,
        }
    }

    pub(in crate::core) fn maintenance(&self) -> &Arc<Maintenance> {
        &self.maintenance
    }

    /// The planned unavailability of an agent.
    pub(in crate::core) fn of_agent(&self, agent: &AgentProfile) -> Option<&Unavailability> {
        if self.windows.is_empty() {
            return None;
        }
        count_entries(3);
        let names = Machine::names_of(agent);
        let windows = names.iter().filter_map(|name| self.windows.get(name));
        let first = windows.min_by_key(|(position, _)| *position);
        first.map(|(_, unavailability)| unavailability)
    }

    /// Whether the machine of an agent is down.
    pub(in crate::core) fn is_down(&self, agent: &AgentProfile) -> bool {
        count_entries(3);
        !self.down.is_empty()
            && Machine::names_of(agent)
                .iter()
                .any(|name| self.down.contains(name))
    }

    /// Whether nothing is scheduled.
    pub(in crate::core) fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// Whether a machine of this host is in the schedule, whatever its address.
    pub(in crate::core) fn names_host(&self, host: &str) -> bool {
        let hostname = host.to_lowercase();
        let from = Machine {
            hostname: hostname.clone(),
            ip: String::new(),
        };
        let mut named = self.windows.range(from..);
        !hostname.is_empty()
            && named
                .next()
                .is_some_and(|(machine, _)| machine.hostname == hostname)
    }

    pub(in crate::core) fn lists(&self, machine: &Machine) -> bool {
        self.windows.contains_key(machine)
    }

    pub(in crate::core) fn has_down(&self, machine: &Machine) -> bool {
        self.down.contains(machine)
    }

    /// The machines whose entries differ between this and another plan.
    pub(in crate::core) fn changed_since(&self, before: &Self) -> BTreeSet<Machine> {
        let differs = |one: &Self, other: &Self, machine: &Machine| {
            let window = |plan: &Self| plan.windows.get(machine).copied();
            window(one) != window(other) || one.has_down(machine) != other.has_down(machine)
        };
        let listed = |plan: &'_ Self| plan.windows.keys().chain(&plan.down).cloned().collect();
        let (ours, theirs): (Vec<Machine>, Vec<Machine>) = (listed(self), listed(before));
        let all = ours.into_iter().chain(theirs);
        all.filter(|machine| differs(self, before, machine))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use meseta_proto::mesos::v1::TimeInfo;
    use meseta_proto::mesos::v1::maintenance::{Schedule, Window};

    use super::*;

    fn id(hostname: &str, ip: &str) -> MachineId {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        MachineId {
            hostname: given(hostname),
            ip: given(ip),
        }
    }

    #[test]
    fn machines_are_compared_by_address() {
        let machine = |ip: &str| Machine::from_id(&id("", ip));
        assert_eq!(machine("FD00:0::7"), machine("fd00::7"));
        assert_eq!(machine("::ffff:10.0.0.1"), machine("10.0.0.1"));
        assert_ne!(machine("fd00::7"), machine("fd00::8"));
    }

    fn plan(windows: &[&[MachineId]], down: &[MachineId]) -> Plan {
        let window = |(number, ids): (i64, &&[MachineId])| Window {
            machine_ids: ids.to_vec(),
            unavailability: Unavailability {
                start: TimeInfo {
                    nanoseconds: number,
                },
                duration: None,
            },
        };
        Plan::from_maintenance(Arc::new(Maintenance {
            schedule: Schedule {
                windows: (1..).zip(windows).map(window).collect(),
            },
            down: down.to_vec(),
        }))
    }

    #[test]
    fn reports_only_machines_with_changed_plan() {
        let (a, b, c) = (id("A", ""), id("b", "10.0.0.2"), id("", "10.0.0.3"));
        let (first, third) = ([a.clone()], [c.clone()]);
        let before = plan(&[&[a.clone(), b.clone()], &third], &[]);
        let names = |plan: &Plan| {
            let changed = plan.changed_since(&before).into_iter();
            let names = changed.map(|machine| format!("{}{}", machine.hostname, machine.ip));
            names.collect::<Vec<_>>()
        };
        assert!(names(&plan(&[&[b.clone(), a.clone()], &third], &[])).is_empty());
        assert_eq!(names(&plan(&[&[a.clone(), b.clone()]], &[])), ["10.0.0.3"]);
        let down = std::slice::from_ref(&a);
        assert_eq!(
            names(&plan(&[&[a.clone(), b.clone()], &third], down)),
            ["a"]
        );
        assert_eq!(
            names(&plan(&[&first, &[c.clone(), b.clone()]], &[])),
            ["b10.0.0.2"]
        );
        assert_eq!(names(&Plan::default()).len(), 3);
    }
}
