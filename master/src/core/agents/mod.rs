//! Registration, reports, reregistration and loss of agents.
//!
//! - `admission`: checks which agents may join, and which may be offered
//! - `adopted_tasks`: adopts the reported tasks
//! - `adoption`: adopts the report of a reregistering agent
//! - `epochs`: a higher epoch for agents that have obeyed another master
//! - `frames`: messages of registered agents
//! - `info_usage`: limits on descriptions of agents
//! - `loss`: agents disconnected, unreachable, removed
//! - `partial_reregistrations`: reregistrations in parts, collected and completed
//! - `predecessors`: earlier connections of an agent, and earlier agents at its location
//! - `profile`: an agent's description of itself
//! - `registration`: registration and reregistration
//! - `reported_budget`: memory limit of the records that agents report

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
