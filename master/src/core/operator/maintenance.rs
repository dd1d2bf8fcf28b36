//! Maintenance: the schedule of windows in which machines are drained, and machines taken down.
//!
//! A machine is up, in the schedule (its frameworks are asked to leave), or down (its agents are sent
//! away). A machine in the schedule may be named by host, by address, or by both: what is named must fit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_allocator::Unavailability;
use meseta_proto::json;
use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::maintenance::Schedule;
use meseta_proto::mesos::v1::{self, MachineId};
use meseta_resources::AgentId;

use super::super::agent::AgentProfile;
use super::super::io::{Answer, ReplyId};
use super::super::pending;
use super::super::persisted::Mutation;
use super::{MasterCore, Pending, refused};

/// Machines in one schedule.
const MACHINES_MAX: usize = 100_000;

/// The schedule, and which of its machines are down.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Maintenance {
    pub schedule: Schedule,
    pub down: Vec<MachineId>,
}

/// A machine's names in the form in which they are compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Machine {
    hostname: String,
    ip: String,
}

impl Machine {
    fn of(id: &MachineId) -> Self {
        Self {
            hostname: id.hostname.as_deref().unwrap_or_default().to_lowercase(),
            ip: id.ip.clone().unwrap_or_default(),
        }
    }

    fn has(&self, agent: &AgentProfile) -> bool {
        let fits = |named: &str, is: &str| named.is_empty() || named == is;
        fits(&self.hostname, &agent.info.hostname.to_lowercase()) && fits(&self.ip, agent.ip())
    }
}

impl Maintenance {
    /// When an agent will be away.
    pub(in super::super) fn of_agent(&self, agent: &AgentProfile) -> Option<&v1::Unavailability> {
        let holds = |id: &MachineId| Machine::of(id).has(agent);
        let windows = self.schedule.windows.iter();
        let mut found = windows.filter(|window| window.machine_ids.iter().any(holds));
        found.next().map(|window| &window.unavailability)
    }

    /// Whether this names the machine of an agent.
    pub(crate) fn is_machine_of(id: &MachineId, agent: &AgentProfile) -> bool {
        Machine::of(id).has(agent)
    }

    /// Whether the machine of an agent is down.
    pub(in super::super) fn is_down(&self, agent: &AgentProfile) -> bool {
        self.down.iter().any(|id| Machine::of(id).has(agent))
    }

    fn machines(&self) -> BTreeSet<Machine> {
        let windows = self.schedule.windows.iter();
        let ids = windows.flat_map(|window| &window.machine_ids);
        ids.map(Machine::of).collect()
    }

    fn down_machines(&self) -> BTreeSet<Machine> {
        self.down.iter().map(Machine::of).collect()
    }

    /// Whether these machines are scheduled and in the mode that a change starts from.
    fn check_change(&self, machines: &[MachineId], from: Mode) -> Result<(), String> {
        let (listed, down) = (self.machines(), self.down_machines());
        for id in machines {
            let machine = Machine::of(id);
            let shown = json::to_string(id);
            if !listed.contains(&machine) {
                return Err(format!(
                    "Machine '{shown}' is not part of a maintenance schedule"
                ));
            }
            match (from, down.contains(&machine)) {
                (Mode::Draining, true) => {
                    return Err(format!(
                        "Machine '{shown}' is not in DRAINING mode and cannot be brought down"
                    ));
                }
                (Mode::Down, false) => {
                    return Err(format!(
                        "Machine '{shown}' is not in DOWN mode and cannot be brought up"
                    ));
                }
                (Mode::Draining, false) | (Mode::Down, true) => {}
            }
        }
        Ok(())
    }
}

/// What a scheduled machine is doing.
#[derive(Clone, Copy)]
enum Mode {
    Draining,
    Down,
}

impl MasterCore {
    pub(super) fn update_schedule(
        &mut self,
        reply: ReplyId,
        schedule: Schedule,
    ) -> Result<(), Answer> {
        check_schedule(&schedule).map_err(refused)?;
        let mut wanted = self.operator.maintenance_wanted.clone();
        wanted.schedule = schedule;
        let listed = wanted.machines();
        for id in &wanted.down {
            if !listed.contains(&Machine::of(id)) {
                return Err(refused(format!(
                    "Machine '{}' is deactivated and cannot be removed from the schedule",
                    json::to_string(id)
                )));
            }
        }
        for id in self.operator.deactivations_wanted.draining() {
            let profile = self.agents.get(id).map(|agent| &agent.profile);
            if profile.is_some_and(|profile| wanted.of_agent(profile).is_some()) {
                return Err(refused(format!(
                    "Agent '{id}' is being drained, so its machine cannot be scheduled for \
                     maintenance"
                )));
            }
        }
        self.store_maintenance(reply, wanted);
        Ok(())
    }

    pub(super) fn start_maintenance(
        &mut self,
        reply: ReplyId,
        machines: &[MachineId],
    ) -> Result<(), Answer> {
        check_machines(machines).map_err(refused)?;
        let mut wanted = self.operator.maintenance_wanted.clone();
        wanted
            .check_change(machines, Mode::Draining)
            .map_err(refused)?;
        wanted.down.extend(machines.iter().cloned());
        self.store_maintenance(reply, wanted);
        Ok(())
    }

