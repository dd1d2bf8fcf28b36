//! Agents: how they come and come back, what they claim, and how they are lost.

mod absences;
mod epochs;
pub(super) mod malicious;
mod oversubscription;
mod partition;
mod predecessors;
pub(super) mod registration;
mod removal_rate;
mod reported_tasks;

use super::*;
