//! The context of a step: the time, the settings, and the collectors of effects, timers and counts.
//!
//! [`super::AgentCore::step`] makes a [`Step`] and passes it to the owners of the state. Invariant: a message to the
//! master goes to the current connection.

use std::time::Duration;

use meseta_proto::meseta::v1::agent_frame::Message;
use meseta_proto::mesos::v1 as pb;
use meseta_resources::{AgentId, ContainerId, Moment, Now};

use super::disk::{DiskChange, DiskWatch};
use super::journal::Journal;
use super::timers::{Timer, Timers};
use super::{Counters, Destination, Effect, LinkAction, LinkId, Options, Output};
use crate::checkpoint::{DiskCondition, Lsn, Write};

/// The parts that every step uses, between two steps.
#[derive(Debug)]
pub(super) struct StepParts {
    options: Options,
    rng: fastrand::Rng,
    timers: Timers,
    counters: Counters,
    journal: Journal,
    disk: DiskWatch,
    /// The agent's id, once a master has given it.
    agent_id: Option<AgentId>,
    /// The current connection to the master.
    link: LinkId,
}

impl StepParts {
    /// Creates the parts before the first step.
    pub(super) fn new(options: Options, seed: u64) -> Self {
        Self {
            options,
            rng: fastrand::Rng::with_seed(seed),
            timers: Timers::default(),
            counters: Counters::default(),
            journal: Journal::default(),
            disk: DiskWatch::default(),
            agent_id: None,
            link: LinkId::default(),
        }
    }

    /// Begins a step at this time.
    pub(super) fn begin(&mut self, now: Now) -> Step<'_> {
        Step {
            now,
            options: &self.options,
            counters: &mut self.counters,
            rng: &mut self.rng,
            timers: &mut self.timers,
            journal: &mut self.journal,
            disk: &mut self.disk,
            agent_id: &mut self.agent_id,
            link: &mut self.link,
        }
    }

    pub(super) fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn agent_id(&self) -> Option<&AgentId> {
        self.agent_id.as_ref()
    }

    pub(super) fn disk(&self) -> &DiskWatch {
        &self.disk
    }

    /// The time of the next timer.
    pub(super) fn next_timer(&self) -> Option<Moment> {
        self.timers.next()
    }

    /// Notes that all writes up to `lsn` are durable.
    pub(super) fn note_durable(&mut self, lsn: Lsn) {
        self.journal.note_durable(lsn);
    }

    #[cfg(test)]
    pub(super) fn count_timers(&self) -> usize {
        self.timers.len()
    }
}

/// The context of one step.
#[derive(Debug)]
pub(super) struct Step<'a> {
    pub(super) now: Now,
    pub(super) options: &'a Options,
    pub(super) counters: &'a mut Counters,
    rng: &'a mut fastrand::Rng,
    timers: &'a mut Timers,
    journal: &'a mut Journal,
    disk: &'a mut DiskWatch,
    agent_id: &'a mut Option<AgentId>,
    link: &'a mut LinkId,
}

impl Step<'_> {
    /// Adds a write.
    pub(super) fn persist(&mut self, write: Write) {
        self.journal.persist(write);
    }

    /// Adds a write that contains only a new epoch.
    pub(super) fn persist_epoch(&mut self, write: Write) {
        self.journal.persist_epoch(self.now.moment, write);
    }

    /// Adds an output that follows all writes so far.
    pub(super) fn output(&mut self, to: Destination, output: impl Into<Output>) {
        self.journal.output(to, output.into());
    }

    /// Adds an output that waits for no write, only for earlier outputs of the same destination.
    pub(super) fn output_now(&mut self, to: Destination, output: impl Into<Output>) {
        self.journal.output_now(to, output.into());
    }

    /// Sends a message to the master, after all writes so far.
    pub(super) fn send(&mut self, message: Message) {
        let (link, message) = (*self.link, Box::new(message));
        self.output(Destination::Master, LinkAction::Send { link, message });
    }

    /// Sends a message to the master that waits for no write.
    pub(super) fn send_now(&mut self, message: Message) {
        let (link, message) = (*self.link, Box::new(message));
        self.output_now(Destination::Liveness, LinkAction::Send { link, message });
    }

    /// Sends later messages on this connection.
    pub(super) fn use_link(&mut self, link: LinkId) {
        *self.link = link;
    }

    /// The last write.
    pub(super) fn lsn(&self) -> Lsn {
        self.journal.last()
    }

    /// The last durable write.
    pub(super) fn durable(&self) -> Lsn {
        self.journal.durable()
    }

    /// The time since which a new epoch has waited for the disk, if nothing else waits.
    pub(super) fn epoch_waits_since(&self) -> Option<Moment> {
        self.journal.epoch_waits_since()
    }

    pub(super) fn disk(&self) -> &DiskWatch {
        self.disk
    }

    /// Notes the condition of the disk.
    pub(super) fn note_disk(&mut self, condition: DiskCondition) -> Option<DiskChange> {
        self.disk.note(condition)
    }

    /// Stops answering the master if the disk is still silent.
    pub(super) fn give_up_disk(&mut self) {
        self.disk.give_up();
    }

    /// Takes the effects so far.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        self.journal.take_effects()
    }

    /// Sets a timer.
    pub(super) fn set_timer(&mut self, at: Moment, timer: Timer) {
        self.timers.set(at, timer);
    }

    /// Removes the next timer that is due.
    pub(super) fn pop_timer(&mut self) -> Option<Timer> {
        self.timers.pop(self.now.moment)
    }

    /// Removes a timer that belongs to no container.
    pub(super) fn remove_timer(&mut self, timer: &Timer) {
        self.timers.remove(timer);
    }

    /// Removes the timers of a container that has ended.
    pub(super) fn remove_timers_of(&mut self, container: &ContainerId) {
        self.timers.remove_container(container);
    }

    /// Extends the deadlines selected by `waits` after a pause, at least until `least`.
    pub(super) fn extend_timers(
        &mut self,
        lasted: Duration,
        least: Moment,
        waits: impl Fn(&Timer) -> bool,
    ) {
        self.timers.extend(lasted, least, waits);
    }

    /// Creates a UUID.
    pub(super) fn new_uuid(&mut self) -> uuid::Uuid {
        let mut bytes = [0; 16];
        self.rng.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }

    /// Returns a random number between 0 and 1.
    pub(super) fn draw(&mut self) -> f64 {
        self.rng.f64()
    }

    /// The agent's id, once a master has given it.
    pub(super) fn agent_id(&self) -> Option<&AgentId> {
        self.agent_id.as_ref()
    }

    /// The agent's id as a message.
    pub(super) fn agent_id_message(&self) -> Option<pb::AgentId> {
        let value = self.agent_id()?.to_string();
        Some(pb::AgentId { value })
    }

    /// Sets the agent's id. Returns whether the agent had none.
    pub(super) fn set_agent_id(&mut self, id: AgentId) -> bool {
        self.agent_id.replace(id).is_none()
    }
}
