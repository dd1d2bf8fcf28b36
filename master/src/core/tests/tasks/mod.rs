//! Tasks and task groups: launched, told of, reconciled.

pub(super) mod groups;
pub(super) mod launching;
mod reconciliation;

use super::*;
