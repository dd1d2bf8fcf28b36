//! An event of the stream that operators read.

use meseta_proto::mesos::v1::master::Event;

use crate::core::TaskUser;

/// An event, and the additional data that decide about its visibility.
#[derive(Debug, Default)]
pub(crate) struct StreamEvent {
    pub(crate) event: Event,
    /// The user of the status's task.
    pub(crate) task_user: TaskUser,
}
