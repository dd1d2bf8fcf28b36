//! The ids of connections and streams, in the core and the service.

use std::sync::Arc;

use crate::checkpoint::TaskKey;

/// The number of a connection to a master, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct LinkId(pub u64);

/// The number of a stream to an executor, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ConnectionId(pub u64);

/// The key of a task in the checkpoints, shared by all references to the task.
pub type SharedTaskKey = Arc<TaskKey>;
