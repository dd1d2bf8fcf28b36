//! Maintenance: the schedule of windows in which machines are drained, and machines taken down.
//!
//! A machine is up, scheduled (its frameworks get inverse offers), or down (the master refuses its agents).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use meseta_allocator::Unavailability;
use meseta_proto::json;
use meseta_proto::meseta::v1::{self as meseta, master_frame};
use meseta_proto::mesos::v1::MachineId;
use meseta_proto::mesos::v1::maintenance::{Schedule, Window};
use meseta_proto::{Invalid, invalid};
use meseta_resources::AgentId;
use prost::Message as _;

use super::refused;
use crate::core::answer::Answer;
use crate::core::ids::ReplyId;
use crate::core::master::MasterCore;
use crate::core::state::maintenance::{Machine, Maintenance, Plan};
use crate::core::state::pending::{OperatorPending, Pending};
use crate::core::state::persisted::Mutation;

/// The number of machines in one schedule.
const MACHINES_MAX: usize = 100_000;
/// The limit in encoded bytes for a schedule: that of the body of a call that replaces it.
const SCHEDULE_BYTES_MAX: usize = 6 << 20;
/// The longest name of a machine in bytes, as in DNS.
const HOSTNAME_BYTES_MAX: usize = 255;

impl Plan {
    /// Checks that these machines are scheduled and in the mode from which a change starts.
    fn check_change(&self, machines: &[MachineId], from: Mode) -> Result<(), Invalid> {
        for id in machines {
            let machine = Machine::from_id(id);
            let shown = json::to_string(id);
            if !self.lists(&machine) {
                return Err(invalid!(
                    "Machine '{shown}' is not part of a maintenance schedule"
                ));
            }
            match (from, self.has_down(&machine)) {
                (Mode::Draining, true) => {
                    return Err(invalid!(
                        "Machine '{shown}' is not in DRAINING mode and cannot be brought down"
                    ));
                }
                (Mode::Down, false) => {
                    return Err(invalid!(
                        "Machine '{shown}' is not in DOWN mode and cannot be brought up"
                    ));
                }
                (Mode::Draining, false) | (Mode::Down, true) => {}
            }
        }
        Ok(())
    }
}