    pub(super) fn stop_maintenance(
        &mut self,
        reply: ReplyId,
        machines: &[MachineId],
    ) -> Result<(), Answer> {
        check_machines(machines).map_err(refused)?;
        let mut wanted = self.operator.maintenance_wanted.clone();
        wanted.check_change(machines, Mode::Down).map_err(refused)?;
        let up: BTreeSet<Machine> = machines.iter().map(Machine::of).collect();
        let stays = |id: &MachineId| !up.contains(&Machine::of(id));
        wanted.down.retain(stays);
        for window in &mut wanted.schedule.windows {
            window.machine_ids.retain(stays);
        }
        let windows = &mut wanted.schedule.windows;
        windows.retain(|window| !window.machine_ids.is_empty());
        self.store_maintenance(reply, wanted);
        Ok(())
    }

    fn store_maintenance(&mut self, reply: ReplyId, wanted: Maintenance) {
        self.operator.maintenance_wanted = wanted.clone();
        self.persist(
            Mutation::PutMaintenance(wanted.clone()),
            pending::Pending::Operator(Pending::Maintenance {
                reply,
                maintenance: Arc::new(wanted),
            }),
        );
    }

    pub(super) fn maintenance_stored(&mut self, reply: ReplyId, maintenance: Arc<Maintenance>) {
        let before = std::mem::replace(&mut self.operator.maintenance, maintenance);
        let after = self.operator.maintenance.clone();
        let mut changed = Vec::new();
        let mut sent_away = Vec::new();
        for (id, agent) in self.agents.iter() {
            if after.is_down(&agent.profile) {
                sent_away.push(id.clone());
            } else if before.of_agent(&agent.profile) != after.of_agent(&agent.profile) {
                changed.push(id.clone());
            }
        }
        for id in changed {
            self.rescind_offers_of_agent(&id);
            if let Some(agent) = self.agents.get_mut(&id) {
                agent.inverse_replies.clear();
            }
            self.schedule_agent(&id);
        }
        for id in sent_away {
            self.send_away(&id);
        }
        self.allocate_due = true;
        self.reply(reply, Answer::Done);
    }

    /// Tells the allocator when an agent will be away.
    pub(in super::super) fn schedule_agent(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let window = self.operator.maintenance.of_agent(&agent.profile);
        let window = window.map(|window| Unavailability {
            start: nanoseconds(window.start.nanoseconds),
            duration: window
                .duration
                .as_ref()
                .map(|duration| nanoseconds(duration.nanoseconds)),
        });
        self.rescind_inverse_of_agent(id);
        let updated = self.allocator.update_unavailability(id, window);
        self.agreed("scheduling an agent's maintenance", updated);
    }

    /// Ends an agent whose machine goes down.
    fn send_away(&mut self, id: &AgentId) {
        const WHY: &str = "the machine was brought down for maintenance";
        let Some(agent) = self.agents.get_mut(id) else {
            return;
        };
        if std::mem::replace(&mut agent.marking, true) {
            return;
        }
        let shutdown = meseta::Shutdown {
            reason: WHY.to_owned(),
        };
        self.frame(id, master_frame::Message::Shutdown(shutdown));
        self.persist(
            Mutation::RemoveAgent {
                agent_id: id.to_string(),
            },
            pending::Pending::Removed {
                agent: id.clone(),
                why: WHY,
            },
        );
    }
}

fn nanoseconds(count: i64) -> std::time::Duration {
    std::time::Duration::from_nanos(u64::try_from(count).unwrap_or_default())
}

fn check_schedule(schedule: &Schedule) -> Result<(), String> {
    let mut seen: BTreeMap<Machine, ()> = BTreeMap::new();
    for window in &schedule.windows {
        if window.machine_ids.is_empty() {
            return Err("List of machines in the maintenance window is empty".to_owned());
        }
        let duration = window.unavailability.duration.as_ref();
        if duration.is_some_and(|duration| duration.nanoseconds < 0) {
            return Err("Unavailability 'duration' is negative".to_owned());
        }
        for id in &window.machine_ids {
            check_machine(id)?;
            if seen.insert(Machine::of(id), ()).is_some() {
                return Err(format!(
                    "Machine '{}' appears more than once in the schedule",
                    json::to_string(id)
                ));
            }
        }
    }
    if seen.len() > MACHINES_MAX {
        return Err(format!(
            "The schedule has more than {MACHINES_MAX} machines"
        ));
    }
    Ok(())
}

fn check_machines(machines: &[MachineId]) -> Result<(), String> {
    if machines.is_empty() {
        return Err("List of machines is empty".to_owned());
    }
    let mut seen = BTreeSet::new();
    for id in machines {
        check_machine(id)?;
        if !seen.insert(Machine::of(id)) {
            return Err(format!(
                "Machine '{}' appears more than once in the list",
                json::to_string(id)
            ));
        }
    }
    Ok(())
}

fn check_machine(id: &MachineId) -> Result<(), String> {
    let Machine { hostname, ip } = Machine::of(id);
    if hostname.is_empty() && ip.is_empty() {
        return Err("Both 'hostname' and 'ip' for a machine are empty".to_owned());
    }
    if !ip.is_empty() && ip.parse::<std::net::Ipv4Addr>().is_err() {
        return Err(format!("Failed to parse IPv4: {}", ip.escape_debug()));
    }
    Ok(())
}
