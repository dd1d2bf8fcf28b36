//! What connections and streams are known by, here and at the service.

use std::sync::Arc;

use crate::checkpoint::TaskKey;

/// Which of the connections to a master, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct LinkId(pub u64);

/// Which of the streams to executors, counted from the agent's start.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct ConnectionId(pub u64);

/// One task's place in the checkpoints, shared by all that refer to it.
pub type SharedTaskKey = Arc<TaskKey>;