/// The mode of a scheduled machine.
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
        check_schedule(&schedule)?;
        let requested = Plan::from_maintenance(Arc::new(Maintenance {
            schedule,
            down: self.copy_requested_maintenance().down,
        }));
        for id in &requested.maintenance().down {
            if !requested.lists(&Machine::from_id(id)) {
                return Err(refused(format!(
                    "Machine '{}' is deactivated and cannot be removed from the schedule",
                    json::to_string(id)
                )));
            }
        }
        // Agents on machines scheduled earlier are not drained.
        let machines = requested.changed_since(self.policies.requested_maintenance());
        let there = machines
            .iter()
            .flat_map(|machine| self.locations.on(machine));
        for id in there.filter(|id| self.policies.is_drain_requested(id)) {
            let profile = self.agents.get(id).map(|agent| &agent.profile);
            if profile.is_some_and(|profile| requested.of_agent(profile).is_some()) {
                return Err(refused(format!(
                    "Agent '{id}' is being drained, so its machine cannot be scheduled for \
                     maintenance"
                )));
            }
        }
        if let Some(id) = self.absent_draining_on(&machines, &requested) {
            return Err(refused(format!(
                "Agent '{id}', which is not back, is being drained, so its machine cannot be scheduled for \
                 maintenance"
            )));
        }
        self.store_maintenance(reply, requested);
        Ok(())
    }

    /// An agent that is being drained and is absent, on one of these scheduled machines.
    fn absent_draining_on(
        &self,
        machines: &BTreeSet<Machine>,
        requested: &Plan,
    ) -> Option<&AgentId> {
        let hosts: BTreeSet<&str> = machines
            .iter()
            .filter(|machine| requested.lists(machine) && !machine.hostname.is_empty())
            .map(|machine| machine.hostname.as_str())
            .collect();
        if hosts.is_empty() {
            return None;
        }
        // Only absent agents are scanned: there are few of those, however many are drained.
        self.absent_agents
            .find_on_hosts(&hosts, |id| self.policies.is_drain_requested(id))
    }

    /// Adds a window to the schedule. Two windows added at once both take effect, and neither caller has to read the
    /// schedule.
    pub(super) fn add_window(&mut self, reply: ReplyId, window: Window) -> Result<(), Answer> {
        let mut schedule = self.copy_requested_maintenance().schedule;
        schedule.windows.push(window);
        self.update_schedule(reply, schedule)
    }

    pub(super) fn start_maintenance(
        &mut self,
        reply: ReplyId,
        machines: &[MachineId],
    ) -> Result<(), Answer> {
        check_machines(machines)?;
        let plan = self.policies.requested_maintenance();
        plan.check_change(machines, Mode::Draining)?;
        let mut requested = self.copy_requested_maintenance();
        requested.down.extend(machines.iter().cloned());
        self.store_maintenance(reply, Plan::from_maintenance(Arc::new(requested)));
        Ok(())
    }

    pub(super) fn stop_maintenance(
        &mut self,
        reply: ReplyId,
        machines: &[MachineId],
    ) -> Result<(), Answer> {
        check_machines(machines)?;
        let plan = self.policies.requested_maintenance();
        plan.check_change(machines, Mode::Down)?;
        let mut requested = self.copy_requested_maintenance();
        let up: BTreeSet<Machine> = machines.iter().map(Machine::from_id).collect();
        let stays = |id: &MachineId| !up.contains(&Machine::from_id(id));
        requested.down.retain(stays);
        for window in &mut requested.schedule.windows {
            window.machine_ids.retain(stays);
        }
        let windows = &mut requested.schedule.windows;
        windows.retain(|window| !window.machine_ids.is_empty());
        self.store_maintenance(reply, Plan::from_maintenance(Arc::new(requested)));
        Ok(())
    }

    /// A copy of the schedule that takes effect after all pending writes to the registry.
    fn copy_requested_maintenance(&self) -> Maintenance {
        (**self.policies.requested_maintenance().maintenance()).clone()
    }

    fn store_maintenance(&mut self, reply: ReplyId, requested: Plan) {
        let requested = Arc::new(requested);
        self.policies.request_maintenance(requested.clone());
        self.effects.persist(
            Mutation::PutMaintenance(requested.maintenance().clone()),
            Pending::Operator(OperatorPending::Maintenance {
                reply,
                plan: requested,
            }),
        );
    }

    pub(super) fn maintenance_stored(&mut self, reply: ReplyId, plan: Arc<Plan>) {
        let after = plan.clone();
        let before = self.policies.apply_maintenance(plan);
        let machines = after.changed_since(&before);
        let affected: BTreeSet<AgentId> = machines
            .iter()
            .flat_map(|machine| self.locations.on(machine))
            .cloned()
            .collect();
        let mut sent_away = Vec::new();
        for id in affected {
            let Some(profile) = self.agents.get(&id).map(|agent| agent.profile.clone()) else {
                continue;
            };
            if after.is_down(&profile) {
                sent_away.push(id);
            } else if before.of_agent(&profile) != after.of_agent(&profile) {
                self.rescind_offers_of_agent(&id);
                self.forget_inverse_replies_on(&id);
                self.schedule_agent(&id);
            }
        }
        self.stop_agents(sent_away);
        self.allocate_due = true;
        self.reply(reply, Answer::Done);
    }

    /// Reports an agent's planned absence to the allocator. A draining agent whose machine is scheduled gets no
    /// inverse offers, because its tasks end anyway.
    pub(in crate::core) fn schedule_agent(&mut self, id: &AgentId) {
        let Some(agent) = self.agents.get(id) else {
            return;
        };
        let mut window = self.policies.maintenance().of_agent(&agent.profile);
        if window.is_some() && self.policies.is_draining(id) {
            tracing::warn!(agent_id = %id, "the machine of a draining agent is scheduled for maintenance; the drain goes on alone");
            window = None;
        }
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

    /// Shuts down the agents of machines that go down, with one registry entry for all.
    fn stop_agents(&mut self, ids: Vec<AgentId>) {
        const WHY: &str = "the machine was brought down for maintenance";
        let mut sent_away = Vec::with_capacity(ids.len());
        for id in ids {
            let agent = self.agents.get_mut(&id);
            if agent.is_none_or(|agent| std::mem::replace(&mut agent.removal_pending, true)) {
                continue;
            }
            let shutdown = meseta::Shutdown {
                reason: WHY.to_owned(),
            };
            self.frame(&id, master_frame::Message::Shutdown(shutdown));
            sent_away.push(id);
        }
        if sent_away.is_empty() {
            return;
        }
        self.effects.persist(
            Mutation::RemoveAgents {
                agent_ids: sent_away.iter().map(ToString::to_string).collect(),
            },
            Pending::AllRemoved {
                agents: sent_away,
                why: WHY,
            },
        );
    }
}

