//! Tasks and task groups: launched, updated, reconciled.

pub(super) mod groups;
pub(super) mod launching;
mod reconciliation;

use super::*;
