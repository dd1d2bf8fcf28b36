//! Assembles reregistrations that agents send in parts.
//!
//! The first part names the agent and is rejected if that agent is not admitted; the Reregister message comes last
//! and completes the parts. Invariants: the collected parts are limited by their size in memory, for the agents of
//! one host or address and for all together; an agent has one pending reregistration; its parts never outlive the
//! connection; and no slow reregistration keeps another agent out.

use meseta_proto::meseta::v1 as meseta;
use meseta_proto::schema;
use meseta_resources::AgentId;
use meseta_resources::time::Moment;

use super::profile::profile;
use crate::core::ids::ConnectionId;
use crate::core::master::MasterCore;
use crate::core::state::rejection::Rejection;
use crate::core::timers::Timer;

/// Rejection of an agent id that this master has not assigned yet.
pub(super) const NOT_GIVEN: &str = "the agent id has not been assigned by this master yet";

impl MasterCore {
    /// Stores a part of a reregistration.
    pub(super) fn add_reregistration_part(
        &mut self,
        connection: ConnectionId,
        mut part: meseta::ReregisterPart,
    ) -> Result<(), Rejection> {
        let bytes = schema::bytes_of(&part);
        let now = self.timers.clock();
        let register = part.register.take();
        let is_new = !self.partial_reregistrations.contains(connection);
        if is_new {
            self.begin_partial_reregistration(connection, register, now)?;
        }
        while !self.partial_reregistrations.fits(bytes)
            && let Some(slow) = self.partial_reregistrations.slowest(connection, now)
        {
            let text =
                "the reregistration was too slow, and its memory is needed for others".to_owned();
            self.reject_partial_reregistration(slow, text);
        }
        self.partial_reregistrations
            .add(connection, part, bytes, now)?;
        if is_new {
            self.set_partial_reregistration_timer(connection);
        }
        Ok(())
    }

    /// Begins a reregistration with its first part.
    fn begin_partial_reregistration(
        &mut self,
        connection: ConnectionId,
        register: Option<meseta::Register>,
        now: Moment,
    ) -> Result<(), Rejection> {
        let Some(register) = register else {
            let text =
                "the first part of a reregistration must contain the registration".to_owned();
            return Err(Rejection::permanent(text));
        };
        let id = register.agent_info.id.as_ref();
        let id = AgentId::new(id.map_or("", |id| id.value.as_str()));
        let id = id.map_err(Rejection::permanent)?;
        if self.issued_ids.is_future_agent(&id) {
            return Err(Rejection::permanent(NOT_GIVEN));
        }
        let profile = profile(id.clone(), register).map_err(Rejection::permanent)?;
        self.check_agent_is_authorized(connection, &profile, Some(&id))?;
        let origin = self.origin_of(connection, &profile.info.hostname);
        // An agent starts again after losing its connection; this master may learn of the loss later.
        if let Some((earlier, from)) = self.partial_reregistrations.of_agent(&id) {
            if *from != origin {
                let text =
                    "a reregistration of this agent is under way from another address".to_owned();
                return Err(Rejection::for_now(text));
            }
            let text = "a newer reregistration of the agent has begun".to_owned();
            self.reject_partial_reregistration(earlier, text);
        }
        self.partial_reregistrations
            .begin(connection, id, origin, now);
        Ok(())
    }

    fn set_partial_reregistration_timer(&mut self, connection: ConnectionId) {
        if let Some(deadline) = self.partial_reregistrations.deadline(connection) {
            let at = self.timers.real(deadline);
            self.timers
                .set(at, Timer::PartialReregistration { connection });
        }
    }

    /// Drops a reregistration that was not completed in time.
    pub(in crate::core) fn check_partial_reregistration(&mut self, connection: ConnectionId) {
        let Some(deadline) = self.partial_reregistrations.deadline(connection) else {
            return;
        };
        if deadline > self.timers.clock() {
            self.set_partial_reregistration_timer(connection);
            return;
        }
        let text = "the reregistration was too slow or did not complete in time".to_owned();
        self.reject_partial_reregistration(connection, text);
    }

    /// Rejects a reregistration in parts; the agent may retry.
    fn reject_partial_reregistration(&mut self, connection: ConnectionId, text: String) {
        self.forget_partial_reregistration(connection);
        self.refuse_agent(connection, Rejection::for_now(text));
    }

    /// Merges a Reregister message with all parts before it.
    pub(super) fn complete_reregistration(
        &mut self,
        connection: ConnectionId,
        mut report: meseta::Reregister,
    ) -> meseta::Reregister {
        let parts = self.partial_reregistrations.take(connection);
        if parts.is_empty() {
            return report;
        }
        let last = std::mem::take(&mut report.tasks);
        let (executors, frameworks) = (
            std::mem::take(&mut report.executors),
            std::mem::take(&mut report.frameworks),
        );
        let operations = std::mem::take(&mut report.operations);
        for part in parts {
            report.tasks.extend(part.tasks);
            report.executors.extend(part.executors);
            report.frameworks.extend(part.frameworks);
            report.operations.extend(part.operations);
        }
        report.tasks.extend(last);
        report.executors.extend(executors);
        report.frameworks.extend(frameworks);
        report.operations.extend(operations);
        report
    }

    /// Drops the parts received on a connection.
    pub(super) fn forget_partial_reregistration(&mut self, connection: ConnectionId) {
        self.partial_reregistrations.take(connection);
    }
}

/// The reregistration of an agent with this id and without tasks.
pub(super) fn reregister_without_tasks(
    mut register: meseta::Register,
    id: &AgentId,
) -> meseta::Reregister {
    register.agent_info.id = Some(id.into());
    meseta::Reregister {
        register,
        ..meseta::Reregister::default()
    }
}
