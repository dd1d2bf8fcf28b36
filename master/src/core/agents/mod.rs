//! How agents come, report, come back and are lost.
//!
//! - `admission`: which agents may join, and which may be offered
//! - `adopted_tasks`: takes the reported tasks on the books
//! - `adoption`: takes over what an agent reports when it reregisters
//! - `epochs`: a higher epoch for agents that have obeyed one
//! - `frames`: what registered agents say
//! - `info_usage`: descriptions of agents, held to their limits
//! - `loss`: agents disconnected, unreachable, removed
//! - `partial_reregistrations`: reregistrations in parts, taken and completed
//! - `predecessors`: earlier connections of an agent, and earlier agents where it is
//! - `profile`: an agent as it describes itself
//! - `registration`: how agents come and come back
//! - `reported_budget`: memory limit of what agents report

pub(super) mod admission;
pub(super) mod adopted_tasks;
pub(super) mod adoption;
pub(super) mod epochs;
pub(super) mod frames;
pub(super) mod info_usage;
pub(super) mod loss;
pub(super) mod partial_reregistrations;
pub(super) mod predecessors;
pub(super) mod profile;
pub(super) mod registration;
pub(super) mod reported_budget;
