//! One event of the stream that operators read.

use meseta_proto::mesos::v1::master::Event;

use crate::core::TaskUser;

/// An event, and what decides who may hear of it that it does not say itself.
#[derive(Debug, Default)]
pub(crate) struct StreamEvent {
    pub(crate) event: Event,
    /// The user of the status's task.
    pub(crate) task_user: TaskUser,
}
