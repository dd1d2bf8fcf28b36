//! The effects that wait for a durable write, and the writes of a step.
//!
//! Invariant: an acknowledgement and an answer wait for all writes that were under way when they were created. A repeated
//! update is therefore not acknowledged before the changes of the first update are durable.

use std::collections::BTreeMap;

use super::input::{Accept, Effect, Record};

/// An effect that waits for a durable write.
#[derive(Debug)]
pub(super) enum Deferred {
    Effect(Effect),
    /// The first kill of a task.
    Kill(String),
    /// The launch of the tasks of these offers: all or none of a gang.
    Launch {
        accepts: Vec<Accept>,
        is_gang: bool,
    },
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The effects of this step, in order.
    effects: Vec<Effect>,
    writes: Vec<Record>,
    deferred: Vec<Deferred>,
    waiting: BTreeMap<u64, Vec<Deferred>>,
    last: u64,
    stored: u64,
}

impl Outbox {
    /// Adds an effect that waits for no write.
    pub(super) fn send(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Ends a step: returns its effects.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    pub(super) fn write(&mut self, record: Record) {
        self.writes.push(record);
    }

    pub(super) fn write_all(&mut self, records: Vec<Record>) {
        self.writes.extend(records);
    }

    pub(super) fn defer(&mut self, deferred: Deferred) {
        self.deferred.push(deferred);
    }

    /// Returns the effects that waited for the writes up to `id`.
    pub(super) fn stored(&mut self, id: u64) -> Vec<Deferred> {
        self.stored = self.stored.max(id);
        let later = self.waiting.split_off(&(id + 1));
        let due = std::mem::replace(&mut self.waiting, later);
        due.into_values().flatten().collect()
    }

    /// Sends the write of this step, and returns the deferred effects that wait for no write.
    pub(super) fn flush(&mut self) -> Vec<Deferred> {
        let records = std::mem::take(&mut self.writes);
        let deferred = std::mem::take(&mut self.deferred);
        if !records.is_empty() {
            self.last += 1;
            let id = self.last;
            self.effects.push(Effect::Store { id, records });
        }
        if self.last == self.stored {
            return deferred;
        }
        if !deferred.is_empty() {
            self.waiting.entry(self.last).or_default().extend(deferred);
        }
        Vec::new()
    }
}
