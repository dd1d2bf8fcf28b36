//! The journal of the agent: the order of writes, and the outputs that follow them.
//!
//! Pure. Invariant: positions only grow; an output names the last write that must be durable before it.

use meseta_resources::Moment;

use super::{Destination, Effect, Output};
use crate::checkpoint::{Lsn, Write};

/// The positions of the writes, and the effects of the current step.
#[derive(Debug, Default)]
pub(super) struct Journal {
    /// The last write.
    last: Lsn,
    /// The last write that contains more than a new epoch.
    last_fact: Lsn,
    /// The write of the newest epoch, and its time.
    epoch: Option<(Lsn, Moment)>,
    /// The last durable write.
    durable: Lsn,
    effects: Vec<Effect>,
}

impl Journal {
    /// Adds a write.
    pub(super) fn persist(&mut self, write: Write) {
        self.push(write);
        self.last_fact = self.last;
    }

    /// Adds a write that contains only a new epoch. A disk that does not take this write does not delay the next
    /// registration.
    pub(super) fn persist_epoch(&mut self, now: Moment, write: Write) {
        self.push(write);
        if self.epoch.is_none_or(|(lsn, _)| lsn <= self.durable) {
            self.epoch = Some((self.last, now));
        }
    }

    fn push(&mut self, write: Write) {
        self.last = Lsn(self.last.0.saturating_add(1));
        self.effects.push(Effect::Persist {
            lsn: self.last,
            write,
        });
    }

    /// Adds an output that follows all writes so far.
    pub(super) fn output(&mut self, to: Destination, output: Output) {
        let after = self.last;
        self.effects.push(Effect::Output { after, to, output });
    }

    /// Adds an output that waits for no write, only for earlier outputs of the same destination.
    pub(super) fn output_now(&mut self, to: Destination, output: Output) {
        let after = Lsn::default();
        self.effects.push(Effect::Output { after, to, output });
    }

    /// The last write.
    pub(super) fn last(&self) -> Lsn {
        self.last
    }

    /// The last durable write.
    pub(super) fn durable(&self) -> Lsn {
        self.durable
    }

    /// Notes that all writes up to `lsn` are durable.
    pub(super) fn note_durable(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
    }

    /// The time since which a new epoch has waited for the disk, if nothing else waits.
    pub(super) fn epoch_waits_since(&self) -> Option<Moment> {
        let (lsn, since) = self.epoch?;
        (lsn > self.durable && self.last_fact <= self.durable).then_some(since)
    }

    /// Takes the effects of the step.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }
}
