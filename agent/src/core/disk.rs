//! The condition of the work directory's disk, and its effects on the agent's decisions.
//!
//! While the disk is silent, the agent accepts no task, and each pong reports this, so that the master makes no offers
//! of this agent. After [`super::Options::disk_timeout`] the agent stops answering the master, which then marks it
//! unreachable like any silent agent. Kills continue all the time (`kill.rs`). Invariant: once the disk answers, all of
//! this ends automatically.

use std::time::Duration;

use meseta_proto::meseta::v1 as wire;
use tracing::{error, info};

use crate::checkpoint::DiskCondition;

/// The longest time that a signal waits for its request to be durable. After an unwritten kill and a crash of the
/// agent, the supervisor's record still shows the kill.
pub(super) const RECORD_WAIT: Duration = Duration::from_secs(1);

const FULL: &str =
    "The disk of the agent's work directory is full; tasks are taken again when it has room";
const FAILING: &str =
    "The agent cannot write to its work directory; tasks are taken again when it can";
const REMOVED: &str =
    "The agent's work directory was removed; tasks are taken again when it is back";
const SILENT: &str =
    "The disk of the agent's work directory does not answer; tasks are taken again when it does";

/// The condition of the disk. While checkpoints cannot be written the agent accepts no task.
#[derive(Debug, Default)]
pub(super) struct DiskWatch {
    condition: DiskCondition,
    /// Whether the agent has stopped answering its master, because the disk has been silent for too long.
    has_given_up: bool,
}

/// A change of the disk that the master must learn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskChange {
    /// The disk does not answer any more.
    FellSilent,
    /// The disk answers again.
    Answers {
        /// Whether the agent had stopped answering its master.
        had_given_up: bool,
    },
}

impl DiskWatch {
    pub(super) fn condition(&self) -> DiskCondition {
        self.condition
    }

    pub(super) fn is_silent(&self) -> bool {
        self.condition == DiskCondition::Silent
    }

    /// Whether the agent does not answer the master because of its disk.
    pub(super) fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Notes the condition of the disk.
    pub(super) fn note(&mut self, condition: DiskCondition) -> Option<DiskChange> {
        let before = std::mem::replace(&mut self.condition, condition);
        match (before, condition) {
            (DiskCondition::Silent, DiskCondition::Silent) => None,
            (_, DiskCondition::Silent) => {
                error!(
                    "the disk of the work directory does not answer: the agent takes no tasks, and reports ended tasks after the disk answers again; kills continue"
                );
                Some(DiskChange::FellSilent)
            }
            (DiskCondition::Silent, _) => {
                info!("the disk of the work directory answers again");
                let had_given_up = std::mem::take(&mut self.has_given_up);
                Some(DiskChange::Answers { had_given_up })
            }
            _ => None,
        }
    }

    /// Stops answering the master if the disk is still silent after `--disk_timeout`.
    pub(super) fn give_up(&mut self) {
        if self.is_silent() {
            error!(
                "the disk has not answered for --disk_timeout: the master is answered no more, and marks this agent \
                 unreachable"
            );
            self.has_given_up = true;
        }
    }

    /// The answer to a ping; `None` if the agent no longer answers.
    pub(super) fn pong(&self, sequence: u64) -> Option<wire::Pong> {
        (!self.has_given_up).then(|| wire::Pong {
            sequence,
            // Set when the pong is sent.
            usage: None,
            disk_silent: self.is_silent().then_some(true),
        })
    }

    /// The longest time that a signal waits for its request to be durable.
    pub(super) fn record_wait(&self) -> Duration {
        match self.condition {
            DiskCondition::Silent => Duration::ZERO,
            DiskCondition::Writable
            | DiskCondition::Full
            | DiskCondition::Failing
            | DiskCondition::Removed => RECORD_WAIT,
        }
    }

    /// The message for tasks that are refused while the disk is unusable: a task whose intent cannot be written would
    /// wait for an unknown reason.
    pub(super) fn refusal(&self) -> Option<&'static str> {
        match self.condition {
            DiskCondition::Writable => None,
            DiskCondition::Full => Some(FULL),
            DiskCondition::Failing => Some(FAILING),
            DiskCondition::Removed => Some(REMOVED),
            DiskCondition::Silent => Some(SILENT),
        }
    }
}
