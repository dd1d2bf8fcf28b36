//! The operations of all agents: the ids that frameworks gave them, and their memory.
//!
//! The records stay with their agents; [`Operations`] counts each of them. Invariant: an id names a single operation
//! of a framework, from the operation's start until the master forgets it.

use std::collections::BTreeMap;
use std::ops::Bound;

use meseta_proto::Invalid;
use meseta_resources::{AgentId, FrameworkId};

use super::operation::OperationRecord;
use super::operation_memory::OperationMemory;
use crate::core::ids::OperationUuid;

/// The index and the memory of the operations of all agents.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    /// The agents and uuids of operations with an id from their framework.
    named: BTreeMap<(FrameworkId, String), (AgentId, OperationUuid)>,
    memory: OperationMemory,
}

impl Operations {
    /// Adds a new operation. Its id, if any, names this operation from now on.
    pub(crate) fn add(&mut self, record: &OperationRecord) {
        if let Some(key) = record.named() {
            let place = (record.agent_id.clone(), record.uuid);
            self.named.insert(key, place);
        }
        self.memory.add(record);
    }

    /// Forgets an operation, and releases its id, unless the id names another operation by now.
    pub(crate) fn remove(&mut self, record: &OperationRecord) {
        self.memory.remove(record);
        let Some(key) = record.named() else {
            return;
        };
        let holder = self.named.get(&key);
        if holder.is_some_and(|(_, uuid)| *uuid == record.uuid) {
            self.named.remove(&key);
        }
    }

    /// Finds the agent and the uuid of a framework's operation by its id.
    pub(crate) fn find(
        &self,
        framework: &FrameworkId,
        id: &str,
    ) -> Option<&(AgentId, OperationUuid)> {
        self.named.get(&(framework.clone(), id.to_owned()))
    }

    /// Finds the operation that has the id of the given record.
    pub(crate) fn find_namesake(
        &self,
        record: &OperationRecord,
    ) -> Option<&(AgentId, OperationUuid)> {
        self.named.get(&record.named()?)
    }

    /// The operations of a framework with ids after the given one, ordered by id.
    pub(crate) fn named_after(
        &self,
        framework: &FrameworkId,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&String, &(AgentId, OperationUuid))> {
        let key = |id: &str| (framework.clone(), id.to_owned());
        let from = after.map_or(Bound::Included(key("")), |after| {
            Bound::Excluded(key(after))
        });
        let named = self.named.range((from, Bound::Unbounded));
        let own = named.take_while(move |((owner, _), _)| owner == framework);
        own.map(|((_, id), place)| (id, place))
    }

    /// Checks that a framework, or an operator, may have another operation of this encoded size.
    pub(crate) fn check_room(
        &self,
        framework: Option<&FrameworkId>,
        encoded_bytes: usize,
        max: usize,
    ) -> Result<(), Invalid> {
        self.memory.check(framework, encoded_bytes, max)
    }

    /// The memory left for operations that agents report, in bytes.
    pub(crate) fn left_for_adopted(&self, max: usize) -> usize {
        self.memory.left_for_adopted(max)
    }

    /// Whether no framework has named an operation.
    #[cfg(test)]
    pub(crate) fn has_no_names(&self) -> bool {
        self.named.is_empty()
    }

    /// Compares the memory with a recount of all records.
    #[cfg(test)]
    pub(crate) fn check<'a>(&self, records: impl Iterator<Item = &'a OperationRecord>) {
        let mut counted = OperationMemory::default();
        records.for_each(|record| counted.add(record));
        assert_eq!(self.memory, counted);
    }
}
