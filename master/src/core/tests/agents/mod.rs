//! Agents: registration and reregistration, their claims, and their loss.

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
