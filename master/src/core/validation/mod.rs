//! Whether calls, tasks, executors and operations make sense: the rules of Mesos, in its words.
//!
//! - `call`: a scheduler's call, checked in itself
//! - `executor`: executors of tasks and of task groups
//! - `frame_size`: what fits into one frame to an agent
//! - `group`: a task group
//! - `operation`: an operation on reservations or volumes
//! - `part`: containers and ids in themselves
//! - `resource`: the resources of tasks and executors
//! - `task`: a task on an offer

pub mod call;
pub(super) mod executor;
pub(super) mod frame_size;
pub(super) mod group;
pub(super) mod operation;
pub(super) mod part;
pub(super) mod resource;
pub(super) mod task;
