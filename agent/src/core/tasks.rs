//! The tasks of the agent with all that belongs to them, by owner.

use super::corrections::Corrections;
use super::drain::Drain;
use super::probe::ProbeIds;
use super::runs::Runs;
use super::{Options, StatusUpdates};

/// The owners of the state of tasks. The functions that handle tasks change them through the methods of these owners.
#[derive(Debug)]
pub(super) struct Tasks {
    /// Frameworks, executors and tasks.
    pub(super) runs: Runs,
    /// Their unacknowledged updates.
    pub(super) updates: StatusUpdates,
    /// The frozen and evicted containers.
    pub(super) corrections: Corrections,
    /// The ids of their probes.
    pub(super) probes: ProbeIds,
    /// The drain that ends the tasks.
    pub(super) drain: Drain,
}

impl Tasks {
    /// Creates the state of an agent without tasks.
    pub(super) fn new(options: &Options) -> Self {
        Self {
            runs: Runs::new(options.history_bytes_max),
            updates: StatusUpdates::new(options.check_updates_bytes_max),
            corrections: Corrections::default(),
            probes: ProbeIds::default(),
            drain: Drain::default(),
        }
    }
}
