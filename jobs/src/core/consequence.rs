//! The consequences that a change of one job has for the owners of other state.
//!
//! Invariant: a function that changes a job changes nothing else. It returns consequences, which
//! [`State::apply`](super::State::apply) carries out in their order.

use std::sync::Arc;

use super::input::{Event, Record};
use super::job::KillReason;
use crate::spec::JobSpec;

/// A consequence of a change of a job.
#[derive(Debug)]
pub(super) enum Consequence {
    /// A record becomes durable.
    Write(Record),
    /// The job becomes durable at the end of the step, once for all failures of its tasks.
    SaveFailure,
    /// The followers of the job learn of an event.
    Tell(Event),
    /// A task is to be killed.
    Kill(String, KillReason),
    /// The job may need a decision.
    Decide,
    CountStart,
    CountSuccess,
    /// A task has failed by its own fault, in this role.
    CountFailure(String),
    CountLoss,
    CountRestart,
    /// A task runs on this volume.
    VolumeRuns(String),
    /// The resources of an ended task are free.
    Freed {
        spec: Arc<JobSpec>,
        agent_id: String,
    },
}
