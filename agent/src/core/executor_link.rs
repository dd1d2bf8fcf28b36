//! The connection to a default or custom executor, and the events that wait for its container.

use std::sync::Arc;
use std::time::Duration;

use meseta_proto::mesos::v1 as pb;
use meseta_resources::{Moment, TaskId};

use super::delivery::Deliveries;
use super::ids::ConnectionId;
use super::model::TerminationReason;
use crate::byte_semaphore::Permit;
use crate::checkpoint::Lsn;

/// A terminal update that waits for a resize, with the permit for its bytes.
type DelayedUpdate = (pb::TaskStatus, Arc<Permit>);

/// The state of default and custom executors beside their container.
#[derive(Clone, Debug, Default)]
pub struct ExecutorLink {
    /// The stream for the executor's events.
    connection: Option<ConnectionId>,
    /// The write after which the executor gets the SUBSCRIBED event.
    subscribed_after: Lsn,
    has_subscribed: bool,
    was_given: bool,
    deliveries: Deliveries,
    /// Resizes of its container in progress.
    resizes: u32,
    /// Terminal updates delayed until these resizes are done.
    delayed_updates: Vec<DelayedUpdate>,
    /// The persistent volumes that its container got last; unknown after a restart of the agent.
    volumes: Option<Vec<pb::Resource>>,
    /// The time of the last delivery, or of the launch, in this agent process.
    given_at: Option<Moment>,
    /// The last time when a task ended at a memory limit and was counted.
    out_of_memory_at: Option<Moment>,
    termination_reason: Option<TerminationReason>,
}

impl ExecutorLink {
    /// Creates the link of a recovered executor, to which a task was delivered or not.
    pub(super) fn recovered(was_given: bool) -> Self {
        Self {
            was_given,
            ..Self::default()
        }
    }

    /// Whether the executor has subscribed to this agent process.
    pub fn has_subscribed(&self) -> bool {
        self.has_subscribed
    }

    /// The stream for the executor's events.
    pub(super) fn connection(&self) -> Option<ConnectionId> {
        self.connection
    }

    /// Notes the stream of a subscribing executor.
    pub(super) fn connect(&mut self, connection: ConnectionId) {
        self.connection = Some(connection);
        self.has_subscribed = true;
    }

    /// Notes the end of the stream.
    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }

    /// The write after which the executor gets the SUBSCRIBED event.
    pub(super) fn subscribed_after(&self) -> Lsn {
        self.subscribed_after
    }

    /// Notes the write after which the executor gets the SUBSCRIBED event.
    pub(super) fn note_subscribed(&mut self, after: Lsn) {
        self.subscribed_after = after;
    }

    /// Whether a task was ever delivered to the executor.
    pub(super) fn was_given(&self) -> bool {
        self.was_given
    }

    /// Notes the delivery of a task.
    pub(super) fn note_given(&mut self) {
        self.was_given = true;
    }

    /// The progress of the deliveries to the executor.
    pub(super) fn deliveries(&self) -> &Deliveries {
        &self.deliveries
    }

    /// Notes the progress of the deliveries.
    pub(super) fn note_deliveries(&mut self, deliveries: Deliveries) {
        self.was_given |= deliveries.has_begun();
        self.deliveries = deliveries;
    }

    /// Notes the time when tasks were accepted for the executor.
    pub(super) fn note_accepted(&mut self, now: Moment) {
        self.given_at = Some(now);
    }

    /// Whether tasks were accepted for the executor within this time.
    pub(super) fn has_accepted_within(&self, now: Moment, time: Duration) -> bool {
        let given_at = self.given_at;
        given_at.is_some_and(|at| now.saturating_since(at) < time)
    }

    /// Whether a resize of its container is in progress.
    pub(super) fn is_resizing(&self) -> bool {
        self.resizes > 0
    }

    /// Notes the begin of a resize with these volumes.
    pub(super) fn begin_resize(&mut self, volumes: Vec<pb::Resource>) {
        self.volumes = Some(volumes);
        self.resizes += 1;
    }

    /// Notes the end of a resize.
    pub(super) fn end_resize(&mut self) {
        self.resizes = self.resizes.saturating_sub(1);
    }

    /// Notes the volumes of its launch.
    pub(super) fn note_volumes(&mut self, volumes: Vec<pb::Resource>) {
        self.volumes = Some(volumes);
    }

    /// Whether its container got these volumes last.
    pub(super) fn has_volumes(&self, volumes: &[pb::Resource]) -> bool {
        self.volumes.as_deref() == Some(volumes)
    }

    /// Delays a terminal update until the resizes are done.
    pub(super) fn delay_update(&mut self, status: pb::TaskStatus, permit: Arc<Permit>) {
        self.delayed_updates.push((status, permit));
    }

    /// Whether the terminal update of a task waits for a resize.
    pub(super) fn delays(&self, task: &TaskId) -> bool {
        let mut delayed = self.delayed_updates.iter();
        delayed.any(|(status, _)| status.task_id.value == task.as_str())
    }

    /// Whether the update with this uuid waits for a resize.
    pub(super) fn delays_update(&self, uuid: &[u8]) -> bool {
        let mut delayed = self.delayed_updates.iter();
        delayed.any(|(status, _)| status.uuid.as_deref() == Some(uuid))
    }

    /// Whether any update waits for a resize.
    pub(super) fn delays_any(&self) -> bool {
        !self.delayed_updates.is_empty()
    }

    /// Takes the delayed updates.
    pub(super) fn take_delayed(&mut self) -> Vec<DelayedUpdate> {
        std::mem::take(&mut self.delayed_updates)
    }

    /// Notes a task that ended at a memory limit. Returns false within `time` after another one.
    pub(super) fn note_out_of_memory(&mut self, now: Moment, time: Duration) -> bool {
        let last = self.out_of_memory_at;
        let is_first = last.is_none_or(|last| now.saturating_since(last) >= time);
        if is_first {
            self.out_of_memory_at = Some(now);
        }
        is_first
    }

    /// The reason for destroying its container, as reported for its tasks.
    pub(super) fn termination_reason(&self) -> Option<&TerminationReason> {
        self.termination_reason.as_ref()
    }

    /// Whether its container is being destroyed.
    pub(super) fn is_terminated(&self) -> bool {
        self.termination_reason.is_some()
    }

    /// Notes the reason for destroying its container. The first reason counts.
    pub(super) fn terminate(&mut self, reason: TerminationReason) {
        self.termination_reason.get_or_insert(reason);
    }
}