fn nanoseconds(count: i64) -> std::time::Duration {
    std::time::Duration::from_nanos(u64::try_from(count).unwrap_or_default())
}

fn check_schedule(schedule: &Schedule) -> Result<(), Invalid> {
    let mut seen: BTreeMap<Machine, ()> = BTreeMap::new();
    for window in &schedule.windows {
        if window.machine_ids.is_empty() {
            return Err(invalid!(
                "List of machines in the maintenance window is empty"
            ));
        }
        let duration = window.unavailability.duration.as_ref();
        if duration.is_some_and(|duration| duration.nanoseconds < 0) {
            return Err(invalid!("Unavailability 'duration' is negative"));
        }
        for id in &window.machine_ids {
            check_machine(id)?;
            if id.hostname().len() > HOSTNAME_BYTES_MAX {
                return Err(invalid!(
                    "The 'hostname' of a machine has more than {HOSTNAME_BYTES_MAX} bytes"
                ));
            }
            if seen.insert(Machine::from_id(id), ()).is_some() {
                return Err(invalid!(
                    "Machine '{}' appears more than once in the schedule",
                    json::to_string(id)
                ));
            }
        }
    }
    if seen.len() > MACHINES_MAX {
        return Err(invalid!(
            "The schedule has more than {MACHINES_MAX} machines"
        ));
    }
    if schedule.encoded_len() > SCHEDULE_BYTES_MAX {
        return Err(invalid!(
            "The schedule takes more than {SCHEDULE_BYTES_MAX} bytes: name several machines in one window"
        ));
    }
    Ok(())
}

fn check_machines(machines: &[MachineId]) -> Result<(), Invalid> {
    if machines.is_empty() {
        return Err(invalid!("List of machines is empty"));
    }
    let mut seen = BTreeSet::new();
    for id in machines {
        check_machine(id)?;
        if !seen.insert(Machine::from_id(id)) {
            return Err(invalid!(
                "Machine '{}' appears more than once in the list",
                json::to_string(id)
            ));
        }
    }
    Ok(())
}

fn check_machine(id: &MachineId) -> Result<(), Invalid> {
    let Machine { hostname, ip } = Machine::from_id(id);
    if hostname.is_empty() && ip.is_empty() {
        return Err(invalid!("Both 'hostname' and 'ip' for a machine are empty"));
    }
    if !ip.is_empty() && ip.parse::<std::net::IpAddr>().is_err() {
        return Err(invalid!("Failed to parse IPv4: {}", ip.escape_debug()));
    }
    Ok(())
}
