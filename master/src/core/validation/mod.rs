//! Validation of calls, tasks, executors and operations: the rules of Mesos, in its wording.
//!
//! - `call`: a scheduler's call by itself
//! - `executor`: executors of tasks and of task groups
//! - `frame_size`: the size of a frame to an agent
//! - `group`: a task group
//! - `operation`: an operation on reservations or volumes
//! - `part`: containers and ids by themselves
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
