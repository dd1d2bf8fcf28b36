//! How agents come, report, come back and are lost.
//!
//! - `adoption`: takes over what an agent reports when it reregisters
//! - `eligibility`: which agents may be offered at all
//! - `frames`: what registered agents say
//! - `info_usage`: memory taken by agent infos, and agents of one host
//! - `locations`: where the registered agents are
//! - `loss`: agents disconnected, unreachable, removed
//! - `partial_reregistrations`: reregistrations in parts
//! - `profile`: an agent as it describes itself
//! - `registration`: how agents come and come back
//! - `reported_budget`: memory limit of what agents report

pub(super) mod adoption;
pub(super) mod eligibility;
pub(super) mod frames;
pub(super) mod info_usage;
pub(super) mod locations;
pub(super) mod loss;
pub(super) mod partial_reregistrations;
pub(super) mod profile;
pub(super) mod registration;
pub(super) mod reported_budget;
